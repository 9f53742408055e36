"""Esc at every place where it could go wrong, on trio's test clock: what is cancelled, kept, told and given back.

The places are rows of a table, the first of them those at which seed 003 found no check: after the model's response,
before each tool, after the tools, before the follow-up call. Each test ends in ``check_aftermath``: nothing started
after the interrupt, the conversation says what happened, every line has its receipt, and the next run works on the same
session.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import trio
from support import INTERRUPTED, SKIPPED, MemoryFile, Session, at, check_invariants, open_session
from support.gates import Gates
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.errors import ModelError
from chain.model import Delta, Reply, Request
from chain.providers.scripted.scripted_model import ScriptedModel
from chain.text.wording import INTERRUPT_NOTE, INTERRUPTED_TEXT, STOP_NOTE
from chain.tools.tool import Tool, ToolContext, tool

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
ANSWER = "rules: [{text: The answer.}]"
THREE_TOOLS = MODEL.replace("{at: b}}]", "{at: b}}, {name: wait, input: {at: c}}]")


@dataclass
class Mark:
    """An interrupt, and what had been called by then."""

    gates: Gates
    session: Session = field(init=False)
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
    assert not session.chain.interrupt()
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
    count = len(session.events)
    assert (await session.run("Do another task")).status == "done"
    assert not {e.text for e in session.events[count:] if isinstance(e, events.ToolResult)} & {SKIPPED, INTERRUPTED}
    assert f"user: {INTERRUPT_NOTE}\nuser: Do another task" in session.sent()
    check_invariants(session)


class Watched(MemoryFile):
    """A disk that does something as a record with these words is brought to it."""

    words = b"(nothing)"

    def __init__(self) -> None:
        super().__init__()
        self.act: Callable[[], object] = lambda: None

    async def sync(self) -> None:
        if self.words in self.data:
            self.words = b"(nothing)"
            self.act()
        await super().sync()


# ------------------------------------------------------------------------------------------------- tools that misbehave


def shielding(mark: Mark, *, goes_on: bool) -> list[Tool]:
    @tool
    async def wait(ctx: ToolContext, at: str) -> str:
        """Wait, and let nobody interrupt."""
        with trio.CancelScope(shield=True):
            await mark.gates.work(at)
        if goes_on:
            await trio.lowlevel.checkpoint()
        return f"waited {at}"

    return [wait]


def shielding_one_of_two(mark: Mark) -> list[Tool]:
    @tool(read_only=True)
    async def wait(ctx: ToolContext, at: str) -> str:
        """Wait, or not."""
        if at == "a":
            with trio.CancelScope(shield=True):
                await mark.gates.work(at)
            await trio.lowlevel.checkpoint()
        return f"waited {at}"

    return [wait]


def striking_again(mark: Mark) -> list[Tool]:
    @tool
    async def wait(ctx: ToolContext, at: str) -> str:
        """Interrupt once more on being taken down."""
        try:
            await mark.gates.work(at)
        finally:
            mark.gates.did.append(f"struck {at}")
            mark.session.chain.interrupt()

    return [wait]


def striking(mark: Mark, *, fails: bool) -> list[Tool]:
    @tool
    async def wait(ctx: ToolContext, at: str) -> str:
        """Interrupt as the last thing."""
        if not fails:
            await trio.lowlevel.checkpoint()
        mark.strike()
        if fails:
            raise ValueError("no")
        return f"waited {at}"

    return [wait]


# ----------------------------------------------------------------------------------------------------------- the table

AT_ONCE = "before the run's first step"
QUIET = "when everything waits"

ASKS = "Looking. | wait | wait"
CUT = f"{INTERRUPTED} | {SKIPPED}"
BOTH = "waited a | waited b"
NEXT = "then: Do the next task"
LINE = "use the other file"
ENTERED = f"USER INTERRUPTION: {LINE}"


@dataclass(frozen=True)
class Case:
    """When the key is pressed, and the conversation and the phase that this leaves.

    ``when`` is a moment above, an event and its number, the words of a record that is just written, or ``None`` where a
    tool presses it. ``says`` are lines in the step of the first event of a kind, ``lines`` those that are typed before
    the key. ``becomes`` are the states of all of them, and ``result`` fields of the run's result. ``holds``: a tool
    keeps the run from ending until its gate is opened. ``jumps``: how often the clock is moved on.
    """

    when: str | bytes | tuple[type[events.Event], int] | None
    conversation: Sequence[str]
    phase: str
    model: str = MODEL
    tools: Callable[[Mark], list[Tool]] = lambda mark: mark.gates.tools
    is_open: bool = True
    says: Sequence[tuple[type[events.Event], str]] = ()
    lines: Sequence[str] = ()
    becomes: Sequence[str] = ()
    times: int = 1
    holds: bool = False
    jumps: int = 0
    retries: int = 0
    did: Sequence[str] = ()
    result: Mapping[str, Any] = field(default_factory=dict)
    marks: Sequence[pytest.MarkDecorator] = ()


CASES = {
    # The four places of seed 003. The start of a tool is on record when it is told of, so the result says that there
    # may be effects, though there are none.
    "in the step of the model's response": Case((events.UsageReport, 1), [ASKS, f"{SKIPPED} | {SKIPPED}"], "answering"),
    "after the model's response": Case(
        (events.Reply, 1),
        [ASKS, f"{SKIPPED} | {SKIPPED}"],
        "answering",
        marks=[pytest.mark.seed("003", "the check after the model's response")],
    ),
    "before the first tool": Case(
        (events.ToolCall, 1), [ASKS, CUT], "tools", marks=[pytest.mark.seed("003", "the check before each tool")]
    ),
    "before another tool": Case(
        (events.ToolResult, 1),
        [ASKS, f"waited a | {SKIPPED}"],
        "tools",
        marks=[pytest.mark.seed("003", "the check before each tool")],
    ),
    "before the last tool": Case(
        (events.ToolResult, 2), [f"{ASKS} | wait", f"{BOTH} | {SKIPPED}"], "tools", model=THREE_TOOLS
    ),
    "after the tools, where a line waits": Case(
        (events.ToolResult, 2),
        [ASKS, BOTH],
        "tools",
        says=[(events.ToolCall, LINE)],
        becomes=["returned"],
        marks=[pytest.mark.seed("003", "the check after the tools")],
    ),
    "before the follow-up call, which is counted and not made": Case(
        (events.IterationStarted, 2),
        [ASKS, BOTH],
        "thinking",
        result={"iterations": 2},
        marks=[pytest.mark.seed("003", "the check before the follow-up call")],
    ),
    # When and how often.
    "three times in a row": Case(QUIET, [ASKS, CUT], "tools", is_open=False, times=3),
    "twice, the second time as the tool is taken down": Case(
        QUIET, [ASKS, CUT], "tools", tools=striking_again, is_open=False, did=["+a", "!a", "struck a"]
    ),
    "before the first step": Case(AT_ONCE, [], "thinking"),
    "before the first step, where a line waits": Case(
        AT_ONCE, [], "thinking", lines=["context: it is late"], becomes=["returned"]
    ),
    "during the wait before another attempt": Case(QUIET, [], "thinking", model=UNWELL, retries=1),
    "in the step in which a retry is told of": Case((events.Retry, 1), [], "thinking", model=UNWELL, retries=1),
    "while text streams, which is kept, and the calls to come are not": Case(
        (events.TextDelta, 2), ["Let me l"], "answering", model=STREAM, jumps=2, result={"replies": ("Let me l",)}
    ),
    # In the very step of something else.
    "as a tool ends": Case(None, [ASKS, f"waited a | {SKIPPED}"], "tools", tools=partial(striking, fails=False)),
    "as a tool fails": Case(
        None, [ASKS, f"wait failed: ValueError: no | {SKIPPED}"], "tools", tools=partial(striking, fails=True)
    ),
    "as a line is told to be delivered, which no model reads": Case(
        (events.UserInterruption, 1),
        [ASKS, BOTH, ENTERED],
        "thinking",
        says=[(events.ToolCall, LINE)],
        becomes=["delivered"],
    ),
    "as an urgent line is told to be delivered": Case(
        (events.UserInterruption, 1),
        [ASKS, f"waited a | {SKIPPED}", ENTERED],
        "thinking",
        says=[(events.ToolCall, f"!{LINE}")],
        becomes=["delivered"],
    ),
    "as a line is written into the conversation": Case(
        b"USER INTERRUPTION", [ASKS, BOTH, ENTERED], "thinking", says=[(events.ToolCall, LINE)], becomes=["delivered"]
    ),
    # The event waits until the line is on the disk, and so does the model call; the answer is over by then.
    "as a line is delivered after the answer": Case(
        (events.UserInterruption, 1),
        ["The answer.", ENTERED],
        "thinking",
        model=ANSWER,
        says=[(events.Reply, LINE)],
        becomes=["delivered"],
    ),
    "in the step of the final reply, where lines wait": Case(
        (events.Reply, 1),
        ["The answer."],
        "answering",
        model=ANSWER,
        says=[(events.TextDelta, LINE), (events.Reply, NEXT)],
        becomes=["returned"] * 2,
        result={"replies": ("The answer.",)},
    ),
    # Tools that are waited for.
    "in a tool that shields itself": Case(
        QUIET,
        [ASKS, f"waited a | {SKIPPED}"],
        "tools",
        tools=partial(shielding, goes_on=False),
        is_open=False,
        holds=True,
        becomes=["returned"],
    ),
    "in a tool that shields itself, and goes on": Case(
        QUIET,
        [ASKS, CUT],
        "tools",
        tools=partial(shielding, goes_on=True),
        is_open=False,
        holds=True,
        becomes=["returned"],
    ),
    "in a batch of parallel tools, of which one has ended": Case(
        QUIET,
        [ASKS, f"{INTERRUPTED} | waited b"],
        "tools",
        tools=shielding_one_of_two,
        is_open=False,
        holds=True,
        becomes=["returned"],
    ),
    # Lines that wait.
    "where lines wait": Case(
        QUIET,
        [ASKS, CUT],
        "tools",
        is_open=False,
        lines=[LINE, "!at once", "context: it is late"],
        becomes=["returned"] * 3,
        marks=[pytest.mark.seed("003", "an interrupt while a tool runs")],
    ),
    "where a follow-up waits, which starts no run": Case(
        QUIET, [ASKS, CUT], "tools", is_open=False, lines=[NEXT], becomes=["returned"]
    ),
}


async def play(case: Case, session: Session, disk: Watched, press: Callable[[], object]) -> None:
    """Begin the run of a case, and press the key when it is time."""
    for kind, line in case.says:
        at(session, kind, partial(session.chain.submit, line))
    match case.when:
        case bytes(words):
            disk.words, disk.act = words, press
        case (kind, nth):
            at(session, kind, press, nth)
        case _:
            pass
    session.chain.submit("Do the task")
    if case.when == QUIET:
        await wait_all_tasks_blocked()
    for line in case.lines:
        session.chain.submit(line)
    if case.when in (QUIET, AT_ONCE):
        for _ in range(case.times):
            press()


@pytest.mark.spec("7", "the checks, at four places")
@pytest.mark.spec("7", "hard: Esc, Ctrl-C, SIGINT")
@pytest.mark.parametrize("case", [pytest.param(case, id=name, marks=case.marks) for name, case in CASES.items()])
async def test_an_interrupt(case: Case, mock_clock: MockClock) -> None:
    mark, disk = Mark(Gates(is_open=case.is_open)), Watched()
    async with open_session(case.model, tools=case.tools(mark), file=disk) as session:
        mark.session = session
        await play(case, session, disk, mark.strike)
        for _ in range(case.jumps):
            await wait_all_tasks_blocked()
            mock_clock.jump(100)
        if case.holds:
            await wait_all_tasks_blocked()
            assert session.chain.is_running
            assert session.chain.submit("are you there?").what == "queued"
            mark.gates.let_all()
        await session.chain.wait_idle()
        assert len(session.of(events.RunStarted)) == 1
        await check_aftermath(mark, ["Do the task", *case.conversation], phase=case.phase)
        assert len(session.of(events.RunStarted)) == len(session.of(events.Result)) == 2
        interrupted = session.of(events.Result)[0]
        found = [text for said in case.conversation for text in said.split(" | ") if text.startswith("waited")]
        assert interrupted.partial_results == tuple(found)
        assert {name: getattr(interrupted, name) for name in case.result} == case.result
        became = [(r.state, r.reason) for r in session.chain.receipts[1:-1]]
        assert became == [(state, "interrupted" if state == "returned" else "") for state in case.becomes]
        assert len(session.of(events.Retry)) == case.retries
        assert not case.did or mark.gates.did == case.did
        assert trio.current_time() == 100 * case.jumps


# ------------------------------------------------------------------------------------------------------ too late for it


@pytest.mark.seed("003", "an interrupt when nothing runs")
async def test_when_idle_it_leaves_nothing_behind() -> None:
    gates = Gates(is_open=True)
    async with open_session(MODEL, tools=gates.tools) as session:
        assert not session.chain.interrupt()
        assert (session.events, len(session.records)) == ([], 1), "no more than the record of the session"
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


# ------------------------------------------------------------------------------------------------- in the very step of


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
    mark = Mark(gates := Gates())
    model = Closing(ScriptedModel.parse(f"rules:\n  - {rule}\n  - {{text: The answer.}}"))
    async with open_session(model, tools=gates.tools) as session:
        mark.session = session

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

    mark = Mark(Gates())
    async with open_session(Failing(ScriptedModel.parse("rules: [{text: The answer.}]"))) as session:
        mark.session = session
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        mark.strike()
        await check_aftermath(mark, ["Do the task"], phase="thinking")
        assert session.of(events.Error) == []


# --------------------------------------------------------------------------------------------------------- slow things


async def test_while_the_journal_is_flushed_the_run_ends_at_once_and_is_told_once_the_disk_is_done() -> None:
    mark, disk = Mark(gates := Gates()), MemoryFile()
    disk.hold()
    async with open_session(MODEL, tools=gates.tools, file=disk) as session:
        mark.session = session
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
    mark, disk = Mark(gates := Gates()), MemoryFile()
    async with open_session(MODEL, tools=gates.tools, file=disk) as session:
        mark.session = session
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        session.chain.submit("shorter")
        await wait_all_tasks_blocked()
        disk.hold()
        session.chain.submit("use the other file")
        gates.let_all()
        await wait_all_tasks_blocked()
        assert len(session.model.requests) == 1
        mark.strike()
        await wait_all_tasks_blocked()
        disk.release()
        entered = ["waited a | waited b", "USER INTERRUPTION: shorter\n\nUSER INTERRUPTION: use the other file"]
        await check_aftermath(mark, ["Do the task", "Looking. | wait | wait", *entered], phase="thinking")
        assert (session.state("L2"), session.state("L3")) == ("delivered", "delivered"), "they were in already"


# --------------------------------------------------------------------------------------------------- lines, and stops


@pytest.mark.parametrize("is_at_once", [True, False])
@pytest.mark.parametrize("first", ["stop", "interrupt"])
async def test_a_stop_and_an_interrupt_while_a_tool_runs_are_an_interrupt_in_either_order(
    first: str, is_at_once: bool
) -> None:
    mark = Mark(gates := Gates())
    async with open_session(MODEL, tools=shielding(mark, goes_on=True)) as session:
        mark.session = session
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
    mark = Mark(gates := Gates())
    async with open_session(STREAM, tools=gates.tools) as session:
        mark.session = session

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
    async with open_session(STREAM, tools=Gates().tools) as session:
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
    async with open_session(STREAM, tools=Gates().tools) as session:
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


STOPS = {
    "before the first step, which gives back what waits": (
        Case(AT_ONCE, [], "thinking", lines=[LINE], becomes=["returned", "handled"]),
        0,
    ),
    # The text beside the calls was shown long ago, and the reply to come has not begun.
    "after the tools": (Case((events.IterationStarted, 2), [ASKS, BOTH], "thinking", becomes=["handled"]), 1),
    "as a line is delivered after the tools": (
        Case(
            (events.UserInterruption, 1),
            [ASKS, BOTH, ENTERED],
            "thinking",
            says=[(events.ToolCall, LINE)],
            becomes=["delivered", "handled"],
        ),
        1,
    ),
}
"""And how many requests there were."""


@pytest.mark.parametrize("name", STOPS)
async def test_a_stop(name: str, mock_clock: MockClock) -> None:
    case, requests = STOPS[name]
    disk = Watched()
    async with open_session(case.model, tools=Gates(is_open=True).tools, file=disk) as session:
        await play(case, session, disk, partial(session.chain.submit, "stop"))
        await wait_all_tasks_blocked()
        assert not session.chain.is_running
        assert session.result.status == ("cancelled_with_partial" if BOTH in case.conversation else "cancelled")
        assert session.result.phase_reached == case.phase
        assert len(session.model.requests) == requests
        assert told(session) == ["Do the task", *case.conversation, STOP_NOTE]
        assert [r.state for r in session.chain.receipts[1:]] == (case.becomes or ["handled"])
        assert len(session.of(events.Retry)) == case.retries
        assert (await session.run("Do another task")).status == "done"
        assert trio.current_time() == 0
        check_invariants(session)
