"""Scripted and piped lines: each is sent at its moment, in order, when there is room, or reported as unsent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import trio
from support.checks import check_invariants
from support.disks import MemoryFile
from support.gate import Gate
from support.headless_sessions import HeadlessSession
from support.models import RandomModel, Step
from support.sessions import Session, make_settings, open_session
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.events import Point
from chain.lines.parse import MAX_LINE
from chain.messages import Text, ToolCall
from cli.input.moments import AtIteration, ScheduledLine, parse_moment
from cli.input.sender import MAX_WAITING, MAX_WAITING_CHARS, Sender

RULES = """
rules:
  - {when: {user: ^Your reply was shown}, text: The task is done.}
  - {when: {interruption: '^more'}, text: More., tools: [{name: wait, input: {}}]}
  - {when: {user: ^task, step: 1}, text: Looking., tools: [{name: wait, input: {}}]}
  - {when: {user: ^task, tool: wait}, text: The answer.}
  - {text: Noted.}
"""

ROOM = 10
"""The number of lines that may wait in the chain."""
FITTING = [f"line {n}" for n in range(1, ROOM + 1)]
ONE_TOO_MANY = [*FITTING, "line 11"]
TWO_TOO_MANY = [*ONE_TOO_MANY, "line 12"]
LONG = "x" * 90_000
TOO_LONG_IN_ALL = [f"{n} {LONG}" for n in range(25)]
"""Lines of less than 100,000 characters, and together of more than ``MAX_WAITING_CHARS``."""


@dataclass
class Stage(HeadlessSession):
    """A chain whose tool waits at a gate, the sender of its lines, and the chain's answers to them."""

    sender: Sender
    gate: Gate
    answers: list[tuple[str, str]]
    """Each submitted line, and what became of it."""

    def schedule(self, *lines: str) -> None:
        for line in lines:
            self.sender.schedule(parse_moment(line, strict=True))

    async def start_run(self, *lines: str) -> None:
        """Start a run, wait until its tool runs, and schedule these lines."""
        self.session.chain.start("task")
        await self.gate.started.wait()
        self.schedule(*lines)

    async def finish_run(self) -> None:
        """Open the gate, and wait until no run is active and no line waits for room."""
        self.gate.open.set()
        while self.sender.queued_count or self.session.chain.is_running:
            await self.sender.drain()
            await self.session.chain.wait_idle()

    def texts(self, state: str) -> list[str]:
        """Return the lines with this state in the chain."""
        return [r.text for r in self.session.chain.lines.receipts if r.state == state]

    @property
    def sent(self) -> list[str]:
        """The lines that the model read after the query, in order."""
        _, *texts = [text for text, _ in self.delivered]
        return texts

    @property
    def unsent(self) -> list[str]:
        """The lines that were reported as unsent, and those that still wait."""
        return [*(text for text, _ in self.reported), *self.sender.waiting]

    @property
    def reported(self) -> list[tuple[str, str]]:
        """The lines that were reported as unsent, with the reasons."""
        return [(r.text, r.reason) for r in self.session.of(events.Receipt) if r.state == "unsent"]


@asynccontextmanager
async def opened(*, inbox_size: int = ROOM, handler: str = "") -> AsyncIterator[Stage]:
    """Yield a stage. ``handler`` is the text of the prompt for interruptions, with its rules."""
    gate, answers = Gate(), list[tuple[str, str]]()
    settings = make_settings(inbox_size=inbox_size, handler=handler)
    async with open_session(RULES, tools=[gate.tool], settings=settings) as session, trio.open_nursery() as nursery:
        sender = Sender(session.chain, lambda line, answer: answers.append((line.text, answer.what)))
        await nursery.start(sender.run)
        yield Stage(session, sender, gate, answers)
        await session.chain.wait_idle()
        if session.model.requests:
            check_invariants(session)
        nursery.cancel_scope.cancel()


# ---------------------------------------------------------------------------------------------------------- moments


async def test_a_line_without_moment_is_sent_at_once() -> None:
    async with opened() as stage:
        stage.schedule("task")
        await stage.gate.started.wait()
        stage.schedule("now")
        assert stage.answers == [("task", "started"), ("now", "queued")]
        await stage.finish_run()
        assert stage.delivered == [("task", Point.START), ("now", Point.AFTER_TOOLS)]


