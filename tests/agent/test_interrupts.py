"""Interrupts in special situations. ``test_loop_table`` has those at each place of the loop. L1 is the query."""

from collections.abc import Awaitable, Callable, Sequence

import pytest
import trio
from support.checks import check_next_run, checked_session
from support.disks import MemoryFile
from support.gates import Gates
from support.sessions import INTERRUPTED, SKIPPED, Session, call_at_event, open_session
from trio.testing import wait_all_tasks_blocked

from chain import events
from chain.errors import ModelError, ParameterRefused
from chain.model import Delta, Reply, Request
from chain.providers.scripted.scripted_model import ScriptedModel
from chain.text.wording import INTERRUPT_NOTE, INTERRUPTED_TEXT, STOP_NOTE
from chain.tools.tool import Tool, ToolContext, tool

MODEL = """
rules:
  - {times: 1, text: Looking., tools: [{name: wait, input: {at: a}}, {name: wait, input: {at: b}}]}
  - {text: The answer.}
"""
CALLS = "Looking. | wait | wait"
FIRST_CUT = f"{INTERRUPTED} | {SKIPPED}"
FIRST_DONE = f"waited a | {SKIPPED}"
BOTH_DONE = "waited a | waited b"


async def check_interrupted(session: Session, *conversation: str, phase: str = "tools") -> None:
    """Check that the run was interrupted with this conversation, and that the next one works."""
    await session.chain.wait_idle()
    [result] = session.of(events.Result)
    assert (result.status, result.result, result.exit_code) == ("interrupted", INTERRUPTED_TEXT, 130)
    assert (result.termination_reason, result.partial, result.phase_reached) == ("user_interrupted", True, phase)
    assert session.conversation == ["Do the task", *conversation, INTERRUPT_NOTE]
    results = [text for message in conversation for text in message.split(" | ")]
    assert result.partial_results == tuple(text for text in results if text.startswith("waited"))
    assert not session.chain.interrupt(), "nothing is running"
    await check_next_run(session)
    assert f"user: {INTERRUPT_NOTE}\nuser: Do another task" in session.sent()


async def test_an_interrupt_at_a_result_keeps_it() -> None:
    async with open_session(MODEL, tools=Gates(is_open=True).tools) as session:
        call_at_event(session, events.ToolResult, session.interrupt)
        session.chain.submit("Do the task")
        await check_interrupted(session, CALLS, FIRST_DONE)


async def test_an_idle_interrupt_does_nothing() -> None:
    async with open_session(MODEL, tools=Gates(is_open=True).tools) as session:
        at_result: list[bool] = []
        call_at_event(session, events.Result, lambda: at_result.append(session.chain.interrupt()))
        assert not session.chain.interrupt()
        assert session.events == []
        assert [r["type"] for r in session.records] == ["session"]
        assert (await session.run("Do the task")).status == "done"
        assert at_result == [False]
        assert not session.chain.interrupt()
        await check_next_run(session)


async def test_an_interrupt_returns_lines_of_all_kinds() -> None:
    gates = Gates()
    lines = ["use B", "!at once", "context: it is late", "todo: add x", "then: Do the next task"]
    async with open_session(MODEL, tools=gates.tools) as session:
        session.chain.submit("Do the task")
        await gates.wait_reached("a")
        for line in lines:
            session.chain.submit(line)
        for _ in range(3):  # only the first one has an effect
            session.interrupt()
        gates.is_open = True
        await check_interrupted(session, CALLS, FIRST_CUT)
        returned = [(r.text, r.reason) for r in session.chain.lines.receipts if r.state == "returned"]
        assert returned == [(line, "interrupted") for line in lines]
        assert session.chain.plan.tasks == ()


def wait_tool(work: Callable[[str], Awaitable[None]], *, read_only: bool = False) -> list[Tool]:
    """Return a tool ``wait`` that does this work."""

    @tool(read_only=read_only)
    async def wait(ctx: ToolContext, at: str) -> str:
        """Wait."""
        await work(at)
        return f"waited {at}"

    return [wait]


