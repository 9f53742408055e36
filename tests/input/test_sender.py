"""Lines that nobody types: each goes at its moment, in order, as room comes, and what never went is reported."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio
from support import MemoryFile, Session, check_invariants, open_session, settings
from support.stages import Stage
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.tools.tool import Tool, ToolContext, tool
from cli.input.moments import AtIteration, Now, ScheduledLine, parse_moment
from cli.input.sender import AHEAD, AHEAD_CHARS, Sender

RULES = """
rules:
  - {when: {user: ^Your reply was shown}, text: The task is done.}
  - {when: {interruption: '^more'}, text: More., tools: [{name: wait, input: {}}]}
  - {when: {user: ^task, step: 1}, text: Looking., tools: [{name: wait, input: {}}]}
  - {when: {user: ^task, tool: wait}, text: The answer.}
  - {text: Noted.}
"""


@dataclass
class Sending(Stage):
    """A chain, its sender, a tool that waits until it is let go, and what the sender was answered."""

    sender: Sender
    open: trio.Event
    answers: list[tuple[str, str]]
    started: trio.Event = field(default_factory=trio.Event)

    def take(self, *lines: str) -> None:
        for line in lines:
            say = parse_moment(line, strict=True)
            self.sender.schedule(say)

    async def begin(self, query: str = "task") -> None:
        """Start a run and wait until its tool runs."""
        self.session.chain.start(query)
        await self.started.wait()

    def texts(self, state: str) -> list[str]:
        return [r.text for r in self.session.chain.lines.receipts if r.state == state]

    @property
    def unsent(self) -> tuple[str, ...]:
        """The lines that were told to be never sent, and those that were not sent yet."""
        told = [r.text for r in self.session.of(events.Receipt) if r.state == "unsent"]
        return (*told, *self.sender.waiting)


@asynccontextmanager
async def opened(*, max_iterations: int = 20, inbox_size: int = 10, handler: str = "") -> AsyncIterator[Sending]:
    open, started, answers = trio.Event(), trio.Event(), list[tuple[str, str]]()

    @tool(timeout_s=10_000)
    async def wait(ctx: ToolContext) -> str:
        """Wait."""
        started.set()
        await open.wait()
        return "waited"

    tools: list[Tool] = [wait]
    use = settings(max_iterations=max_iterations, inbox_size=inbox_size, handler=handler)
    async with open_session(RULES, tools=tools, use=use) as session, trio.open_nursery() as nursery:
        sender = Sender(session.chain, lambda line, answer: answers.append((line.text, answer.what)))
        await nursery.start(sender.run)
        yield Sending(session, sender, open, answers, started)
        await session.chain.wait_idle()
        if session.model.requests:
            check_invariants(session, max_iterations=max_iterations)
        nursery.cancel_scope.cancel()


# ---------------------------------------------------------------------------------------------------------- moments


async def test_a_line_without_a_moment_goes_at_once(autojump_clock: MockClock) -> None:
    async with opened() as stage:
        stage.take("task")
        await stage.started.wait()
        stage.take("now")
        assert stage.answers == [("task", "started"), ("now", "queued")]

        stage.open.set()
        await stage.session.chain.wait_idle()

        assert stage.delivered == [("task", "start"), ("now", "D")]


async def test_each_moment_fires_once(autojump_clock: MockClock) -> None:
    async with opened() as stage:
        stage.open.set()
        stage.take("@tool wait more", "@iteration 1 one", "@answer at the answer", "@done task again")
        await stage.begin()
        await stage.session.chain.wait_idle()

        assert stage.statuses == ["done", "done"]
        assert [text for text, _ in stage.delivered] == ["task", "one", "more", "at the answer", "task again"]


async def test_at_its_moment_a_line_comes_after_the_event_that_made_it(autojump_clock: MockClock) -> None:
    async with opened() as stage:
        stage.open.set()
        stage.take("@iteration 2 say")
        await stage.begin()
        await stage.session.chain.wait_idle()

        told = [e for e in stage.session.events if isinstance(e, events.IterationStarted | events.LineQueued)]
        assert [(e.type, e.iteration) for e in told[:3]] == [
            ("iteration_started", 1),
            ("iteration_started", 2),
            ("line_queued", 2),
        ]


async def test_after_the_run_a_line_starts_the_next_one(autojump_clock: MockClock) -> None:
    async with opened() as stage:
        stage.open.set()
        stage.take("@done first", "@done second")
        await stage.begin()
        await stage.session.chain.wait_idle()

        assert stage.answers == [("first", "started"), ("second", "started")]
        assert stage.statuses == ["done", "done", "done"]
        assert stage.delivered == [("task", "start"), ("first", "start"), ("second", "start")]


async def test_after_the_run_comes_after_a_run_that_follows_it_already(autojump_clock: MockClock) -> None:
    async with opened() as stage:
        stage.open.set()
        stage.take("@iteration 1 then: next", "@done last")
        await stage.begin()
        await stage.session.chain.wait_idle()

        assert stage.delivered == [("task", "start"), ("then: next", "start"), ("last", "start")]


async def test_a_verbatim_stop_waits_like_any_other_line(autojump_clock: MockClock) -> None:
    async with opened() as stage:
        await stage.begin()
        stage.take(*(f"line {n}" for n in range(1, 13)), " stop")
        assert stage.sender.queued_count == 3

        stage.open.set()
        await stage.session.chain.wait_idle()
        assert stage.statuses == ["done"]
        assert [text for text, _ in stage.delivered][-1] == " stop"


async def test_what_is_held_when_an_interrupt_comes_is_never_sent(autojump_clock: MockClock) -> None:
    async with opened() as stage:
        await stage.begin()
        stage.take(*(f"line {n}" for n in range(1, 13)))
        stage.session.chain.interrupt()
        await stage.session.chain.wait_idle()

        assert stage.statuses == ["interrupted"]
        assert stage.unsent == ("line 11", "line 12")


async def test_seconds_count_from_when_the_line_was_read(autojump_clock: MockClock) -> None:
    async with opened() as stage:
        begun = trio.current_time()
        stage.take("@after 3 late", "@after 1.5 early")
        await stage.begin()
        await trio.sleep(2)
        assert stage.answers == [("early", "queued")]

        await trio.sleep(2)
        assert stage.answers == [("early", "queued"), ("late", "queued")]
        assert stage.unsent == ()
        stage.open.set()
        await stage.session.chain.wait_idle()

        assert stage.delivered[1:] == [("early", "D"), ("late", "D")]
        waited = {r.text: r.waited_s for r in stage.session.chain.lines.receipts}
        assert trio.current_time() - begun == pytest.approx(4)
        assert waited["early"] == pytest.approx(2.5)
        assert waited["late"] == pytest.approx(1)


async def test_seconds_after_which_nothing_runs_start_a_run(autojump_clock: MockClock) -> None:
    async with opened() as stage:
        stage.open.set()
        stage.take("@after 5 task")
        await trio.sleep(4)
        assert stage.statuses == []
        await trio.sleep(2)

        assert stage.answers == [("task", "started")]
        assert stage.statuses == ["done"]


async def test_a_line_that_is_not_due_is_unsent(autojump_clock: MockClock) -> None:
    async with opened() as stage:
        stage.open.set()
        stage.take("@after 99 late", "@iteration 9 never", "@tool other never either")
        await stage.begin()
        await stage.session.chain.wait_idle()

        assert stage.unsent == ("@after 99 late", "@iteration 9 never", "@tool other never either")
        assert stage.statuses == ["done"]


# ------------------------------------------------------------------------------------------------------ backpressure


@pytest.mark.parametrize("count", [10, 25])
async def test_what_the_channel_has_no_room_for_waits_and_comes_in_order(autojump_clock: MockClock, count: int) -> None:
    lines = [f"line {n}" for n in range(1, count + 1)]
    async with opened() as stage:
        await stage.begin()
        stage.take(*lines)
        await wait_all_tasks_blocked()
        assert stage.sender.queued_count == count - 10
        assert stage.unsent == tuple(lines[10:])
        assert len(stage.session.chain.lines.waiting) == 10

        stage.open.set()
        await stage.session.chain.wait_idle()

        assert [text for text, _ in stage.delivered] == ["task", *lines]
        assert stage.texts("refused") == []
        first, *_ = stage.session.of(events.UserInterruption)
        assert first.message.split("\n\n") == lines[:10]
        assert stage.statuses == ["done"]
        assert stage.unsent == ()


async def test_a_line_does_not_overtake_those_that_are_held(autojump_clock: MockClock) -> None:
    async with opened(inbox_size=1) as stage:
        await stage.begin()
        stage.take("one", "two", "@after 1 three")
        await trio.sleep(2)
        stage.take("four")
        assert stage.sender.queued_count == 3

        stage.open.set()
        await stage.session.chain.wait_idle()

        assert [text for text, _ in stage.delivered] == ["task", "one", "two", "three", "four"]


async def test_lines_for_one_moment_are_held_too(autojump_clock: MockClock) -> None:
    lines = [f"line {n}" for n in range(1, 15)]
    async with opened() as stage:
        stage.open.set()
        stage.take(*(f"@tool wait {line}" for line in lines))
        await stage.begin()
        await stage.session.chain.wait_idle()

        assert [text for text, _ in stage.delivered] == ["task", *lines]
        assert stage.texts("refused") == []


async def test_draining_waits_until_nothing_is_held(autojump_clock: MockClock) -> None:
    async with opened(inbox_size=1) as stage, trio.open_nursery() as nursery:
        await stage.begin()
        stage.take("one", "two")
        nursery.start_soon(stage.sender.drain)
        await wait_all_tasks_blocked()
        assert stage.sender.queued_count == 1

        stage.open.set()
        await stage.sender.drain()
        assert stage.sender.queued_count == 0


async def test_two_senders_both_get_room(autojump_clock: MockClock) -> None:
    async with opened(inbox_size=1) as stage, trio.open_nursery() as nursery:
        other = Sender(stage.session.chain, lambda line, answer: None)
        await nursery.start(other.run)
        await stage.begin()
        stage.take("one", "two")
        other.schedule(ScheduledLine(Now(), "three", "three"))
        await wait_all_tasks_blocked()
        assert (stage.sender.queued_count, other.queued_count) == (1, 1)

        stage.open.set()
        await stage.sender.drain()
        await other.drain()
        await stage.session.chain.wait_idle()
        nursery.cancel_scope.cancel()

        assert sorted(text for text, _ in stage.delivered) == ["one", "task", "three", "two"]


async def test_what_is_held_when_the_run_ends_starts_the_next(autojump_clock: MockClock) -> None:
    async with opened(inbox_size=2) as stage:
        await stage.begin()
        stage.take("then: second", "then: third", "then: fourth")
        assert stage.sender.queued_count == 1
        stage.open.set()
        while stage.sender.queued_count or stage.session.chain.is_running:
            await stage.sender.drain()
            await stage.session.chain.wait_idle()

        assert stage.statuses == ["done"] * 4
        assert [text for text, _ in stage.delivered] == ["task", "then: second", "then: third", "then: fourth"]


# -------------------------------------------------------------------------------------------------------------- stops


async def test_a_stop_passes_by_what_is_held(autojump_clock: MockClock) -> None:
    lines = [f"line {n}" for n in range(1, 13)]
    async with opened() as stage:
        await stage.begin()
        stage.take(*lines, "Stop!")
        assert stage.answers[-1] == ("Stop!", "stopping")
        assert stage.sender.queued_count == 0
        assert stage.unsent == ("line 11", "line 12")

        stage.open.set()
        await stage.session.chain.wait_idle()

        assert stage.statuses == ["cancelled_with_partial"]
        assert stage.texts("returned") == lines[:10]
        assert stage.texts("handled") == ["Stop!"]
        assert stage.unsent == ("line 11", "line 12")


async def test_a_line_after_a_stop_waits_for_the_end_and_starts_a_run(autojump_clock: MockClock) -> None:
    async with opened() as stage:
        await stage.begin()
        stage.take("stop", "task two", "three")
        assert [what for _, what in stage.answers] == ["stopping"]
        assert stage.sender.queued_count == 2

        stage.open.set()
        while stage.sender.queued_count or stage.session.chain.is_running:
            await stage.sender.drain()
            await stage.session.chain.wait_idle()

        assert stage.statuses == ["cancelled_with_partial", "done"]
        assert [text for text, _ in stage.delivered] == ["task", "task two", "three"]
        assert stage.unsent == ()


async def test_a_stop_that_finds_nothing_to_stop_overtakes_nothing(autojump_clock: MockClock) -> None:
    async with opened() as stage:
        stage.take("stop")

        assert stage.answers == [("stop", "nothing")]
        assert stage.statuses == []


# ------------------------------------------------------------------------------------------------ moments that passed


@pytest.mark.parametrize("moment", ["@tool wait", "@iteration 1"])
async def test_a_line_whose_moment_was_in_a_run_never_starts_one(autojump_clock: MockClock, moment: str) -> None:
    lines = [f"line {n}" for n in range(1, 11)]
    async with opened() as stage:
        stage.take(*(f"{moment} {line}" for line in lines), f"{moment} too late")
        await stage.begin()
        await wait_all_tasks_blocked()
        assert stage.sender.queued_count == 1

        stage.session.chain.interrupt()
        await stage.session.chain.wait_idle()
        await wait_all_tasks_blocked()

        assert stage.statuses == ["interrupted"]
        assert stage.texts("returned") == lines
        assert stage.sender.queued_count == 0
        assert stage.unsent == (f"{moment} too late",)


async def test_a_stop_by_a_rule_passes_by_what_is_held(autojump_clock: MockClock) -> None:
    lines = [f"line {n}" for n in range(1, 13)]
    async with opened(handler="rules: [{match: ^enough, action: stop}]") as stage:
        await stage.begin()
        stage.take(*lines, "enough of this")
        assert stage.answers[-1] == ("enough of this", "stopping")
        assert stage.unsent == ("line 11", "line 12")
        stage.open.set()
        await stage.session.chain.wait_idle()
        assert stage.statuses == ["cancelled_with_partial"]


async def test_what_is_never_sent_is_told_in_that_step_with_its_reason(autojump_clock: MockClock) -> None:
    async with opened() as stage:
        await stage.begin()
        stage.take(*(f"line {n}" for n in range(1, 12)), "@iteration 9 never", "stop")
        stage.open.set()
        await stage.session.chain.wait_idle()
        [result] = stage.session.of(events.Result)
        assert (result.unsent, result.exit_code) == (("line 11",), 3)
        stage.sender.discard()
        reasons = {r.text: r.reason for r in stage.session.of(events.Receipt) if r.state == "unsent"}
        assert reasons == {
            "line 11": "a stop came while it waited for room",
            "@iteration 9 never": "its moment did not come",
        }


async def test_lines_that_wait_for_their_moments_hold_their_writer_back_while_one_may_come(
    autojump_clock: MockClock,
) -> None:
    async with opened() as stage, trio.open_nursery() as nursery:
        await stage.begin()
        stage.take(*(f"@iteration 2 line {n}" for n in range(AHEAD)))
        nursery.start_soon(stage.sender.wait_for_place)
        await wait_all_tasks_blocked()
        assert len(nursery.child_tasks) == 1
        assert len(stage.unsent) == AHEAD
        stage.open.set()
        await stage.session.chain.wait_idle()
        await wait_all_tasks_blocked()
        assert not nursery.child_tasks


async def test_when_no_moment_can_come_the_oldest_gives_way(autojump_clock: MockClock) -> None:
    async with opened() as stage:
        stage.take(*(f"@iteration 2 line {n}" for n in range(AHEAD)))
        await stage.sender.wait_for_place()
        assert len(stage.sender.waiting) == AHEAD - 1
        [unsent] = [r for r in stage.session.of(events.Receipt) if r.state == "unsent"]
        assert (unsent.text, unsent.reason) == ("@iteration 2 line 0", "too many lines are waiting for their moments")


async def test_lines_for_moments_are_bounded_in_characters_too(autojump_clock: MockClock) -> None:
    async with opened() as stage:
        stage.take(*(f"@iteration 2 {n} {'x' * 90_000}" for n in range(25)))
        await stage.sender.wait_for_place()
        assert sum(map(len, stage.sender.waiting)) < AHEAD_CHARS
        stage.take("@iteration 2 " + "x" * 200_000)
        [refused] = [r for r in stage.session.of(events.Receipt) if r.state == "refused"]
        assert "100,000" in refused.reason


async def test_places_come_back_however_lines_go(autojump_clock: MockClock) -> None:
    async with opened() as stage:
        await stage.begin()
        stage.take(*(f"line {n}" for n in range(10)), *(f"{n} {'x' * 90_000}" for n in range(25)))
        assert not stage.sender.has_place
        stage.take("stop")
        assert (stage.sender.queued_count, stage.sender.has_place) == (0, True)
        for each in range(25):
            stage.sender.schedule(ScheduledLine(AtIteration(99), "x" * 90_000, "long", id=str(each)))
        assert not stage.sender.has_place
        assert all(stage.sender.drop(str(each)) for each in range(10))
        assert stage.sender.has_place
        stage.take(*(f"@iteration 99 {n} {'x' * 90_000}" for n in range(25)))
        stage.sender.discard()
        assert stage.sender.has_place
        stage.open.set()


class Counted(str):
    """A text that counts how often somebody asks for its length, or whether it is empty."""

    asked = 0

    def __len__(self) -> int:
        Counted.asked += 1
        return super().__len__()


async def test_neither_another_line_nor_an_event_that_is_no_moment_costs_more_the_more_lines_wait(
    autojump_clock: MockClock,
) -> None:
    async with opened() as stage:
        line = ScheduledLine(AtIteration(2), Counted("line"), "@iteration 2 line", Counted("explore-1"))
        for _ in range(AHEAD // 2):
            stage.sender.schedule(line)
        before = Counted.asked
        assert stage.sender.has_place
        stage.sender.report_unsent(line, "a receipt")
        assert Counted.asked == before


async def test_a_line_at_a_time_is_waited_for_when_no_other_moment_can_come(autojump_clock: MockClock) -> None:
    async with opened() as stage:
        stage.take("@after 30 task", *(f"@iteration 9 line {n}" for n in range(AHEAD - 1)))
        begun = trio.current_time()
        await stage.sender.wait_for_place()
        assert trio.current_time() == begun + 30
        await stage.started.wait()
        stage.open.set()
        await stage.session.chain.wait_idle()
        assert len(stage.sender.waiting) == AHEAD - 1


async def test_a_line_that_is_too_long_is_refused_though_there_is_no_room(autojump_clock: MockClock) -> None:
    async with opened() as stage:
        await stage.begin()
        stage.take(*(f"line {n}" for n in range(1, 12)), "x" * 100_001)
        assert stage.sender.queued_count == 1
        assert stage.answers[-1][1] == "refused"
        stage.open.set()
        await stage.session.chain.wait_idle()


async def test_a_refused_line_is_answered(autojump_clock: MockClock) -> None:
    async with opened() as stage:
        await stage.begin()
        stage.take("todo: add", "x" * 100_001, "/help")
        stage.open.set()
        await stage.session.chain.wait_idle()

        assert [what for _, what in stage.answers] == ["refused", "refused", "queued"]
        assert [text for text, _ in stage.delivered] == ["task", "/help"]


# ------------------------------------------------------------------------------------------------- to another chain


@asynccontextmanager
async def moving() -> AsyncIterator[tuple[Sending, Session]]:
    """A sender and its chain, and another chain that it can go on with; nothing is sent by now."""
    async with opened() as stage, open_session(RULES, file=MemoryFile()) as other:
        stage.sender.pause()
        yield stage, other
        await other.chain.wait_idle()
        check_invariants(other)


async def test_lines_whose_moments_have_not_come_are_for_the_next_chain(autojump_clock: MockClock) -> None:
    async with moving() as (stage, other):
        stage.take("@done the last", "@after 5 the late")
        await trio.sleep(1)
        stage.sender.resume(other.chain)
        await other.run("the first")
        await trio.sleep(10)
        await other.chain.wait_idle()
        assert [run.query for run in other.of(events.RunStarted)] == ["the first", "the last", "the late"]
        assert stage.session.of(events.RunStarted) == []
        assert stage.unsent == ()


async def test_what_comes_in_a_pause_is_sent_after_it_in_its_order(autojump_clock: MockClock) -> None:
    async with moving() as (stage, other):
        stage.take("the first", "@after 1 the second")
        await trio.sleep(5)
        assert stage.answers == []
        assert stage.sender.queued_count == 2
        stage.sender.resume(other.chain)
        await other.chain.wait_idle()
        await wait_all_tasks_blocked()
        await other.chain.wait_idle()
        assert stage.answers == [("the first", "started"), ("the second", "queued")]
        assert stage.session.of(events.RunStarted) == []


async def test_without_another_chain_a_pause_ends_where_it_began(autojump_clock: MockClock) -> None:
    async with moving() as (stage, other):
        stage.take("the first")
        stage.sender.resume(stage.session.chain)
        await wait_all_tasks_blocked()
        await stage.session.chain.wait_idle()
        assert stage.answers == [("the first", "started")]
        assert other.of(events.RunStarted) == []


async def test_the_chain_before_is_heard_no_more_and_never_sent_lines_are_the_new_ones(
    autojump_clock: MockClock,
) -> None:
    async with moving() as (stage, other):
        stage.take("@done the last")
        stage.sender.resume(other.chain)
        await stage.session.run("in the one before")
        assert stage.sender.waiting == ("@done the last",)
        stage.sender.discard()
        assert [receipt.text for receipt in other.of(events.Receipt) if receipt.state == "unsent"] == ["@done the last"]


async def test_answers_are_for_the_questions_of_the_next_chain(autojump_clock: MockClock) -> None:
    asks = "rules:\n  - {when: {step: 1}, tools: [{name: ask_user_question, input: {question: Which?, options: [a]}}]}"
    async with opened() as stage, open_session(f"{asks}\n  - {{text: The end.}}", use=settings(agents=True)) as other:
        stage.take("@question a")
        stage.sender.pause()
        stage.sender.resume(other.chain)
        await other.run("ask me")
        (answer,) = other.of(events.Answer)
        assert (answer.text, answer.decision) == ("a", "answered")
        assert stage.unsent == ()