async def test_each_moment_comes_once() -> None:
    async with opened() as stage:
        stage.schedule("@tool wait more", "@iteration 1 one", "@answer at the answer", "@done task again")
        await stage.start_run()
        await stage.finish_run()
        assert stage.statuses == ["done", "done"]
        assert stage.sent == ["one", "more", "at the answer", "task again"]


async def test_a_line_follows_the_event_of_its_moment() -> None:
    async with opened() as stage:
        stage.schedule("@iteration 2 say")
        await stage.start_run()
        await stage.finish_run()
        _, moment, line, *_ = stage.session.of(events.IterationStarted, events.LineQueued)
        assert (moment.type, moment.iteration) == ("iteration_started", 2)
        assert (line.type, line.iteration) == ("line_queued", 2)


async def test_lines_after_the_run_each_start_another() -> None:
    async with opened() as stage:
        stage.schedule("@iteration 1 then: next", "@done first", "@done second")
        await stage.start_run()
        await stage.finish_run()
        assert stage.answers == [("then: next", "queued"), ("first", "started"), ("second", "started")]
        assert stage.sent == ["then: next", "first", "second"]
        assert {point for _, point in stage.delivered} == {Point.START}


async def test_seconds_count_from_when_the_line_was_read(autojump_clock: MockClock) -> None:
    async with opened() as stage:
        stage.schedule("@after 3 late", "@after 1.5 early")
        await stage.start_run()
        await trio.sleep(2)
        assert stage.answers == [("early", "queued")]
        await trio.sleep(2)
        assert stage.answers == [("early", "queued"), ("late", "queued")]
        await stage.finish_run()
        waited = {r.text: r.waited_s for r in stage.session.chain.lines.receipts}
        gate_opened = 4
        assert [waited["early"], waited["late"]] == pytest.approx([gate_opened - 1.5, gate_opened - 3])


async def test_a_delayed_line_can_start_a_run(autojump_clock: MockClock) -> None:
    async with opened() as stage:
        stage.gate.open.set()
        stage.schedule("@after 5 task")
        await trio.sleep(4.9)
        assert stage.statuses == []
        await trio.sleep(0.2)
        assert stage.statuses == ["done"]


async def test_a_moment_that_never_comes_leaves_its_line() -> None:
    lines = ["@after 99 late", "@iteration 9 never", "@tool other never either"]
    async with opened() as stage:
        stage.schedule(*lines)
        await stage.start_run()
        await stage.finish_run()
        assert stage.unsent == lines


@pytest.mark.parametrize("moment", ["@tool wait", "@iteration 1"])
async def test_a_moment_within_a_run_never_starts_one(moment: str) -> None:
    async with opened() as stage:
        stage.schedule(*(f"{moment} {line}" for line in ONE_TOO_MANY))
        await stage.start_run()
        await wait_all_tasks_blocked()
        assert stage.sender.queued_count == 1
        stage.session.chain.interrupt()
        await stage.session.chain.wait_idle()
        await wait_all_tasks_blocked()
        assert stage.statuses == ["interrupted"]
        assert stage.texts("returned") == FITTING
        assert stage.unsent == [f"{moment} line 11"]


# ------------------------------------------------------------------------------------------------------ backpressure


@pytest.mark.parametrize("excess", [0, 15])
@pytest.mark.parametrize("moment", ["", "@tool wait "], ids=["without moment", "at a tool"])
async def test_lines_wait_for_room_in_order(moment: str, excess: int) -> None:
    later = [f"later {n}" for n in range(excess)]
    async with opened() as stage:
        if moment:
            stage.schedule(*(f"{moment}{line}" for line in [*FITTING, *later]))
        await stage.start_run(*([] if moment else [*FITTING, *later]))
        await wait_all_tasks_blocked()
        assert stage.unsent == [f"{moment}{line}" for line in later]
        assert len(stage.session.chain.lines.waiting) == ROOM
        await stage.finish_run()
        assert stage.sent == [*FITTING, *later]
        assert stage.texts("refused") == []
        first, *_ = stage.session.of(events.UserInterruption)
        assert first.message.split("\n\n") == FITTING
        assert stage.statuses == ["done"]


async def test_a_later_line_does_not_overtake(autojump_clock: MockClock) -> None:
    async with opened(inbox_size=1) as stage:
        await stage.start_run("one", "two", "@after 1 three")
        await trio.sleep(2)
        stage.schedule("four")
        assert stage.sender.queued_count == 3
        await stage.finish_run()
        assert stage.sent == ["one", "two", "three", "four"]


