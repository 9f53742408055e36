"""What a line, a stop and an interrupt do at each place of the loop, and what a full disk does there.

The tests follow the tables in the docstring of ``executor``. The clock jumps, so durations are exact. L1 is the query.
"""

import errno
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import pytest
import trio
from support.checks import check_next_run, checked_session
from support.disks import FullDisk, MemoryFile
from support.sessions import INTERRUPTED, SKIPPED, Session, call_at_event, make_settings, open_session, wait_quiet
from trio.testing import MockClock

from chain import events
from chain.text.wording import INTERRUPT_NOTE, STOP_NOTE
from chain.tools.tool import ToolContext, tool

TOOL_S = 5
IN_RETRY_PAUSE_S = 1  # the pause of BUSY lasts 60 s
MAX_ITERATIONS = 20
ANSWER = "rules: [{when: {interruption: .}, text: Noted.}, {text: The answer.}]"
SLOW = "rules: [{when: {interruption: .}, text: Noted.}, {text: The answer., pace: {chunk: 4, delay_s: 10}}]"
EMPTY_REPLY = "rules: [{text: '', times: 1}, {when: {interruption: .}, text: Noted.}, {text: The answer.}]"
BUSY = """
rules:
  - {times: 1, error: {message: It is busy, retryable: true, retry_after: 60}}
  - {when: {interruption: .}, text: Noted.}
  - {text: The answer.}
"""
TOOLS = """
rules:
  - {when: {interruption: .}, text: Noted.}
  - {times: 1, text: Looking., tools: [{name: work, input: {at: a}}, {name: work, input: {at: b}}]}
  - {text: The answer.}
"""


@tool
async def work(ctx: ToolContext, at: str) -> str:
    """Work for a while."""
    ctx.progress(f"at {at}")
    await trio.sleep(TOOL_S)
    return f"{at} is done"


@dataclass(frozen=True)
class Place:
    """A place of the loop, and the effects of each act of the user there."""

    model: str
    event: tuple[type[events.Event], int] | float
    """The user acts at the nth event of this type, or this many seconds after the start (0: before the first step)."""
    points: str
    """The points (SPEC section 4) at which a plain, an urgent and a now line are delivered, a letter each."""
    before: Sequence[str] = ()
    """The conversation up to the place."""
    after_cut: Sequence[str] = ()
    """What a now line or an interrupt appends to the conversation."""
    after_tools: Sequence[str] = ()
    """What a stop or an urgent line appends to the conversation."""
    cut: str = ""
    """What a now line cuts, as the journal names it."""
    remaining: int = 19
    """The model calls that are left when the now line is delivered."""
    requests: int = 1
    """The number of requests of a run that is stopped there."""
    stop_s: float = 0
    """The seconds from a stop to the end of the run."""
    status: str = "cancelled"
    phase: str = "thinking"


CALLS = "Looking. | work | work"
DONE_2 = "a is done | b is done"
SKIPPED_2 = f"{SKIPPED} | {SKIPPED}"

PLACES = {
    "before A": Place(TOOLS, 0, "AAA", remaining=20, requests=0),
    "from a safe point to the request": Place(SLOW, (events.IterationStarted, 1), "BBN", remaining=20, requests=0),
    "while the model is asked": Place(
        SLOW, (events.TextDelta, 1), "BBN", after_cut=["The "], after_tools=["The "], cut="answering", phase="answering"
    ),
    "in a pause between two requests": Place(BUSY, IN_RETRY_PAUSE_S, "BBN", remaining=20),
    "in a pause between two requests, at its Retry event": Place(BUSY, (events.Retry, 1), "BBN", remaining=20),
    "from the reply to its first tool": Place(
        TOOLS, (events.Reply, 1), "DCC", [CALLS], after_cut=[SKIPPED_2], after_tools=[SKIPPED_2], phase="answering"
    ),
    "while its tools run": Place(
        TOOLS,
        (events.ToolProgress, 1),
        "DCN",
        before=[CALLS],
        after_cut=[f"{INTERRUPTED} | {SKIPPED}"],
        after_tools=[f"a is done | {SKIPPED}"],
        cut="tools",
        stop_s=TOOL_S,
        status="cancelled_with_partial",
        phase="tools",
    ),
    "after its last tool, until D": Place(
        TOOLS, (events.ToolResult, 2), "DDD", before=[CALLS, DONE_2], status="cancelled_with_partial", phase="tools"
    ),
    "after a reply without tools, until B": Place(
        ANSWER, (events.Reply, 1), "BBB", before=["The answer."], phase="answering"
    ),
    "after an empty reply, until B": Place(EMPTY_REPLY, (events.UsageReport, 1), "BBB"),
}
in_every_place = pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)


