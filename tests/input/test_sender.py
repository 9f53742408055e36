"""Scripted and piped lines: each is sent at its moment, in order, as room permits, or reported as unsent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import trio
from support import MemoryFile, Session, check_invariants, open_session, settings
from support.gate import Gate
from support.headless_sessions import HeadlessSession
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
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

TWELVE = [f"line {n}" for n in range(1, 13)]
"""Two more than there is room for."""


@dataclass
class Sending(HeadlessSession):
    """A chain whose tool waits, its sender, and the chain's answers to the lines."""

    sender: Sender
    gate: Gate
    answers: list[tuple[str, str]]

    def schedule(self, *lines: str) -> None:
        for line in lines:
            self.sender.schedule(parse_moment(line, strict=True))

    async def begin(self, *lines: str) -> None:
        """Start a run, wait until its tool runs, and schedule these lines."""
        self.session.chain.start("task")
        await self.gate.started.wait()
        self.schedule(*lines)

    async def finish(self) -> None:
        """Let the tool end, and wait until nothing runs and no line waits for room."""
        self.gate.open.set()
        while self.sender.queued_count or self.session.chain.is_running:
            await self.sender.drain()
            await self.session.chain.wait_idle()

    def texts(self, state: str) -> list[str]:
        return [r.text for r in self.session.chain.lines.receipts if r.state == state]

    @property
    def sent(self) -> list[str]:
        """The lines that the model read after the query, in order."""
        return [text for text, _ in self.delivered][1:]

    @property
    def unsent(self) -> list[str]:
        """The lines that were reported as unsent, and those that still wait."""
        reported = [r.text for r in self.session.of(events.Receipt) if r.state == "unsent"]
        return [*reported, *self.sender.waiting]


@asynccontextmanager
async def opened(*, inbox_size: int = 10, handler: str = "") -> AsyncIterator[Sending]:
    gate, answers = Gate(), list[tuple[str, str]]()
    use = settings(inbox_size=inbox_size, handler=handler)
    async with open_session(RULES, tools=[gate.tool], use=use) as session, trio.open_nursery() as nursery:
        sender = Sender(session.chain, lambda line, answer: answers.append((line.text, answer.what)))
        await nursery.start(sender.run)
        yield Sending(session, sender, gate, answers)
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
        await stage.finish()
        assert stage.delivered == [("task", "start"), ("now", "D")]


async def test_each_moment_comes_once() -> None:
    async with opened() as stage:
        stage.schedule("@tool wait more", "@iteration 1 one", "@answer at the answer", "@done task again")
        await stage.begin()
        await stage.finish()
        assert stage.statuses == ["done", "done"]
        assert stage.sent == ["one", "more", "at the answer", "task again"]


async def test_a_line_follows_the_event_of_its_moment() -> None:
    async with opened() as stage:
        stage.schedule("@iteration 2 say")
        await stage.begin()
        await stage.finish()
        found = [e for e in stage.session.events if isinstance(e, events.IterationStarted | events.LineQueued)]
        assert [(e.type, e.iteration) for e in found[1:3]] == [("iteration_started", 2), ("line_queued", 2)]


async def test_a_line_after_the_run_starts_another() -> None:
    """Also after a run that a ``then:`` line starts."""
    async with opened() as stage:
        stage.schedule("@iteration 1 then: next", "@done first", "@done second")
        await stage.begin()
        await stage.finish()
        assert stage.answers == [("then: next", "queued"), ("first", "started"), ("second", "started")]
        assert stage.delivered[1:] == [("then: next", "start"), ("first", "start"), ("second", "start")]


async def test_seconds_count_from_when_the_line_was_read(autojump_clock: MockClock) -> None:
    async with opened() as stage:
        stage.schedule("@after 3 late", "@after 1.5 early")
        await stage.begin()
        await trio.sleep(2)
        assert stage.answers == [("early", "queued")]
        await trio.sleep(2)
        assert stage.answers == [("early", "queued"), ("late", "queued")]
        await stage.finish()
        waited = {r.text: r.waited_s for r in stage.session.chain.lines.receipts}
        assert [waited["early"], waited["late"]] == pytest.approx([2.5, 1])


async def test_a_delayed_line_can_start_a_run(autojump_clock: MockClock) -> None:
    async with opened() as stage:
        stage.gate.open.set()
        stage.schedule("@after 5 task")
        await trio.sleep(4)
        assert stage.statuses == []
        await trio.sleep(2)
        assert stage.statuses == ["done"]


async def test_a_moment_that_never_comes_leaves_its_line() -> None:
    lines = ["@after 99 late", "@iteration 9 never", "@tool other never either"]
    async with opened() as stage:
        stage.schedule(*lines)
        await stage.begin()
        await stage.finish()
        assert stage.unsent == lines