async def test_a_queued_line_can_start_the_next_run() -> None:
    lines = ["then: second", "then: third", "then: fourth"]
    async with opened(inbox_size=2) as stage:
        await stage.start_run(*lines)
        assert stage.sender.queued_count == 1
        await stage.finish_run()
        assert stage.statuses == ["done"] * 4
        assert stage.sent == lines


async def test_refused_lines_need_no_room() -> None:
    async with opened() as stage:
        await stage.start_run("todo: add", *ONE_TOO_MANY, "x" * (MAX_LINE + 1))
        assert stage.sender.queued_count == 1
        assert [what for _, what in stage.answers] == ["refused", *["queued"] * ROOM, "refused"]
        await stage.finish_run()
        assert stage.sent == ONE_TOO_MANY


# -------------------------------------------------------------------------------------------------------------- stops


@pytest.mark.parametrize(
    ("stop", "handler"),
    [("Stop!", ""), ("enough", "rules: [{match: ^enough, action: stop}]")],
    ids=["stop", "rule of the handler"],
)
async def test_a_stop_overtakes_lines_without_room(stop: str, handler: str) -> None:
    async with opened(handler=handler) as stage:
        await stage.start_run(*TWO_TOO_MANY, "@iteration 9 never", stop)
        *_, answer = stage.answers
        assert answer == (stop, "stopping")
        await stage.finish_run()
        assert stage.statuses == ["cancelled_with_partial"]
        assert (stage.texts("returned"), stage.texts("handled")) == (FITTING, [stop])
        overtaken = [(line, "a stop came while it waited for room") for line in ("line 11", "line 12")]
        assert stage.reported == overtaken
        stage.sender.discard()
        assert stage.reported == [*overtaken, ("@iteration 9 never", "its moment did not come")]
        [result] = stage.session.of(events.Result)
        assert (result.unsent, result.exit_code) == (("line 11", "line 12"), 3)


async def test_an_interrupt_leaves_queued_lines_unsent() -> None:
    async with opened() as stage:
        await stage.start_run(*TWO_TOO_MANY)
        stage.session.chain.interrupt()
        await stage.session.chain.wait_idle()
        assert stage.statuses == ["interrupted"]
        assert stage.unsent == ["line 11", "line 12"]


async def test_a_line_after_a_stop_starts_a_run() -> None:
    async with opened() as stage:
        stage.schedule("stop")
        assert stage.answers == [("stop", "nothing")]
        await stage.start_run("stop", "task two", "three")
        assert stage.sender.queued_count == 2
        await stage.finish_run()
        assert stage.statuses == ["cancelled_with_partial", "done"]
        assert stage.sent == ["task two", "three"]


# -------------------------------------------------------------------------------------------------------------- limits


async def test_a_full_sender_waits_for_possible_moments() -> None:
    async with opened() as stage, trio.open_nursery() as nursery:
        await stage.start_run(*(f"@iteration 2 line {n}" for n in range(MAX_WAITING)))
        nursery.start_soon(stage.sender.wait_for_capacity)
        await wait_all_tasks_blocked()
        assert nursery.child_tasks, "the full sender still waits"
        stage.gate.open.set()
        await stage.session.chain.wait_idle()
        await wait_all_tasks_blocked()
        assert not nursery.child_tasks


async def test_a_full_sender_waits_for_a_delayed_line(autojump_clock: MockClock) -> None:
    async with opened() as stage:
        stage.schedule("@after 30 task", *(f"@iteration 9 line {n}" for n in range(MAX_WAITING - 1)))
        start = trio.current_time()
        await stage.sender.wait_for_capacity()
        assert trio.current_time() == start + 30
        await stage.finish_run()
        assert len(stage.sender.waiting) == MAX_WAITING - 1


async def test_the_oldest_line_gives_way_without_a_run() -> None:
    async with opened() as stage:
        stage.schedule(*(f"@iteration 2 line {n}" for n in range(MAX_WAITING)))
        await stage.sender.wait_for_capacity()
        assert len(stage.sender.waiting) == MAX_WAITING - 1
        assert stage.reported == [("@iteration 2 line 0", "too many lines are waiting for their moments")]


