"""Lines, stops and errors of the disk at the end of a run: nothing is lost or done twice. ``L1`` is the query."""

import errno

import pytest
from support.checks import checked_session
from support.disks import BackgroundFile, MemoryFile
from support.gate import Gate, finish_run, start_run
from support.sessions import call_at_event, make_settings, open_session

from chain import ToolContext, events, tool

TWO_STEPS = """
rules:
  - {when: {user: '^Do the task$', step: 1}, tools: [{name: wait, input: {}}]}
  - {text: The answer.}
"""


class DiskWithoutPlan(MemoryFile):
    """A disk that cannot store changes of the plan while ``is_full``."""

    is_full = False

    def append(self, data: bytes) -> None:
        if self.is_full and b'"type":"plan"' in data:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().append(data)


@pytest.mark.parametrize("max_iterations", [1, 5], ids=["after the last iteration", "between two iterations"])
async def test_unrecorded_todo_lines_are_returned(max_iterations: int) -> None:
    gate, file, settings = Gate(), DiskWithoutPlan(), make_settings(max_iterations=max_iterations)
    async with open_session(TWO_STEPS, tools=[gate.tool], settings=settings, file=file) as session:
        await start_run(session, gate)
        file.is_full = True
        for line in ("todo: add one", "hello", "todo: add two"):
            session.chain.submit(line)
        gate.open.set()
        await session.chain.wait_idle()
        assert session.result.status == "error"
        assert session.chain.plan.tasks == ()
        _, *line_receipts = session.of(events.Receipt)
        assert [(r.id, r.state) for r in line_receipts] == [("L2", "returned"), ("L3", "returned"), ("L4", "returned")]


async def test_an_idle_unrecorded_todo_line_is_returned() -> None:
    file = DiskWithoutPlan()
    async with open_session(TWO_STEPS, file=file) as session:
        file.is_full = True
        answer = session.chain.submit("todo: add one")
        assert (answer.what, session.state("L1")) == ("returned", "returned")
        assert "No space left" in answer.message


async def count_syncs(iterations: int) -> int:
    """Run this many iterations with a tool, and return how often the journal was synced.

    Check that the journal is on disk whenever a tool or a reply starts.
    """
    file, is_synced = BackgroundFile(), list[bool]()

    @tool
    async def look(ctx: ToolContext) -> str:
        """Look."""
        is_synced.append(file.synced == file.data)
        return "seen"

    rule = "  - {when: {step: %d}, text: Looking., tools: [{name: look, input: {}}]}"
    rules = "\n".join(["rules:", *(rule % (n + 1) for n in range(iterations)), "  - {text: Done.}"])
    async with open_session(rules, tools=[look], file=file) as session:

        def check_text(event: events.Event) -> None:
            if isinstance(event, events.TextDelta):
                is_synced.append(file.synced == file.data)

        session.chain.listen(check_text)
        assert (await session.run("Do the task")).status == "done"
    assert len(is_synced) > 2 * iterations, "a tool and a text in each iteration, and the answer"
    assert all(is_synced)
    return file.syncs


async def test_each_iteration_syncs_twice() -> None:
    """It syncs before the request, and before the tool. The start and the end of a run have syncs of their own."""
    some, more = 4, 5
    assert await count_syncs(some + more) == await count_syncs(some) + 2 * more


@pytest.mark.parametrize("act", ["stop", "interrupt"])
@pytest.mark.parametrize("event", [events.PlanChanged, events.Notice], ids=["at the plan's change", "at the notice"])
async def test_a_stop_at_an_ending_prevents_runs(act: str, event: type[events.Event]) -> None:
    gate, settings = Gate(), make_settings(max_iterations=1)
    async with checked_session(TWO_STEPS, tools=[gate.tool], settings=settings, interactive=True) as session:
        await start_run(session, gate, "todo: add one", "then: next", "use B")
        call_at_event(
            session, event, lambda: session.chain.submit("stop") if act == "stop" else session.chain.interrupt()
        )
        gate.open.set()
        await session.chain.wait_idle()
        assert session.result.status == ("cancelled_with_partial" if act == "stop" else "interrupted")
        assert [session.state(id) for id in ("L2", "L3", "L4")] == ["handled", "returned", "returned"]
        assert len(session.model.requests) == 1, "the follow-up and use B start no run"


async def test_a_discarded_reply_is_not_stored() -> None:
    """The reply to a line is cut by the handler prompt's limit. It cannot be repeated, as it used up the budget."""
    gate = Gate()
    model = """
rules:
  - {when: {interruption: '.+'}, text: Half, stop_reason: max_tokens, usage: {input_tokens: 0, output_tokens: 50}}
  - {tools: [{name: wait, input: {}}], usage: {input_tokens: 1, output_tokens: 1}}
"""
    handler = "messages: [{role: system, content: Be brief.}]\nconfig: {max_tokens: 5}\n"
    async with checked_session(
        model, tools=[gate.tool], settings=make_settings(budget_tokens=20, handler=handler)
    ) as session:
        await start_run(session, gate, "hurry")
        await finish_run(session, gate)
        assert session.result.status == "limit_reached"
        assert session.result.replies == ()
        assert not any("Half" in text for text in session.conversation)
        *_, notice = session.of(events.Notice)
        assert notice.message.endswith("The incomplete reply was discarded.")
