"""The tables in the docstring of ``executor``, row by row, and two rows of ``state`` (the others: ``test_state``).

The first table says what each act of the user does at each place of the loop. A place is an event: the user acts in the
step of that event. The clock jumps, so that durations can be checked exactly.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import pytest
import trio
from support import (
    INTERRUPTED,
    SKIPPED,
    FullDisk,
    MemoryFile,
    Session,
    at,
    checked_session,
    open_session,
    settings,
    wait_quiet,
)
from support.checks import check_next_run
from trio.testing import MockClock

from chain import events
from chain.text.wording import INTERRUPT_NOTE, STOP_NOTE
from chain.tools.tool import ToolContext, tool

TOOL_S = 5
ANSWER = "rules: [{when: {interruption: .}, text: Noted.}, {text: The answer.}]"
SLOW = "rules: [{when: {interruption: .}, text: Noted.}, {text: The answer., pace: {chunk: 4, delay_s: 10}}]"
EMPTY = "rules: [{text: '', times: 1}, {when: {interruption: .}, text: Noted.}, {text: The answer.}]"
FAILS = """
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


# ------------------------------------------------------------------ executor: where the user finds a run, and the acts


@dataclass(frozen=True)
class Place:
    """A place of the loop, and what each act leaves there.

    ``event`` is the kind of an event and its number, or the seconds from the start, 0 before the run's first step.
    ``points`` are those at which a plain, an urgent and a now line enter. ``before`` is the conversation up to the
    place, ``cut`` what a now line or an interrupt adds, ``held_up`` what a stop or an urgent line adds. ``cuts`` is
    what the now line has cut, by the journal, and ``remaining`` the calls that are left as it enters. ``asked`` is the
    number of requests of a run that ends there, ``stop_s`` the time until a stop has ended it, ``status`` and ``phase``
    those of its result.
    """

    model: str
    event: tuple[type[events.Event], int] | float
    points: str
    before: Sequence[str] = ()
    cut: Sequence[str] = ()
    held_up: Sequence[str] = ()
    cuts: str = ""
    remaining: int = 19
    asked: int = 1
    stop_s: float = 0
    status: str = "cancelled"
    phase: str = "thinking"


CALLS = "Looking. | work | work"
BOTH = "a is done | b is done"
NEITHER = f"{SKIPPED} | {SKIPPED}"

PLACES = {
    "before A": Place(TOOLS, 0, "AAA", remaining=20, asked=0),
    "from a safe point to the request": Place(SLOW, (events.IterationStarted, 1), "BBN", remaining=20, asked=0),
    "while the model is asked": Place(
        SLOW, (events.TextDelta, 1), "BBN", cut=["The "], held_up=["The "], cuts="answering", phase="answering"
    ),
    "in a pause between two requests": Place(FAILS, 1, "BBN", remaining=20),
    "in a pause between two requests, in the step of its event": Place(FAILS, (events.Retry, 1), "BBN", remaining=20),
    "from the reply to its first tool": Place(
        TOOLS, (events.Reply, 1), "DCC", before=[CALLS], cut=[NEITHER], held_up=[NEITHER], phase="answering"
    ),
    "while its tools run": Place(
        TOOLS,
        (events.ToolProgress, 1),
        "DCN",
        before=[CALLS],
        cut=[f"{INTERRUPTED} | {SKIPPED}"],
        held_up=[f"a is done | {SKIPPED}"],
        cuts="tools",
        stop_s=TOOL_S,
        status="cancelled_with_partial",
        phase="tools",
    ),
    "after its last tool, until D": Place(
        TOOLS, (events.ToolResult, 2), "DDD", before=[CALLS, BOTH], status="cancelled_with_partial", phase="tools"
    ),
    "after a reply without tools, until B": Place(
        ANSWER, (events.Reply, 1), "BBB", before=["The answer."], phase="answering"
    ),
    "after an empty reply, until B": Place(EMPTY, (events.UsageReport, 1), "BBB"),
}
in_every_place = pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)


async def act_in(place: Place, session: Session, act: Callable[[], object]) -> float:
    """Play a run with the act in its place. Returns the seconds between the two."""
    times: list[float] = []

    def act_now() -> None:
        times.append(trio.current_time())
        act()

    at(session, events.Result, lambda: times.append(trio.current_time()))
    if isinstance(place.event, tuple):
        at(session, place.event[0], act_now, place.event[1])
    session.chain.submit("Do the task")
    if not isinstance(place.event, tuple):
        if place.event:
            await trio.sleep(place.event)
        act_now()
    await session.chain.wait_idle()
    return times[1] - times[0]


@in_every_place
async def test_a_now_line(place: Place, autojump_clock: MockClock) -> None:
    async with open_session(place.model, tools=[work]) as session:
        assert await act_in(place, session, lambda: session.chain.submit("!!use B")) == 0
        texts = ["Do the task", *place.before, *place.cut, "USER INTERRUPTION: use B"]
        assert session.conversation[: len(texts)] == texts
        [entered] = session.of(events.UserInterruption)
        assert (entered.point, entered.remaining) == (place.points[2], place.remaining)
        cuts = [(r["what"], r["by"]) for r in session.records if r["type"] == "interrupted"]
        assert cuts == ([(place.cuts, "line")] if place.cuts else [])
        assert (session.result.status, session.result.iterations) == ("done", 1 if place.remaining == 20 else 2)
        await check_next_run(session)