async def run_with_act(place: Place, session: Session, act: Callable[[], object]) -> float:
    """Play a run in which the user acts at this place. Return the seconds from the act to the end of the run."""
    times: list[float] = []

    def act_now() -> None:
        times.append(trio.current_time())
        act()

    call_at_event(session, events.Result, lambda: times.append(trio.current_time()))
    if isinstance(place.event, tuple):
        event, nth = place.event
        call_at_event(session, event, act_now, nth)
    session.chain.submit("Do the task")
    if not isinstance(place.event, tuple):
        if place.event:
            await trio.sleep(place.event)
        act_now()
    await session.chain.wait_idle()
    acted_at, ended_at = times
    return ended_at - acted_at


@in_every_place
async def test_a_now_line_cuts_and_is_delivered(place: Place, autojump_clock: MockClock) -> None:
    async with open_session(place.model, tools=[work]) as session:
        assert await run_with_act(place, session, lambda: session.chain.submit("!!use B")) == 0
        texts = ["Do the task", *place.before, *place.after_cut, "USER INTERRUPTION: use B"]
        assert session.conversation[: len(texts)] == texts
        [interruption] = session.of(events.UserInterruption)
        _, _, point = place.points
        assert (interruption.point, interruption.remaining) == (point, place.remaining)
        cuts = [(r["what"], r["by"]) for r in session.records if r["type"] == "interrupted"]
        assert cuts == ([(place.cut, "line")] if place.cut else [])
        assert session.result.status == "done"
        iterations_before_delivery = MAX_ITERATIONS - place.remaining
        assert session.result.iterations == iterations_before_delivery + 1, "one iteration is after the delivery"
        await check_next_run(session)


@in_every_place
async def test_a_stop_ends_the_run_after_its_tool(place: Place, autojump_clock: MockClock) -> None:
    async with open_session(place.model, tools=[work]) as session:
        submit = session.chain.submit
        assert await run_with_act(place, session, lambda: (submit("use B"), submit("stop"))) == place.stop_s
        assert (session.result.status, session.result.phase_reached) == (place.status, place.phase)
        assert session.conversation == ["Do the task", *place.before, *place.after_tools, STOP_NOTE]
        assert len(session.model.requests) == place.requests
        assert (session.state("L2"), session.state("L3")) == ("returned", "handled")
        await check_next_run(session)


@in_every_place
async def test_an_interrupt_ends_the_run_at_once(place: Place, autojump_clock: MockClock) -> None:
    async with open_session(place.model, tools=[work]) as session:
        assert await run_with_act(place, session, lambda: (session.chain.submit("use B"), session.interrupt())) == 0
        assert (session.result.status, session.result.phase_reached) == ("interrupted", place.phase)
        assert session.conversation == ["Do the task", *place.before, *place.after_cut, INTERRUPT_NOTE]
        assert len(session.model.requests) == place.requests
        assert session.state("L2") == "returned"
        await check_next_run(session)


