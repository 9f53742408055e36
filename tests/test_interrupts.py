"""Esc at every place where it could go wrong, on trio's test clock: what is cancelled, kept, told and given back.

The four places are those at which seed 003 found no check: after the model's response, before each tool, after the
tools, before the follow-up call. Each test ends in ``check_aftermath``: nothing started after the interrupt, the
conversation says what happened, every line has its receipt, and the next run works on the same session.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import trio
from support import MemoryFile, Session, at, check_invariants, open_session
from support.gates import Gates
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.agent.conversation import INTERRUPTED, SKIPPED
from chain.errors import ModelError
from chain.model import Delta, Reply, Request
from chain.providers.scripted.model import ScriptedModel
from chain.tools.tool import Tool, ToolContext, tool
from chain.wording import INTERRUPT_NOTE, INTERRUPTED_TEXT, STOP_NOTE

MODEL = """
rules:
  - {times: 1, text: Looking., tools: [{name: wait, input: {at: a}}, {name: wait, input: {at: b}}]}
  - {text: The answer.}
"""
STREAM = """
pace: {chunk: 4, delay_s: 100}
rules:
  - {times: 1, text: Let me look., tools: [{name: wait, input: {at: a}}]}
  - {text: The answer., pace: {delay_s: 0}}
"""
UNWELL = """
rules:
  - {text: The answer., error: {message: overloaded, retryable: true, retry_after: 500, times: 1, after: 3}}