@pytest.mark.parametrize(
    ("read_only", "has_checkpoint", "results"),
    [
        pytest.param(False, False, FIRST_DONE, id="it returns after its shield"),
        pytest.param(False, True, FIRST_CUT, id="it has a checkpoint after its shield"),
        pytest.param(True, True, f"{INTERRUPTED} | waited b", id="a parallel tool has ended"),
    ],
)
async def test_an_interrupt_waits_for_a_shielded_tool(read_only: bool, has_checkpoint: bool, results: str) -> None:
    gates = Gates("b")

    async def work(at: str) -> None:
        with trio.CancelScope(shield=True):
            await gates.wait_at(at)
        if has_checkpoint and at == "a":
            await trio.lowlevel.checkpoint()

    async with open_session(MODEL, tools=wait_tool(work, read_only=read_only)) as session:
        session.chain.submit("Do the task")
        await gates.wait_reached("a")
        session.interrupt()
        await wait_all_tasks_blocked()
        assert session.chain.is_running
        assert session.chain.submit("are you there?").what == "queued"
        gates.open_all()
        await check_interrupted(session, CALLS, results)
        assert session.state("L2") == "returned"


@pytest.mark.parametrize(
    ("fails", "result"), [(False, "waited a"), (True, "wait failed: ValueError: no")], ids=["ends", "fails"]
)
async def test_an_interrupt_as_a_tool_returns(fails: bool, result: str) -> None:
    async def work(at: str) -> None:
        if session.of(events.Result):  # in the next run
            return
        await trio.lowlevel.checkpoint()
        session.interrupt()
        if fails:
            raise ValueError("no")

    async with open_session(MODEL, tools=wait_tool(work)) as session:
        session.chain.submit("Do the task")
        await check_interrupted(session, CALLS, f"{result} | {SKIPPED}")


@pytest.mark.parametrize(
    "error", [ModelError("cut", retryable=True), ParameterRefused("no", ["effort"]), ZeroDivisionError()], ids=repr
)
async def test_errors_of_a_cancelled_model_are_ignored(error: Exception) -> None:
    class FailingModel(ScriptedModel):
        async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
            if not session.interrupted_at:  # in the first run
                try:
                    await trio.sleep_forever()
                finally:
                    raise error
            return await super().reply(request, on_delta)

    async with open_session(FailingModel.parse("rules: [{text: The answer.}]")) as session:
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        session.interrupt()
        await check_interrupted(session, phase="thinking")
        assert session.of(events.Error) == []


@pytest.mark.parametrize("retryable", [True, False], ids=["retryable", "final"])
async def test_a_model_error_at_a_stop_is_ignored(retryable: bool) -> None:
    class FailingModel(ScriptedModel):
        async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
            reply = await super().reply(request, on_delta)
            if not session.of(events.Result):  # in the first run
                session.chain.submit("stop")
                raise ModelError("broken", retryable=retryable)
            return reply

    async with open_session(FailingModel.parse("rules: [{text: The answer.}]")) as session:
        result = await session.run("Do the task")
        assert (result.status, result.phase_reached) == ("cancelled", "answering")
        assert session.of(events.Error) == []
        assert session.conversation == ["Do the task", "The answer.", STOP_NOTE]
        await check_next_run(session)


async def test_an_interrupt_during_a_sync_is_published_later() -> None:
    disk, gates = MemoryFile(), Gates()
    async with open_session(MODEL, tools=gates.tools, file=disk) as session:
        session.chain.submit("Do the task")
        await gates.wait_reached("a")
        session.chain.submit("use B")
        disk.hold()
        gates.open_all()
        await wait_all_tasks_blocked()
        assert len(session.model.requests) == 1
        session.interrupt()
        await wait_all_tasks_blocked()
        assert not session.chain.is_running
        assert session.of(events.Result) == [], "published once it is on disk"
        disk.release()
        await check_interrupted(session, CALLS, BOTH_DONE, "USER INTERRUPTION: use B", phase="thinking")


@pytest.mark.parametrize("acts", [("stop", "interrupt"), ("interrupt", "stop")], ids=" then ".join)
async def test_a_stop_and_an_interrupt_make_an_interrupt(acts: Sequence[str]) -> None:
    gates = Gates()

    async def work(at: str) -> None:
        with trio.CancelScope(shield=True):
            await gates.wait_at(at)
        await trio.lowlevel.checkpoint()

    async with checked_session(MODEL, tools=wait_tool(work)) as session:
        session.chain.submit("Do the task")
        await gates.wait_reached("a")
        for act in acts:
            session.interrupt() if act == "interrupt" else session.chain.submit("stop")
            await wait_all_tasks_blocked()
        gates.open_all()
        await check_interrupted(session, CALLS, FIRST_CUT)
        assert session.state("L2") == "handled"