@in_every_place
@pytest.mark.parametrize("mark", ["", "!", "!!"], ids=["plain", "urgent", "now"])
async def test_a_question_in_mid_task_resumes_the_task(place: Place, mark: str, autojump_clock: MockClock) -> None:
    """At A, a question is answered with the task. At B, the task is already answered, unless the reply was empty."""
    async with checked_session(place.model, tools=[work]) as session:
        await run_with_act(place, session, lambda: session.chain.submit(f"{mark}how far are you?"))
        [interruption] = session.of(events.UserInterruption)
        assert interruption.point == dict(zip(["", "!", "!!"], place.points, strict=True))[mark]
        is_unanswered_at_b = place.model == EMPTY_REPLY
        is_in_mid_task = interruption.point in ("C", "D", "N") or is_unanswered_at_b
        assert session.sent().count("Your reply was shown to the user.") == is_in_mid_task
        assert session.result.result == ("Noted." if interruption.point == "A" else "The answer.")
        skips_tools = mark == "!" and CALLS in place.before and place.after_tools
        if skips_tools:
            _, calls, results, *_ = session.conversation
            assert (calls, [results]) == (CALLS, place.after_tools)


@pytest.mark.parametrize("interactive", [True, False], ids=["interactive", "headless"])
async def test_a_now_line_at_the_ending_waits(interactive: bool, autojump_clock: MockClock) -> None:
    settings = make_settings(max_iterations=1)
    async with checked_session(TOOLS, tools=[work], settings=settings, interactive=interactive) as session:
        # The only notice says that the run has used its limit.
        call_at_event(session, events.Notice, lambda: session.chain.submit("!!use B"))
        await session.run("Do the task")
        statuses = [result.status for result in session.of(events.Result)]
        assert statuses == (["max_iterations", "done"] if interactive else ["max_iterations"])
        assert session.state("L2") == ("delivered" if interactive else "returned")


@pytest.mark.parametrize("act", ["stop", "interrupt"])
async def test_a_run_ended_at_a_delivery_starts_nothing(act: str, autojump_clock: MockClock) -> None:
    async with checked_session(TOOLS, tools=[work]) as session:
        call_at_event(session, events.ToolProgress, lambda: session.chain.submit("use B"))
        end = session.interrupt if act == "interrupt" else partial(session.chain.submit, "stop")
        call_at_event(session, events.UserInterruption, end)
        result = await session.run("Do the task")
        assert result.status == ("interrupted" if act == "interrupt" else "cancelled_with_partial")
        assert len(session.of(events.IterationStarted)) == result.iterations == 1
        assert session.state("L2") == "delivered"


@pytest.mark.parametrize("attempt", range(6))
async def test_a_now_line_is_never_missed(attempt: int, autojump_clock: MockClock) -> None:
    """Another task sends the line right after the step of an event. Trio chooses at random which task runs next."""
    async with open_session(SLOW) as session, trio.open_nursery() as nursery:

        async def send() -> None:
            session.chain.submit("!!use B")

        call_at_event(session, events.IterationStarted, lambda: nursery.start_soon(send))
        await session.run("Do the task")
        [interruption] = session.of(events.UserInterruption)
        assert (interruption.point, interruption.iteration) == ("N", 1)


@pytest.mark.parametrize("is_dropped", [False, True], ids=["the line is kept", "the line is dropped"])
async def test_dropping_all_carried_lines_ends_their_run(is_dropped: bool, autojump_clock: MockClock) -> None:
    """A line that is left at the iteration limit is carried into a next run."""
    settings = make_settings(max_iterations=1)
    async with checked_session(TOOLS, tools=[work], settings=settings, interactive=True) as session:
        call_at_event(session, events.ToolProgress, lambda: session.chain.submit("use B"))
        if is_dropped:
            call_at_event(session, events.Result, lambda: session.chain.lines.drop("L2"))
        session.chain.submit("Do the task")
        await wait_quiet(session)
        results = [(result.status, result.iterations) for result in session.of(events.Result)]
        assert results == [("max_iterations", 1), ("done", 0 if is_dropped else 1)]
        assert [e.point for e in session.of(events.UserInterruption)] == ([] if is_dropped else ["A"])
        assert len(session.model.requests) == (1 if is_dropped else 2)


@pytest.mark.parametrize("act", ["stop", "interrupt"])
async def test_a_journal_error_outlasts_stops_and_interrupts(act: str) -> None:
    disk = FullDisk()
    async with open_session(ANSWER, file=disk) as session:

        def fill() -> None:
            session.interrupt() if act == "interrupt" else session.chain.submit("stop")
            disk.full = True

        call_at_event(session, events.UsageReport, fill)
        result = await session.run("Do the task")
        assert result.status == "error"
        assert "No space left" in result.result


