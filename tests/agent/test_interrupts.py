"""Esc at every place where it could go wrong, on trio's test clock: what is cancelled, kept, told and given back.

The places are rows of a table, the first of them those at which seed 003 found no check: after the model's response,
before each tool, after the tools, before the follow-up call. Each test ends in ``check_aftermath``: nothing started
after the interrupt, the conversation says what happened, every line has its receipt, and the next run works on the same
session.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import pytest
import trio
from support import INTERRUPTED, SKIPPED, MemoryFile, Session, at, check_invariants, open_session
from support.gates import Gates
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.errors import ModelError
from chain.model import Delta, Model, Reply, Request
from chain.providers.scripted.scripted_model import ScriptedModel
from chain.text.wording import INTERRUPT_NOTE, INTERRUPTED_TEXT, STOP_NOTE
from chain.tools.tool import Tool, ToolContext, tool

MODEL = """
rules:
  - {times: 1, text: Looking., tools: [{name: wait, input: {at: a}}, {name: wait, input: {at: b}}]}
  - {text: The answer.}
"""


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
    assert session.conversation == [*conversation, INTERRUPT_NOTE]
    assert session.state("L1") == "delivered"
    assert not session.chain.is_running
    assert not session.chain.lines.waiting
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
    the key. ``becomes`` are the states of all of them. ``holds``: a tool keeps the run from ending until its gate is
    opened.
    """

    when: str | bytes | tuple[type[events.Event], int] | None
    conversation: Sequence[str]
    phase: str
    tools: Callable[[Mark], list[Tool]] = lambda mark: mark.gates.tools
    is_open: bool = True
    says: Sequence[tuple[type[events.Event], str]] = ()
    lines: Sequence[str] = ()
    becomes: Sequence[str] = ()
    times: int = 1
    holds: bool = False
    did: Sequence[str] = ()


CASES = {
    # The start of a tool is on record when it is told of, so the result says that there may be effects, though there
    # are none.
    "before the first tool": Case((events.ToolCall, 1), [ASKS, CUT], "tools"),
    "before another tool": Case(
        (events.ToolResult, 1),
        [ASKS, f"waited a | {SKIPPED}"],
        "tools",
    ),
    "before the follow-up call, which is counted and not made": Case(
        (events.IterationStarted, 2),
        [ASKS, BOTH],
        "thinking",
    ),
    # When and how often.
    "three times in a row": Case(QUIET, [ASKS, CUT], "tools", is_open=False, times=3),
    "twice, the second time as the tool is taken down": Case(
        QUIET, [ASKS, CUT], "tools", tools=striking_again, is_open=False, did=["+a", "!a", "struck a"]
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
    "as a line is written into the conversation": Case(
        b"USER INTERRUPTION", [ASKS, BOTH, ENTERED], "thinking", says=[(events.ToolCall, LINE)], becomes=["delivered"]
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
        lines=[LINE, "!at once", "context: it is late", "todo: add x"],
        becomes=["returned"] * 4,
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
    if case.when == QUIET:
        for _ in range(case.times):
            press()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_an_interrupt(case: Case, mock_clock: MockClock) -> None:
    mark, disk = Mark(Gates(is_open=case.is_open)), Watched()
    async with open_session(MODEL, tools=case.tools(mark), file=disk) as session:
        mark.session = session
        await play(case, session, disk, mark.strike)
        if case.holds:
            await wait_all_tasks_blocked()
            assert session.chain.is_running
            assert session.chain.submit("are you there?").what == "queued"
            mark.gates.let_all()
        await session.chain.wait_idle()
        assert len(session.of(events.RunStarted)) == 1
        await check_aftermath(mark, ["Do the task", *case.conversation], phase=case.phase)
        assert len(session.of(events.RunStarted)) == len(session.of(events.Result)) == 2
        assert session.chain.plan.tasks == (), "a todo that came back was not done"
        interrupted = session.of(events.Result)[0]
        assert interrupted.iterations == mark.requests + (case.when == (events.IterationStarted, 2))
        found = [text for said in case.conversation for text in said.split(" | ") if text.startswith("waited")]
        assert interrupted.partial_results == tuple(found)
        became = [(r.state, r.reason) for r in session.chain.lines.receipts[1:-1]]
        assert became == [(state, "interrupted" if state == "returned" else "") for state in case.becomes]
        assert not case.did or mark.gates.did == case.did
        assert trio.current_time() == 0


# ------------------------------------------------------------------------------------------------------ too late for it


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
        assert INTERRUPT_NOTE not in session.conversation
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
class Closing(Model):
    """A model that does something in the step in which its reply arrives, each time."""

    inner: ScriptedModel
    act: Callable[[], None] = lambda: None
    name: str = "closing"

    async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        reply = await self.inner.reply(request, on_delta)
        self.act()
        return reply


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
        assert STOP_NOTE not in session.conversation


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
        assert session.conversation == ["Do the task", "The answer.", STOP_NOTE]
        assert (await session.run("Do another task")).status == "done"
        check_invariants(session)