@in_every_place
async def test_a_stop(place: Place, autojump_clock: MockClock) -> None:
    async with open_session(place.model, tools=[work]) as session:
        took = await act_in(place, session, lambda: (session.chain.submit("use B"), session.chain.submit("stop")))
        assert took == place.stop_s
        assert (session.result.status, session.result.phase_reached) == (place.status, place.phase)
        assert session.conversation == ["Do the task", *place.before, *place.held_up, STOP_NOTE]
        assert len(session.model.requests) == place.asked
        assert (session.state("L2"), session.state("L3")) == ("returned", "handled")
        await check_next_run(session)


@in_every_place
async def test_an_interrupt(place: Place, autojump_clock: MockClock) -> None:
    async with open_session(place.model, tools=[work]) as session:
        assert await act_in(place, session, lambda: (session.chain.submit("use B"), session.interrupt())) == 0
        assert (session.result.status, session.result.phase_reached) == ("interrupted", place.phase)
        assert session.conversation == ["Do the task", *place.before, *place.cut, INTERRUPT_NOTE]
        assert len(session.model.requests) == place.asked
        assert session.state("L2") == "returned"
        await check_next_run(session)


@in_every_place
@pytest.mark.parametrize("urgency", ["", "!", "!!"])
async def test_a_question_in_mid_task_resumes_the_task(place: Place, urgency: str, autojump_clock: MockClock) -> None:
    """After the task was answered, at B, it is all that is left to answer; at A it comes along with the task."""
    async with checked_session(place.model, tools=[work]) as session:
        await act_in(place, session, lambda: session.chain.submit(f"{urgency}how far are you?"))
        [entered] = session.of(events.UserInterruption)
        assert entered.point == place.points[len(urgency)]
        is_in_mid_task = entered.point in ("C", "D", "N") or place.model == EMPTY
        assert session.sent().count("Your reply was shown to the user.") == is_in_mid_task
        assert session.result.result == ("Noted." if entered.point == "A" else "The answer.")
        if urgency == "!" and place.held_up and place.before:
            assert session.conversation[2:3] == list(place.held_up)


@pytest.mark.parametrize("interactive", [True, False])
async def test_a_now_line_at_the_ending(interactive: bool, autojump_clock: MockClock) -> None:
    use = settings(max_iterations=1)
    async with checked_session(TOOLS, tools=[work], use=use, interactive=interactive) as session:
        at(session, events.Notice, lambda: session.chain.submit("!!use B"))
        await session.run("Do the task")
        statuses = [result.status for result in session.of(events.Result)]
        assert statuses == (["max_iterations", "done"] if interactive else ["max_iterations"])
        assert session.state("L2") == ("delivered" if interactive else "returned")


@pytest.mark.parametrize("act", ["stop", "interrupt"])
async def test_a_run_ended_at_a_delivery_starts_nothing(act: str, autojump_clock: MockClock) -> None:
    async with checked_session(TOOLS, tools=[work]) as session:
        at(session, events.ToolProgress, lambda: session.chain.submit("use B"))
        end = session.interrupt if act == "interrupt" else partial(session.chain.submit, "stop")
        at(session, events.UserInterruption, end)
        result = await session.run("Do the task")
        assert result.status == ("interrupted" if act == "interrupt" else "cancelled_with_partial")
        assert len(session.of(events.IterationStarted)) == result.iterations == 1
        assert session.state("L2") == "delivered"


@pytest.mark.parametrize("attempt", range(6))
async def test_a_now_line_is_never_missed(attempt: int, autojump_clock: MockClock) -> None:
    """Another task sends it right after the step of an event. Trio draws which task runs next."""
    async with open_session(SLOW) as session, trio.open_nursery() as nursery:

        async def say() -> None:
            session.chain.submit("!!use B")

        at(session, events.IterationStarted, lambda: nursery.start_soon(say))
        await session.run("Do the task")
        [entered] = session.of(events.UserInterruption)
        assert (entered.point, entered.iteration) == ("N", 1)


# ---------------------------------------------------------------------------------------- executor: where a run begins


@pytest.mark.parametrize("is_dropped", [False, True])
async def test_dropping_all_carried_lines_ends_their_run(is_dropped: bool, autojump_clock: MockClock) -> None:
    async with checked_session(TOOLS, tools=[work], use=settings(max_iterations=1), interactive=True) as session:
        at(session, events.ToolProgress, lambda: session.chain.submit("use B"))
        at(session, events.Result, lambda: is_dropped and session.chain.lines.drop("L2"))
        session.chain.submit("Do the task")
        await wait_quiet(session)
        statuses = [(result.status, result.iterations) for result in session.of(events.Result)]
        assert statuses == [("max_iterations", 1), ("done", 0 if is_dropped else 1)]
        assert [e.point for e in session.of(events.UserInterruption)] == ([] if is_dropped else ["A"])
        assert len(session.model.requests) == (1 if is_dropped else 2)