class DiskWithout(MemoryFile):
    """A disk without room for one type of record, such as "message" or "request sent", while ``is_full``."""

    def __init__(self, type: str) -> None:
        super().__init__()
        self._type, self.is_full = type, True

    def append(self, data: bytes) -> None:
        record = json.loads(data)
        if self.is_full and self._type == f"{record['type']} {record.get('phase', '')}".strip():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().append(data)


RECORDS = {
    "message": ("error", 0, ["error"]),
    "request sent": ("error", 0, ["error"]),
    "request ended": ("error", 1, ["error"]),
    "tool_started": ("error", 1, ["error", "tool_result", "tool_result"]),
    "tool_finished": ("error", 1, ["tool_call", "tool_result", "error", "tool_result"]),
    "run": ("done", 2, ["tool_call", "tool_result"] * 2),
    "result": ("done", 2, ["tool_call", "tool_result"] * 2),
}
"""For each type of record that cannot be written: the status of the run, its requests, and the events of its tools."""


@pytest.mark.parametrize(("type", "status", "requests", "types"), [(type, *row) for type, row in RECORDS.items()])
async def test_an_unwritable_record_ends_most_runs(
    type: str, status: str, requests: int, types: list[str], autojump_clock: MockClock
) -> None:
    file = DiskWithout(type)
    async with open_session(TOOLS, tools=[work], file=file) as session:
        result = await session.run("Do the task")
        assert (result.status, len(session.model.requests)) == (status, requests)
        assert [error.kind for error in session.of(events.Error)] == (["journal"] if status == "error" else [])
        assert [e.type for e in session.of(events.ToolCall, events.ToolResult, events.Error)] == types
        assert len(session.of(events.ToolProgress)) == types.count("tool_call"), "no tool runs without a record"
        file.is_full = False
        assert (await session.run("Do another task")).status == "done"


async def test_an_unrecorded_model_error_is_reported() -> None:
    async with open_session("rules: [{text: x, error: {message: bad}}]", file=DiskWithout("request ended")) as session:
        result = await session.run("Do the task")
        assert (result.status, result.result) == ("error", "bad")


async def test_an_unrecorded_cut_still_cuts(autojump_clock: MockClock) -> None:
    async with open_session(SLOW, file=DiskWithout("interrupted")) as session:
        call_at_event(session, events.TextDelta, lambda: session.chain.submit("!!use B"))
        result = await session.run("Do the task")
        assert (result.status, result.result) == ("done", "Noted.")
        assert [e.point for e in session.of(events.UserInterruption)] == ["N"]


@pytest.mark.parametrize(
    ("unwritable", "cuts"),
    [("no type", [("answering", "time")]), ("interrupted", [])],
    ids=["the cut is recorded", "the cut cannot be recorded"],
)
async def test_the_time_limit_keeps_shown_text(
    unwritable: str, cuts: list[tuple[str, str]], autojump_clock: MockClock
) -> None:
    settings = make_settings(timeout_s=15)  # after the first piece of the answer, before the second one
    async with open_session(SLOW, settings=settings, file=DiskWithout(unwritable)) as session:
        result = await session.run("Do the task")
        assert result.status == "limit_reached"
        assert session.conversation == ["Do the task", "The "]
        assert [(r["what"], r["by"]) for r in session.records if r["type"] == "interrupted"] == cuts


async def test_an_unrecorded_note_is_appended_later(autojump_clock: MockClock) -> None:
    """The shown text of the reply is lost, because it would be emitted as a reply of the next run."""
    disk = FullDisk()
    async with open_session(SLOW, file=disk) as session:

        def fill() -> None:
            disk.full = True
            session.interrupt()

        call_at_event(session, events.TextDelta, fill)
        assert (await session.run("Do the task")).status == "interrupted"
        disk.full = False
        for _ in range(2):
            await session.run("Do another task")
        assert session.conversation == ["Do the task", INTERRUPT_NOTE, *["Do another task", "The answer."] * 2]