"""


@dataclass
class Mark:
    """An interrupt, and what had been called by then."""

    session: Session
    gates: Gates
    requests: int = -1
    begun: int = -1
    started: int = -1

    def strike(self) -> None:
        """Interrupt."""
        assert self.session.chain.interrupt()
        if self.requests < 0:
            self.requests, self.begun = len(self.session.model.requests), len(self.gates.begun)
            self.started = len(self.session.of(events.ToolCall))

    def check_silence(self) -> None:
        """I4: nothing was called since."""
        assert len(self.session.model.requests) == self.requests
        assert len(self.gates.begun) == self.begun
        assert len(self.session.of(events.ToolCall)) == self.started


def told(session: Session) -> list[str]:
    """The conversation as the journal has it, a text a message."""
    found = []
    for record in session.records:
        if record["type"] == "message":
            blocks = record["message"]["content"]
            found.append(" | ".join(b.get("text") or b.get("content") or b.get("name") for b in blocks))
    return found


async def check_aftermath(mark: Mark, conversation: list[str], *, phase: str) -> None:
    """The run ended as interrupted, with this conversation, and the next one works."""
    session = mark.session
    await session.chain.wait_idle()
    mark.check_silence()
    result = session.result
    assert (result.status, result.result) == ("interrupted", INTERRUPTED_TEXT)
    assert (result.termination_reason, result.partial, result.phase_reached) == ("user_interrupted", True, phase)
    assert result.exit_code == 130
    assert told(session) == [*conversation, INTERRUPT_NOTE]
    assert session.state("L1") == "delivered"
    assert not session.chain.is_running
    assert not session.chain.waiting
    check_invariants(session)
    mark.gates.is_open = True
    assert (await session.run("Do another task")).status == "done"
    assert f"user: {INTERRUPT_NOTE}\nuser: Do another task" in session.sent()
    check_invariants(session)


# ------------------------------------------------------------------------------------------ the four places of seed 003


async def test_after_the_models_response_its_tools_do_not_run() -> None:
    gates = Gates(is_open=True)
    async with open_session(MODEL, tools=gates.tools) as session:
        mark = Mark(session, gates)
        at(session, events.Reply, mark.strike)
        session.chain.submit("Do the task")
        skipped = f"{SKIPPED} | {SKIPPED}"
        await check_aftermath(mark, ["Do the task", "Looking. | wait | wait", skipped], phase="answering")


async def test_before_each_tool_the_first_the_tool_does_not_run() -> None:
    """The start is on record by then, so the result says that there may be effects, though there are none."""
    gates = Gates(is_open=True)
    async with open_session(MODEL, tools=gates.tools) as session:
        mark = Mark(session, gates)
        at(session, events.ToolCall, mark.strike)
        session.chain.submit("Do the task")
        results = f"{INTERRUPTED} | {SKIPPED}"
        await check_aftermath(mark, ["Do the task", "Looking. | wait | wait", results], phase="tools")


async def test_before_each_tool_the_one_after_another_does_not_start() -> None:
    gates = Gates(is_open=True)
    async with open_session(MODEL, tools=gates.tools) as session:
        mark = Mark(session, gates)
        at(session, events.ToolResult, mark.strike)
        session.chain.submit("Do the task")
        results = f"waited a | {SKIPPED}"
        await check_aftermath(mark, ["Do the task", "Looking. | wait | wait", results], phase="tools")
        assert session.of(events.Result)[0].partial_results == ("waited a",)


async def test_after_the_tools_no_line_is_delivered_and_no_call_is_made() -> None:
    gates = Gates(is_open=True)
    async with open_session(MODEL, tools=gates.tools) as session:
        mark = Mark(session, gates)
        at(session, events.ToolCall, lambda: session.chain.submit("use the other file"))
        at(session, events.ToolResult, mark.strike, nth=2)
        session.chain.submit("Do the task")
        results = "waited a | waited b"
        await check_aftermath(mark, ["Do the task", "Looking. | wait | wait", results], phase="tools")
        assert session.state("L2") == "returned"


async def test_before_the_follow_up_call_the_model_is_not_asked() -> None:
    """Between two iterations: the second is counted and told of, and its call is not made."""
    gates = Gates(is_open=True)
    async with open_session(MODEL, tools=gates.tools) as session:
        mark = Mark(session, gates)
        at(session, events.IterationStarted, mark.strike, nth=2)
        session.chain.submit("Do the task")
        results = "waited a | waited b"
        await check_aftermath(mark, ["Do the task", "Looking. | wait | wait", results], phase="thinking")
        assert session.of(events.Result)[0].iterations == 2


# -------------------------------------------------------------------------------------------------- when and how often


async def test_twice_in_a_row_is_as_once() -> None:
    gates = Gates()
    async with open_session(MODEL, tools=gates.tools) as session:
        mark = Mark(session, gates)
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        mark.strike()
        mark.strike()
        await check_aftermath(
            mark, ["Do the task", "Looking. | wait | wait", f"{INTERRUPTED} | {SKIPPED}"], phase="tools"
        )
        assert len(session.of(events.Result)) == 2


async def test_twice_the_second_time_as_the_tool_is_taken_down_is_as_once() -> None:
    session: Session
    struck: list[str] = []

    @tool
    async def wait(ctx: ToolContext, at: str) -> str:
        """Wait."""
        try:
            await trio.sleep_forever()
        finally:
            struck.append(at)
            session.chain.interrupt()

    gates = Gates()
    async with open_session(MODEL, tools=[wait]) as session:
        mark = Mark(session, gates)
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        mark.strike()
        await check_aftermath(
            mark, ["Do the task", "Looking. | wait | wait", f"{INTERRUPTED} | {SKIPPED}"], phase="tools"
        )
        assert struck == ["a"]


async def test_when_idle_it_leaves_nothing_behind() -> None:
    gates = Gates(is_open=True)
    async with open_session(MODEL, tools=gates.tools) as session:
        for query in ("Do the task", "Do another task"):
            assert not session.chain.interrupt()
            assert not session.chain.interrupt()
            assert (await session.run(query)).status == "done"
        assert not session.chain.interrupt()
        assert INTERRUPT_NOTE not in told(session)
        assert gates.begun == ["a", "b"]
        check_invariants(session)


async def test_in_the_step_of_a_runs_result_it_is_too_late_and_leaves_nothing_behind() -> None:
    gates = Gates(is_open=True)
    async with open_session(MODEL, tools=gates.tools) as session:
        late: list[bool] = []
        at(session, events.Result, lambda: late.append(session.chain.interrupt()))
        assert (await session.run("Do the task")).status == "done"
        assert late == [False]
        assert (await session.run("Do another task")).status == "done"
        check_invariants(session)


async def test_before_the_runs_first_step_no_model_is_asked() -> None:
    gates = Gates()
    async with open_session(MODEL, tools=gates.tools) as session:
        mark = Mark(session, gates)
        session.chain.submit("Do the task")
        mark.strike()
        await check_aftermath(mark, ["Do the task"], phase="thinking")


async def test_before_the_runs_first_step_lines_that_wait_come_back_and_are_not_delivered() -> None:
    gates = Gates()
    async with open_session(MODEL, tools=gates.tools) as session:
        mark = Mark(session, gates)
        session.chain.submit("Do the task")
        session.chain.submit("context: it is late")
        mark.strike()
        await check_aftermath(mark, ["Do the task"], phase="thinking")
        assert session.state("L2") == "returned"


async def test_during_retry_backoff_the_wait_ends_at_once(mock_clock: MockClock) -> None:
    gates = Gates()
    async with open_session(UNWELL, tools=gates.tools) as session:
        mark = Mark(session, gates)
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        assert len(session.of(events.Retry)) == 1
        mark.strike()
        await check_aftermath(mark, ["Do the task"], phase="thinking")
        assert trio.current_time() == 0


async def test_in_the_step_in_which_a_retry_is_told_of_no_second_call_is_made(mock_clock: MockClock) -> None:
    gates = Gates()
    async with open_session(UNWELL, tools=gates.tools) as session:
        mark = Mark(session, gates)
        at(session, events.Retry, mark.strike)
        session.chain.submit("Do the task")
        await check_aftermath(mark, ["Do the task"], phase="thinking")


async def test_while_text_streams_it_is_cut_and_kept_and_the_calls_to_come_are_dropped(mock_clock: MockClock) -> None:
    gates = Gates()
    async with open_session(STREAM, tools=gates.tools) as session:
        mark = Mark(session, gates)
        at(session, events.TextDelta, mark.strike, nth=2)
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        mock_clock.jump(100)
        await wait_all_tasks_blocked()
        mock_clock.jump(100)
        await check_aftermath(mark, ["Do the task", "Let me l"], phase="answering")
        assert session.of(events.Result)[0].replies == ("Let me l",)
        assert trio.current_time() == 200


# ------------------------------------------------------------------------------------------------- in the very step of


async def test_in_the_step_in_which_a_tool_ends_its_result_is_kept() -> None:
    session: Session
    gates = Gates()
    mark: Mark

    @tool
    async def wait(ctx: ToolContext, at: str) -> str:
        """Interrupt as the last thing."""
        await trio.lowlevel.checkpoint()
        mark.strike()
        return f"waited {at}"

    async with open_session(MODEL, tools=[wait]) as session:
        mark = Mark(session, gates)
        session.chain.submit("Do the task")
        await check_aftermath(mark, ["Do the task", "Looking. | wait | wait", f"waited a | {SKIPPED}"], phase="tools")


async def test_in_the_step_in_which_a_tool_fails_its_error_is_kept() -> None:
    session: Session
    gates = Gates()
    mark: Mark

    @tool
    async def wait(ctx: ToolContext, at: str) -> str:
        """Interrupt as the last thing."""
        mark.strike()
        raise ValueError("no")

    async with open_session(MODEL, tools=[wait]) as session:
        mark = Mark(session, gates)
        session.chain.submit("Do the task")
        results = f"wait failed: ValueError: no | {SKIPPED}"
        await check_aftermath(mark, ["Do the task", "Looking. | wait | wait", results], phase="tools")


@dataclass
class Closing:
    """A model that does something in the step in which its reply arrives, each time."""

    inner: ScriptedModel
    act: Callable[[], None] = lambda: None
    name: str = "closing"

    async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        reply = await self.inner.reply(request, on_delta)
        self.act()
        return reply

    async def prepare(self) -> None:
        """There is nothing to prepare."""

    async def aclose(self) -> None:
        """There is nothing to give up."""


@pytest.mark.parametrize(
    ("rule", "conversation"),
    [
        ("{times: 1, text: Half., tools: [{name: wait, input: {at: a}}]}", ["Half. | wait", SKIPPED]),
        ("{times: 1, tools: [{name: wait, input: {at: a}}]}", ["wait", SKIPPED]),
        ("{times: 1, text: All.}", ["All."]),
        ("{times: 1, text: Half., stop_reason: max_tokens}", ["Half."]),
        ("{times: 1, text: ''}", []),
        ("{times: 1, text: Half., stop_reason: pause_turn}", ["Half."]),
    ],
)
async def test_in_the_step_in_which_a_reply_arrives_it_is_kept_and_nothing_comes_of_it(
    rule: str, conversation: list[str]
) -> None:
    gates = Gates()
    model = Closing(ScriptedModel.parse(f"rules:\n  - {rule}\n  - {{text: The answer.}}"))
    async with open_session(model, tools=gates.tools) as session:
        mark = Mark(session, gates)

        def once() -> None:
            model.act = lambda: None
            mark.strike()

        model.act = once
        session.chain.submit("Do the task")
        phase = "answering" if "text: ''" not in rule and "text" in rule else "thinking"
        await check_aftermath(mark, ["Do the task", *conversation], phase=phase)


async def test_a_model_that_fails_since_it_was_interrupted_is_no_error_of_the_run() -> None:
    class Failing(Closing):
        async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
            if mark.requests < 0:
                try:
                    await trio.sleep_forever()
                finally:
                    raise ModelError("the connection was cut", retryable=True)
            return await self.inner.reply(request, on_delta)

    gates = Gates()
    async with open_session(Failing(ScriptedModel.parse("rules: [{text: The answer.}]"))) as session:
        mark = Mark(session, gates)
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        mark.strike()
        await check_aftermath(mark, ["Do the task"], phase="thinking")
        assert session.of(events.Error) == []


async def test_while_a_line_is_delivered_it_stays_delivered_and_no_model_reads_it() -> None:
    gates = Gates(is_open=True)
    async with open_session(MODEL, tools=gates.tools) as session:
        mark = Mark(session, gates)
        at(session, events.ToolCall, lambda: session.chain.submit("use the other file"))
        at(session, events.UserInterruption, mark.strike)
        session.chain.submit("Do the task")
        entered = ["waited a | waited b", "USER INTERRUPTION: use the other file"]
        await check_aftermath(mark, ["Do the task", "Looking. | wait | wait", *entered], phase="thinking")
        assert session.state("L2") == "delivered"


class Watched(MemoryFile):
    """A disk that does something as a record with these words is written."""

    words = b"(nothing)"

    def __init__(self) -> None:
        super().__init__()
        self.act: Callable[[], object] = lambda: None

    def append(self, data: bytes) -> None:
        super().append(data)
        if self.words in data:
            self.words = b"(nothing)"
            self.act()


async def test_while_a_line_is_written_into_the_conversation_it_is_delivered_and_no_model_reads_it() -> None:
    gates, disk = Gates(is_open=True), Watched()
    async with open_session(MODEL, tools=gates.tools, file=disk) as session:
        mark = Mark(session, gates)
        at(session, events.ToolCall, lambda: session.chain.submit("use the other file"))
        disk.words, disk.act = b"USER INTERRUPTION", mark.strike
        session.chain.submit("Do the task")
        entered = ["waited a | waited b", "USER INTERRUPTION: use the other file"]
        await check_aftermath(mark, ["Do the task", "Looking. | wait | wait", *entered], phase="thinking")
        assert session.state("L2") == "delivered"


async def test_while_a_line_is_delivered_after_the_answer_it_stays_delivered() -> None:
    gates = Gates()
    async with open_session("rules: [{text: The answer.}]") as session:
        mark = Mark(session, gates)
        at(session, events.Reply, lambda: session.chain.submit("and more"))
        at(session, events.UserInterruption, mark.strike)
        session.chain.submit("Do the task")
        # The event waits until the line is on the disk, and so does the model call; the answer is over by then.
        entered = ["The answer.", "USER INTERRUPTION: and more"]
        await check_aftermath(mark, ["Do the task", *entered], phase="thinking")
        assert session.state("L2") == "delivered"


# --------------------------------------------------------------------------------------------------------- slow things


async def test_while_the_journal_is_flushed_the_run_ends_at_once_and_is_told_once_the_disk_is_done() -> None:
    gates, disk = Gates(), MemoryFile()
    disk.hold()
    async with open_session(MODEL, tools=gates.tools, file=disk) as session:
        mark = Mark(session, gates)
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        assert session.model.requests == []
        mark.strike()
        await wait_all_tasks_blocked()
        assert not session.chain.is_running
        assert session.of(events.Result) == []
        disk.release()
        await check_aftermath(mark, ["Do the task"], phase="thinking")


async def test_while_the_journal_is_flushed_before_a_follow_up_call_the_call_is_not_made() -> None:
    gates, disk = Gates(), MemoryFile()
    async with open_session(MODEL, tools=gates.tools, file=disk) as session:
        mark = Mark(session, gates)
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        disk.hold()
        session.chain.submit("use the other file")
        gates.let_all()
        await wait_all_tasks_blocked()
        assert len(session.model.requests) == 1
        mark.strike()
        await wait_all_tasks_blocked()
        disk.release()
        entered = ["waited a | waited b", "USER INTERRUPTION: use the other file"]
        await check_aftermath(mark, ["Do the task", "Looking. | wait | wait", *entered], phase="thinking")
        assert session.state("L2") == "delivered"


def shielding(gates: Gates, *, goes_on: bool) -> Tool:
    @tool
    async def wait(ctx: ToolContext, at: str) -> str:
        """Wait, and let nobody interrupt."""
        with trio.CancelScope(shield=True):
            await gates.work(at)
        if goes_on:
            await trio.lowlevel.checkpoint()
        return f"waited {at}"

    return wait


@pytest.mark.parametrize(("goes_on", "first"), [(False, "waited a"), (True, INTERRUPTED)])
async def test_a_tool_that_shields_itself_is_waited_for_then_the_run_ends(goes_on: bool, first: str) -> None:
    gates = Gates()
    async with open_session(MODEL, tools=[shielding(gates, goes_on=goes_on)]) as session:
        mark = Mark(session, gates)
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        mark.strike()
        await wait_all_tasks_blocked()
        assert session.chain.is_running
        assert session.chain.submit("are you there?").what == "queued"
        gates.let_all()
        await check_aftermath(mark, ["Do the task", "Looking. | wait | wait", f"{first} | {SKIPPED}"], phase="tools")
        assert session.state("L2") == "returned"


async def test_during_a_batch_of_parallel_tools_those_that_ended_keep_their_results(mock_clock: MockClock) -> None:
    gates = Gates("b")

    @tool(read_only=True)
    async def wait(ctx: ToolContext, at: str) -> str:
        """Wait, or not."""
        with trio.CancelScope(shield=True):
            await gates.work(at)
        if at == "a":
            await trio.lowlevel.checkpoint()
        return f"waited {at}"

    async with open_session(MODEL, tools=[wait]) as session:
        mark = Mark(session, gates)
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        mark.strike()
        await wait_all_tasks_blocked()
        assert session.chain.is_running
        gates.let_all()
        results = f"{INTERRUPTED} | waited b"
        await check_aftermath(mark, ["Do the task", "Looking. | wait | wait", results], phase="tools")
        assert session.of(events.Result)[0].partial_results == ("waited b",)


# --------------------------------------------------------------------------------------------------- lines, and stops


async def test_lines_that_wait_come_back() -> None:
    gates = Gates()
    async with open_session(MODEL, tools=gates.tools) as session:
        mark = Mark(session, gates)
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        for line in ("use the other file", "!at once", "context: it is late"):
            session.chain.submit(line)
        mark.strike()
        await check_aftermath(
            mark, ["Do the task", "Looking. | wait | wait", f"{INTERRUPTED} | {SKIPPED}"], phase="tools"
        )
        for id in ("L2", "L3", "L4"):
            [receipt] = [r for r in session.chain.receipts if r.id == id]
            assert (receipt.state, receipt.reason) == ("returned", "interrupted")


async def test_a_follow_up_that_waits_comes_back_and_starts_no_run() -> None:
    gates = Gates()
    async with open_session(MODEL, tools=gates.tools) as session:
        mark = Mark(session, gates)
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        session.chain.submit("then: Do the next task")
        mark.strike()
        await session.chain.wait_idle()
        assert len(session.of(events.RunStarted)) == 1
        await check_aftermath(
            mark, ["Do the task", "Looking. | wait | wait", f"{INTERRUPTED} | {SKIPPED}"], phase="tools"
        )
        assert session.state("L2") == "returned"


async def test_in_the_step_of_the_final_reply_a_follow_up_starts_no_run() -> None:
    gates = Gates()
    async with open_session("rules: [{text: The answer.}]") as session:
        mark = Mark(session, gates)

        def both() -> None:
            session.chain.submit("then: Do the next task")
            mark.strike()

        at(session, events.Reply, both)
        session.chain.submit("Do the task")
        await check_aftermath(mark, ["Do the task", "The answer."], phase="answering")
        assert session.state("L2") == "returned"
        assert len(session.of(events.RunStarted)) == 2


@pytest.mark.parametrize("is_at_once", [True, False])
@pytest.mark.parametrize("first", ["stop", "interrupt"])
async def test_a_stop_and_an_interrupt_while_a_tool_runs_are_an_interrupt_in_either_order(
    first: str, is_at_once: bool
) -> None:
    gates = Gates()
    async with open_session(MODEL, tools=[shielding(gates, goes_on=True)]) as session:
        mark = Mark(session, gates)
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        for what in ("stop", "interrupt") if first == "stop" else ("interrupt", "stop"):
            if what == "stop":
                assert session.chain.submit("stop").what == "stopping"
            else:
                mark.strike()
            if not is_at_once:
                await wait_all_tasks_blocked()
        gates.let_all()
        await check_aftermath(
            mark, ["Do the task", "Looking. | wait | wait", f"{INTERRUPTED} | {SKIPPED}"], phase="tools"
        )
        assert session.state("L2") == "handled"
        assert STOP_NOTE not in told(session)


@pytest.mark.parametrize("first", ["stop", "interrupt"])
async def test_a_stop_and_an_interrupt_while_text_streams_are_an_interrupt_in_either_order(
    first: str, mock_clock: MockClock
) -> None:
    gates = Gates()
    async with open_session(STREAM, tools=gates.tools) as session:
        mark = Mark(session, gates)

        def both() -> None:
            for what in ("stop", "interrupt") if first == "stop" else ("interrupt", "stop"):
                if what == "stop":
                    session.chain.submit("stop")
                else:
                    mark.strike()

        at(session, events.TextDelta, both)
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        mock_clock.jump(100)
        await check_aftermath(mark, ["Do the task", "Let "], phase="answering")
        assert session.state("L2") == "handled"


async def test_an_interrupt_after_a_stop_that_has_ended_the_run_does_nothing(mock_clock: MockClock) -> None:
    gates = Gates()
    async with open_session(STREAM, tools=gates.tools) as session:
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        session.chain.submit("stop")
        await wait_all_tasks_blocked()
        assert not session.chain.interrupt()
        assert session.result.status == "cancelled"
        assert (await session.run("Do another task")).status == "done"
        check_invariants(session)


# ----------------------------------------------------------------------------------------------- a stop is never late


async def test_a_stop_cuts_a_reply_that_streams_without_waiting_for_its_next_piece(mock_clock: MockClock) -> None:
    gates = Gates()
    async with open_session(STREAM, tools=gates.tools) as session:
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        mock_clock.jump(100)
        await wait_all_tasks_blocked()
        session.chain.submit("stop")
        await wait_all_tasks_blocked()
        assert not session.chain.is_running
        assert trio.current_time() == 100
        result = session.result
        assert (result.status, result.phase_reached) == ("cancelled", "answering")
        assert result.result == "Let\n\nWhat would you like to do instead?"
        assert told(session) == ["Do the task", "Let ", STOP_NOTE]
        check_invariants(session)


async def test_a_stop_during_retry_backoff_ends_the_wait_at_once(mock_clock: MockClock) -> None:
    async with open_session(UNWELL) as session:
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        assert len(session.of(events.Retry)) == 1
        session.chain.submit("stop")
        await wait_all_tasks_blocked()
        assert not session.chain.is_running
        assert trio.current_time() == 0
        assert (session.result.status, session.result.phase_reached) == ("cancelled", "thinking")
        assert len(session.model.requests) == 1
        assert told(session) == ["Do the task", STOP_NOTE]
        assert (await session.run("Do another task")).status == "done"
        check_invariants(session)


@pytest.mark.parametrize("retryable", ["true", "false"])
async def test_a_model_that_fails_in_the_step_of_a_stop_is_no_error_of_the_run(retryable: str) -> None:
    model = f"rules: [{{text: The answer., error: {{message: broken, retryable: {retryable}, times: 1, after: 99}}}}]"

    class Failing(Closing):
        async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
            try:
                return await self.inner.reply(request, on_delta)
            except ModelError:
                session.chain.submit("stop")
                raise

    async with open_session(Failing(ScriptedModel.parse(model))) as session:
        result = await session.run("Do the task")
        assert (result.status, result.phase_reached) == ("cancelled", "answering")
        assert session.of(events.Error) == []
        assert len(session.model.requests) == 1
        assert told(session) == ["Do the task", "The answer.", STOP_NOTE]
        assert (await session.run("Do another task")).status == "done"
        check_invariants(session)


async def test_a_stop_before_the_runs_first_step_gives_back_what_waits() -> None:
    async with open_session(MODEL, tools=Gates(is_open=True).tools) as session:
        session.chain.submit("Do the task")
        session.chain.submit("use the other file")
        session.chain.submit("stop")
        await session.chain.wait_idle()
        assert (session.result.status, session.result.phase_reached) == ("cancelled", "thinking")
        assert session.model.requests == []
        assert session.state("L2") == "returned"
        assert told(session) == ["Do the task", STOP_NOTE]
        assert (await session.run("Do another task")).status == "done"
        check_invariants(session)


async def test_a_stop_after_the_tools_is_one_of_the_thinking_phase() -> None:
    """The text beside the calls was shown long ago, and the reply to come has not begun."""
    async with open_session(MODEL, tools=Gates(is_open=True).tools) as session:
        at(session, events.IterationStarted, lambda: session.chain.submit("stop"), nth=2)
        result = await session.run("Do the task")
        assert (result.status, result.phase_reached) == ("cancelled_with_partial", "thinking")
        check_invariants(session)


async def test_a_stop_as_a_line_is_delivered_after_the_tools_is_one_of_the_thinking_phase() -> None:
    async with open_session(MODEL, tools=Gates(is_open=True).tools) as session:
        at(session, events.ToolCall, lambda: session.chain.submit("use the other file"))
        at(session, events.UserInterruption, lambda: session.chain.submit("stop"))
        result = await session.run("Do the task")
        assert (result.status, result.phase_reached) == ("cancelled_with_partial", "thinking")
        assert len(session.model.requests) == 1
        check_invariants(session)
