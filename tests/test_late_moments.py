"""What the user says or the disk does in the very step of something else: nothing is lost, nothing is done twice."""

from __future__ import annotations

import pytest
from support import BackgroundFile, MemoryFile, checked_session, open_session, settings
from support.gate import Gate
from trio.testing import wait_all_tasks_blocked

from chain import ToolContext, events, tool

TWO_STEPS = """
rules:
  - {when: {user: '^Do the task$', step: 1}, tools: [{name: wait, input: {}}]}
  - {text: The answer.}
"""


class NoPlan(MemoryFile):
    """A disk that takes everything but the plan, once it is full."""

    is_full = False

    def append(self, data: bytes) -> None:
        if self.is_full and b'"type":"plan"' in data:
            raise OSError(28, "No space left on device")
        super().append(data)


@pytest.mark.parametrize("limit", [1, 5])
async def test_unrecorded_todo_lines_are_returned(limit: int) -> None:
    gate, file = Gate(), NoPlan()
    async with open_session(TWO_STEPS, tools=[gate.tool], use=settings(max_iterations=limit), file=file) as session:
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        file.is_full = True
        for line in ("todo: add one", "hello", "todo: add two"):
            session.chain.submit(line)
        gate.open.set()
        await session.chain.wait_idle()
        assert session.result.status == "error"
        assert session.chain.plan.tasks == ()
        returned = [(r.id, r.state) for r in session.of(events.Receipt) if r.state != "delivered"]
        assert returned == [(f"L{n}", "returned") for n in (2, 3, 4)]


async def test_an_idle_unrecorded_todo_line_is_returned() -> None:
    file = NoPlan()
    async with open_session(TWO_STEPS, file=file) as session:
        file.is_full = True
        answer = session.chain.submit("todo: add one")
        assert (answer.what, session.state("L1")) == ("returned", "returned")
        assert "No space left" in answer.message


async def test_requests_and_tools_wait_for_the_store() -> None:
    async def syncs(steps: int) -> int:
        file, seen = BackgroundFile(), []

        @tool
        async def look(ctx: ToolContext) -> str:
            """Look."""
            seen.append(file.synced == file.data)
            return "seen"

        look_at = "  - {when: {step: %d}, text: Looking., tools: [{name: look, input: {}}]}"
        rules = "\n".join(["rules:", *(look_at % (n + 1) for n in range(steps)), "  - {text: Done.}"])
        async with open_session(rules, tools=[look], file=file) as session:

            def note(event: events.Event) -> None:
                if isinstance(event, events.TextDelta):
                    seen.append(file.synced == file.data)

            session.chain.listen(note)
            assert (await session.run("Do the task")).status == "done"
        assert len(seen) > 2 * steps
        assert all(seen), "what they follow from is on the disk"
        return file.syncs

    assert await syncs(9) - await syncs(4) == 2 * 5


@pytest.mark.parametrize("word", ["stop", "interrupt"])
@pytest.mark.parametrize("moment", [events.PlanChanged, events.Notice])
async def test_a_stop_at_an_ending_prevents_runs(word: str, moment: type[events.Event]) -> None:
    gate = Gate()
    use = settings(max_iterations=1)
    async with checked_session(TWO_STEPS, tools=[gate.tool], use=use, interactive=True) as session:

        def act(event: events.Event) -> None:
            if isinstance(event, moment) and session.chain.is_running and gate.open.is_set():
                session.chain.submit("stop") if word == "stop" else session.chain.interrupt()

        session.chain.listen(act)
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        for line in ("todo: add one", "then: next", "carry me"):
            session.chain.submit(line)
        await wait_all_tasks_blocked()
        gate.open.set()
        await session.chain.wait_idle()
        assert session.result.status == ("cancelled_with_partial" if word == "stop" else "interrupted")
        assert [session.state(f"L{n}") for n in (2, 3, 4)] == ["handled", "returned", "returned"]
        assert len(session.model.requests) == 1


async def test_a_discarded_reply_is_not_stored() -> None:
    gate = Gate()
    model = """
rules:
  - {when: {interruption: '.+'}, text: Half, stop_reason: max_tokens, usage: {input_tokens: 0, output_tokens: 50}}
  - {tools: [{name: wait, input: {}}], usage: {input_tokens: 1, output_tokens: 1}}
"""
    handler = "messages: [{role: system, content: Be brief.}]\nconfig: {max_tokens: 5}\n"
    async with checked_session(model, tools=[gate.tool], use=settings(budget_tokens=20, handler=handler)) as session:
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        session.chain.submit("hurry")
        gate.open.set()
        await session.chain.wait_idle()
        assert session.result.status == "limit_reached"
        assert session.result.replies == ()
        assert "Half" not in str([r["message"] for r in session.records if r["type"] == "message"])
        assert session.of(events.Notice)[-1].message.endswith("The incomplete reply was discarded.")