@pytest.mark.parametrize("moment", ["@tool wait", "@iteration 1"])
async def test_a_moment_within_a_run_never_starts_one(moment: str) -> None:
    async with opened() as stage:
        stage.schedule(*(f"{moment} {line}" for line in TWELVE[:11]))
        await stage.begin()
        await wait_all_tasks_blocked()
        assert stage.sender.queued_count == 1
        stage.session.chain.interrupt()
        await stage.session.chain.wait_idle()
        await wait_all_tasks_blocked()
        assert stage.statuses == ["interrupted"]
        assert stage.texts("returned") == TWELVE[:10]
        assert stage.unsent == [f"{moment} line 11"]


# ------------------------------------------------------------------------------------------------------ backpressure


@pytest.mark.parametrize("count", [10, 25])
@pytest.mark.parametrize("moment", ["", "@tool wait "])
async def test_lines_wait_for_room_in_order(moment: str, count: int) -> None:
    lines = [f"line {n}" for n in range(1, count)] + ["last" if moment else " stop"]  # after a space a stop is text
    async with opened() as stage:
        stage.schedule(*(f"{moment}{line}" for line in lines if moment))
        await stage.begin(*(line for line in lines if not moment))
        await wait_all_tasks_blocked()
        assert stage.unsent == [f"{moment}{line}" for line in lines[10:]]
        assert len(stage.session.chain.lines.waiting) == 10
        await stage.finish()
        assert stage.sent == lines
        assert stage.texts("refused") == []
        assert stage.session.of(events.UserInterruption)[0].message.split("\n\n") == lines[:10]
        assert stage.statuses == ["done"]


async def test_a_later_line_does_not_overtake(autojump_clock: MockClock) -> None:
    async with opened(inbox_size=1) as stage:
        await stage.begin("one", "two", "@after 1 three")
        await trio.sleep(2)
        stage.schedule("four")
        assert stage.sender.queued_count == 3
        await stage.finish()
        assert stage.sent == ["one", "two", "three", "four"]


async def test_a_queued_line_can_start_the_next_run() -> None:
    lines = ["then: second", "then: third", "then: fourth"]
    async with opened(inbox_size=2) as stage:
        await stage.begin(*lines)
        assert stage.sender.queued_count == 1
        await stage.finish()
        assert stage.statuses == ["done"] * 4
        assert stage.sent == lines


async def test_refused_lines_need_no_room() -> None:
    async with opened() as stage:
        await stage.begin("todo: add", *TWELVE[:11], "x" * 100_001)
        assert stage.sender.queued_count == 1
        assert [what for _, what in stage.answers] == ["refused", *["queued"] * 10, "refused"]
        await stage.finish()
        assert stage.sent == TWELVE[:11]


# -------------------------------------------------------------------------------------------------------------- stops


@pytest.mark.parametrize(("stop", "handler"), [("Stop!", ""), ("enough", "rules: [{match: ^enough, action: stop}]")])
async def test_a_stop_overtakes_lines_without_room(stop: str, handler: str) -> None:
    async with opened(handler=handler) as stage:
        await stage.begin(*TWELVE, "@iteration 9 never", stop)
        assert stage.answers[-1] == (stop, "stopping")
        await stage.finish()
        assert stage.statuses == ["cancelled_with_partial"]
        assert (stage.texts("returned"), stage.texts("handled")) == (TWELVE[:10], [stop])
        (result,) = stage.session.of(events.Result)
        assert (result.unsent, result.exit_code) == (("line 11", "line 12"), 3)
        stage.sender.discard()
        reasons = {r.text: r.reason for r in stage.session.of(events.Receipt) if r.state == "unsent"}
        overtaken = "a stop came while it waited for room"
        assert reasons == {
            **{"line 11": overtaken, "line 12": overtaken},
            "@iteration 9 never": "its moment did not come",
        }


async def test_an_interrupt_leaves_queued_lines_unsent() -> None:
    async with opened() as stage:
        await stage.begin(*TWELVE)
        stage.session.chain.interrupt()
        await stage.session.chain.wait_idle()
        assert stage.statuses == ["interrupted"]
        assert stage.unsent == ["line 11", "line 12"]


async def test_a_line_after_a_stop_starts_a_run() -> None:
    async with opened() as stage:
        stage.schedule("stop")
        assert stage.answers == [("stop", "nothing")]
        await stage.begin("stop", "task two", "three")
        assert stage.sender.queued_count == 2
        await stage.finish()
        assert stage.statuses == ["cancelled_with_partial", "done"]
        assert stage.sent == ["task two", "three"]


# -------------------------------------------------------------------------------------------------------------- limits


async def test_a_full_sender_waits_for_possible_moments() -> None:
    async with opened() as stage, trio.open_nursery() as nursery:
        await stage.begin(*(f"@iteration 2 line {n}" for n in range(MAX_WAITING)))
        nursery.start_soon(stage.sender.wait_for_capacity)
        await wait_all_tasks_blocked()
        assert len(nursery.child_tasks) == 1
        stage.gate.open.set()
        await stage.session.chain.wait_idle()
        await wait_all_tasks_blocked()
        assert not nursery.child_tasks