async def test_waiting_lines_are_limited_in_characters() -> None:
    async with opened() as stage:
        stage.schedule(*(f"@iteration 2 {line}" for line in TOO_LONG_IN_ALL))
        await stage.sender.wait_for_capacity()
        assert sum(map(len, stage.sender.waiting)) < MAX_WAITING_CHARS


async def test_a_line_that_is_too_long_is_refused() -> None:
    async with opened() as stage:
        stage.schedule(f"@iteration 2 {'x' * (MAX_LINE + 1)}")
        [refused] = [r for r in stage.session.of(events.Receipt) if r.state == "refused"]
        assert "100,000" in refused.reason


async def test_every_sent_line_frees_its_place() -> None:
    async with opened() as stage:
        await stage.start_run(*FITTING, *TOO_LONG_IN_ALL)
        assert not stage.sender.has_capacity
        await stage.finish_run()
        assert stage.sender.has_capacity


async def test_a_stop_frees_the_places_of_queued_lines() -> None:
    async with opened() as stage:
        await stage.start_run(*FITTING, *TOO_LONG_IN_ALL, "stop")
        assert (stage.sender.queued_count, stage.sender.has_capacity) == (0, True)
        await stage.finish_run()


async def test_every_dropped_line_frees_its_place() -> None:
    async with opened() as stage:
        for n in range(len(TOO_LONG_IN_ALL)):
            stage.sender.schedule(ScheduledLine(AtIteration(99), LONG, "long", id=str(n)))
        assert not stage.sender.has_capacity
        assert all(stage.sender.drop(str(n)) for n in range(10))
        assert stage.sender.has_capacity


async def test_every_discarded_line_frees_its_place() -> None:
    async with opened() as stage:
        stage.schedule(*(f"@iteration 99 {line}" for line in TOO_LONG_IN_ALL))
        assert not stage.sender.has_capacity
        stage.sender.discard()
        assert stage.sender.has_capacity


# ------------------------------------------------------------------------------------------------- to another chain


@asynccontextmanager
async def paused(*lines: str) -> AsyncIterator[tuple[Stage, Session]]:
    """Yield a paused sender with these lines, and another chain."""
    async with opened() as stage, open_session(RULES, file=MemoryFile()) as other:
        stage.sender.pause()
        stage.schedule(*lines)
        yield stage, other
        await other.chain.wait_idle()
        check_invariants(other)


async def test_scheduled_lines_move_to_the_next_chain(autojump_clock: MockClock) -> None:
    lines = ("@done at its end", "@after 5 later", "@iteration 9 never")
    async with paused(*lines) as (stage, other):
        await trio.sleep(1)
        stage.sender.resume(other.chain)
        await stage.session.run("in the previous chain")
        assert stage.sender.waiting == lines
        await other.run("in the next chain")
        await trio.sleep(10)
        await other.chain.wait_idle()
        assert [run.query for run in other.of(events.RunStarted)] == ["in the next chain", "at its end", "later"]
        assert [run.query for run in stage.session.of(events.RunStarted)] == ["in the previous chain"]
        stage.sender.discard()
        assert [r.text for r in other.of(events.Receipt) if r.state == "unsent"] == ["@iteration 9 never"]


@pytest.mark.parametrize("is_same", [True, False], ids=["same chain", "another chain"])
async def test_lines_of_a_pause_are_sent_after_it(is_same: bool, autojump_clock: MockClock) -> None:
    async with paused("the first", "@after 1 the second") as (stage, other):
        await trio.sleep(5)
        assert (stage.answers, stage.sender.queued_count) == ([], 2)
        resumed, unused = (stage.session, other) if is_same else (other, stage.session)
        stage.sender.resume(resumed.chain)
        await wait_all_tasks_blocked()
        await resumed.chain.wait_idle()
        assert stage.answers == [("the first", "started"), ("the second", "queued")]
        assert unused.of(events.RunStarted) == []


async def test_answers_are_for_questions_of_the_next_chain() -> None:
    ask = ToolCall("c1", "ask_user_question", {"question": "Which?", "options": ["a"]})
    model = RandomModel([Step((ask,)), Step((Text("The end."),))])
    async with opened() as stage, open_session(model, settings=make_settings(agents=True)) as other:
        stage.schedule("@question a")
        stage.sender.pause()
        stage.sender.resume(other.chain)
        await other.run("ask me")
        [answer] = other.of(events.Answer)
        assert (answer.text, answer.decision) == ("a", "answered")
        assert stage.unsent == []