# ------------------------------------------------------------------------- state: which ending stands, in the same step


@pytest.mark.parametrize("act", ["stop", "interrupt"])
async def test_a_journal_error_outlasts_stops_and_interrupts(act: str) -> None:
    disk = FullDisk()
    async with open_session(ANSWER, file=disk) as session:

        def fill() -> None:
            session.interrupt() if act == "interrupt" else session.chain.submit("stop")
            disk.full = True

        at(session, events.UsageReport, fill)
        result = await session.run("Do the task")
        assert result.status == "error"
        assert "No space left" in result.result


async def test_a_model_error_outlasts_a_stop() -> None:
    async with checked_session("rules: [{text: x, error: {message: bad request}}]") as session:
        at(session, events.Error, lambda: session.chain.submit("stop"))
        result = await session.run("Do the task")
        assert (result.status, result.result) == ("error", "bad request")


# -------------------------------------------------------------------------------- executor: where the disk is full


class TakesNo(MemoryFile):
    """A disk that has no room for one kind of record, once ``is_full``."""

    def __init__(self, type: str) -> None:
        super().__init__()
        self._type, self.is_full = type, True

    def append(self, data: bytes) -> None:
        record = json.loads(data)
        if self.is_full and self._type == f"{record['type']} {record.get('phase', '')}".strip():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().append(data)


@pytest.mark.parametrize(
    ("type", "status", "asked", "kinds"),
    [
        # What has to be on record before it happens.
        ("message", "error", 0, ["error"]),
        ("request sent", "error", 0, ["error"]),
        ("tool_started", "error", 1, ["error", "tool_result", "tool_result"]),
        # What only tells of an ending, but for that of a tool and of a request.
        ("request ended", "error", 1, ["error"]),
        ("tool_finished", "error", 1, ["tool_call", "tool_result", "error", "tool_result"]),
        ("run", "done", 2, ["tool_call", "tool_result"] * 2),
        ("result", "done", 2, ["tool_call", "tool_result"] * 2),
    ],
)
async def test_what_cannot_be_recorded(
    type: str, status: str, asked: int, kinds: list[str], autojump_clock: MockClock
) -> None:
    file = TakesNo(type)
    async with open_session(TOOLS, tools=[work], file=file) as session:
        result = await session.run("Do the task")
        assert (result.status, len(session.model.requests)) == (status, asked)
        assert [error.kind for error in session.of(events.Error)] == (["journal"] if status == "error" else [])
        assert [e.type for e in session.of(events.ToolCall, events.ToolResult, events.Error)] == kinds
        assert len(session.of(events.ToolProgress)) == kinds.count("tool_call"), "no tool runs that is not on record"
        file.is_full = False
        assert (await session.run("Do another task")).status == "done"


async def test_an_unrecorded_model_error_is_reported() -> None:
    async with open_session("rules: [{text: x, error: {message: bad}}]", file=TakesNo("request ended")) as session:
        result = await session.run("Do the task")
        assert (result.status, result.result) == ("error", "bad")


async def test_an_unrecorded_cut_still_cuts(autojump_clock: MockClock) -> None:
    async with open_session(SLOW, file=TakesNo("interrupted")) as session:
        at(session, events.TextDelta, lambda: session.chain.submit("!!use B"))
        result = await session.run("Do the task")
        assert (result.status, result.result) == ("done", "Noted.")
        assert [e.point for e in session.of(events.UserInterruption)] == ["N"]


@pytest.mark.parametrize("is_full", [False, True])
async def test_the_time_limit_keeps_shown_text(is_full: bool, autojump_clock: MockClock) -> None:
    file = TakesNo("interrupted" if is_full else "nothing")
    async with open_session(SLOW, use=settings(timeout_s=15), file=file) as session:
        result = await session.run("Do the task")
        assert result.status == "limit_reached"
        assert session.conversation == ["Do the task", "The "]
        cuts = [(r["what"], r["by"]) for r in session.records if r["type"] == "interrupted"]
        assert cuts == ([] if is_full else [("answering", "time")])


async def test_an_unrecorded_note_is_appended_later(
    autojump_clock: MockClock,
) -> None:
    """The shown text of the reply is lost, because it would be emitted as a reply of the next run."""
    disk = FullDisk()
    async with open_session(SLOW, file=disk) as session:

        def fill() -> None:
            disk.full = True
            session.interrupt()

        at(session, events.TextDelta, fill)
        assert (await session.run("Do the task")).status == "interrupted"
        disk.full = False
        for _ in range(2):
            await session.run("Do another task")
        assert session.conversation[:3] == ["Do the task", INTERRUPT_NOTE, "Do another task"]
        assert session.conversation.count(INTERRUPT_NOTE) == 1