async def test_a_full_sender_waits_for_a_delayed_line(autojump_clock: MockClock) -> None:
    async with opened() as stage:
        stage.schedule("@after 30 task", *(f"@iteration 9 line {n}" for n in range(MAX_WAITING - 1)))
        begun = trio.current_time()
        await stage.sender.wait_for_capacity()
        assert trio.current_time() == begun + 30
        await stage.finish()
        assert len(stage.sender.waiting) == MAX_WAITING - 1


async def test_the_oldest_line_gives_way_without_a_run() -> None:
    async with opened() as stage:
        stage.schedule(*(f"@iteration 2 line {n}" for n in range(MAX_WAITING)))
        await stage.sender.wait_for_capacity()
        assert len(stage.sender.waiting) == MAX_WAITING - 1
        [unsent] = [r for r in stage.session.of(events.Receipt) if r.state == "unsent"]
        assert (unsent.text, unsent.reason) == ("@iteration 2 line 0", "too many lines are waiting for their moments")


async def test_waiting_lines_are_limited_in_characters() -> None:
    async with opened() as stage:
        stage.schedule(*(f"@iteration 2 {n} {'x' * 90_000}" for n in range(25)))
        await stage.sender.wait_for_capacity()
        assert sum(map(len, stage.sender.waiting)) < MAX_WAITING_CHARS
        stage.schedule("@iteration 2 " + "x" * 200_000)
        [refused] = [r for r in stage.session.of(events.Receipt) if r.state == "refused"]
        assert "100,000" in refused.reason


async def test_every_sent_line_frees_its_place() -> None:
    async with opened() as stage:
        await stage.begin(*TWELVE[:10], *(f"{n} {'x' * 90_000}" for n in range(25)))
        assert not stage.sender.has_capacity
        await stage.finish()
        assert stage.sender.has_capacity


async def test_every_removed_line_frees_its_place() -> None:
    async with opened() as stage:
        await stage.begin(*TWELVE[:10], *(f"{n} {'x' * 90_000}" for n in range(25)))
        assert not stage.sender.has_capacity
        stage.schedule("stop")
        assert (stage.sender.queued_count, stage.sender.has_capacity) == (0, True)
        for n in range(25):
            stage.sender.schedule(ScheduledLine(AtIteration(99), "x" * 90_000, "long", id=str(n)))
        assert not stage.sender.has_capacity
        assert all(stage.sender.drop(str(n)) for n in range(10))
        assert stage.sender.has_capacity
        stage.schedule(*(f"@iteration 99 {n} {'x' * 90_000}" for n in range(25)))
        stage.sender.discard()
        assert stage.sender.has_capacity
        await stage.finish()


# ------------------------------------------------------------------------------------------------- to another chain


@asynccontextmanager
async def moving(*lines: str) -> AsyncIterator[tuple[Sending, Session]]:
    """Pause a sender with these lines, and open another chain."""
    async with opened() as stage, open_session(RULES, file=MemoryFile()) as other:
        stage.sender.pause()
        stage.schedule(*lines)
        yield stage, other
        await other.chain.wait_idle()
        check_invariants(other)


async def test_scheduled_lines_move_to_the_next_chain(autojump_clock: MockClock) -> None:
    async with moving("@done the last", "@after 5 the late", "@iteration 9 never") as (stage, other):
        await trio.sleep(1)
        stage.sender.resume(other.chain)
        await stage.session.run("in the chain before")
        assert stage.sender.waiting == ("@done the last", "@after 5 the late", "@iteration 9 never")
        await other.run("the first")
        await trio.sleep(10)
        await other.chain.wait_idle()
        assert [run.query for run in other.of(events.RunStarted)] == ["the first", "the last", "the late"]
        assert len(stage.session.of(events.RunStarted)) == 1
        stage.sender.discard()
        assert [r.text for r in other.of(events.Receipt) if r.state == "unsent"] == ["@iteration 9 never"]


@pytest.mark.parametrize("is_same", [True, False])
async def test_lines_of_a_pause_are_sent_after_it(is_same: bool, autojump_clock: MockClock) -> None:
    async with moving("the first", "@after 1 the second") as (stage, other):
        await trio.sleep(5)
        assert (stage.answers, stage.sender.queued_count) == ([], 2)
        new, old = (stage.session, other) if is_same else (other, stage.session)
        stage.sender.resume(new.chain)
        for _ in range(2):
            await wait_all_tasks_blocked()
            await new.chain.wait_idle()
        assert stage.answers == [("the first", "started"), ("the second", "queued")]
        assert old.of(events.RunStarted) == []


async def test_answers_are_for_questions_of_the_next_chain() -> None:
    asks = "rules:\n  - {when: {step: 1}, tools: [{name: ask_user_question, input: {question: Which?, options: [a]}}]}"
    async with opened() as stage, open_session(f"{asks}\n  - {{text: The end.}}", use=settings(agents=True)) as other:
        stage.schedule("@question a")
        stage.sender.pause()
        stage.sender.resume(other.chain)
        await other.run("ask me")
        (answer,) = other.of(events.Answer)
        assert (answer.text, answer.decision) == ("a", "answered")
        assert stage.unsent == []
