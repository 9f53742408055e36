"""Now lines (``!!``): they cut the work in hand, are delivered at point N, and the run goes on (SPEC, section 4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pytest
import trio
from support import INTERRUPTED, SKIPPED, MemoryFile, Session, at, check_invariants, open_session, settings
from support.gates import SLOW_ANSWER, THREE_TOOLS, Gates, begin, tick
from trio.testing import MockClock

from chain import events
from chain.errors import ModelError
from chain.messages import Message, Text, ToolCall
from chain.model import Delta, Model, Reply, Request
from chain.tools.tool import ToolContext, tool


def interruption(session: Session) -> events.UserInterruption:
    (found,) = session.of(events.UserInterruption)
    assert isinstance(found, events.UserInterruption)
    return found


def told(session: Session, n: int = -1) -> list[str]:
    return session.sent(n).splitlines()


async def test_a_reply_that_streams_is_cut_and_its_text_is_kept_as_no_answer(mock_clock: MockClock) -> None:
    async with open_session(SLOW_ANSWER) as session:
        session.chain.submit("Do the task")
        await tick(mock_clock)
        session.chain.submit("use B")
        session.chain.submit("!!use A")
        mock_clock.autojump_threshold = 0
        await session.chain.wait_idle()

        assert told(session) == [
            "user: Do the task",
            "assistant: The whole ",
            "user: USER INTERRUPTION: use B",
            "",
            "USER INTERRUPTION: use A",
        ]
        entered = interruption(session)
        assert (entered.ids, entered.point, entered.iteration) == (("L2", "L3"), "N", 1)
        cut, answer = session.of(events.Reply)
        assert (cut.text, cut.tool_calls) == ("The whole ", 0)
        result = session.result
        assert (result.status, result.iterations, result.replies) == ("done", 2, (answer.text,))
        assert result.result == answer.text
        check_invariants(session)


async def test_a_reply_of_which_nothing_was_shown_leaves_nothing(mock_clock: MockClock) -> None:
    model = "rules: [{when: {interruption: .}, text: Noted.}, {thinking: Hm, text: x, pace: {chunk: 9, delay_s: 9}}]"
    async with open_session(model) as session:
        session.chain.submit("Do the task")
        await tick(mock_clock)
        session.chain.submit("!!use A")
        mock_clock.autojump_threshold = 0
        await session.chain.wait_idle()

        assert told(session) == ["user: Do the task", "user: USER INTERRUPTION: use A"]
        assert interruption(session).point == "N"
        assert session.result.status == "done"
        check_invariants(session)


@pytest.mark.parametrize("interactive", [True, False])
async def test_on_the_last_iteration_it_cuts_and_is_carried_over(interactive: bool) -> None:
    gates = Gates()
    async with open_session(
        THREE_TOOLS, tools=gates.tools, use=settings(max_iterations=1), interactive=interactive
    ) as session:
        await begin(session, gates, "a")
        session.chain.submit("!!use A")
        gates.let_all()
        await session.chain.wait_idle()

        assert [e.text for e in session.of(events.ToolResult)][:3] == [INTERRUPTED, SKIPPED, SKIPPED]
        assert session.of(events.Result)[0].status == "max_iterations"
        assert session.state("L2") == ("delivered" if interactive else "returned")
        check_invariants(session, max_iterations=1)


async def test_a_full_channel_takes_a_now_line_and_all_are_delivered_in_order() -> None:
    gates = Gates()
    async with open_session(THREE_TOOLS, tools=gates.tools, use=settings(inbox_size=2)) as session:
        await begin(session, gates, "a")
        assert [session.chain.submit(text).what for text in ("one", "two", "three")] == ["queued", "queued", "refused"]
        assert session.chain.submit("!!now").what == "queued"
        await session.chain.wait_idle()

        assert interruption(session).ids == ("L2", "L3", "L4")
        check_invariants(session)


async def test_even_of_now_lines_only_so_many_wait() -> None:
    gates = Gates()
    async with open_session(THREE_TOOLS, tools=gates.tools, use=settings(inbox_size=2)) as session:
        await begin(session, gates, "a")
        answers = [session.chain.submit(f"!!line {n}").what for n in range(6)]
        assert answers == ["queued"] * 4 + ["refused"] * 2
        await session.chain.wait_idle()
        assert len(interruption(session).ids) == 4
        check_invariants(session)


async def test_a_now_line_that_is_dropped_in_its_step_has_still_cut() -> None:
    gates = Gates()
    async with open_session(THREE_TOOLS, tools=gates.tools) as session:
        await begin(session, gates, "a")
        session.chain.submit("!!use A")
        session.chain.lines.drop("L2")
        await session.chain.wait_idle()
        assert [e.text for e in session.of(events.ToolResult)] == [INTERRUPTED, SKIPPED, SKIPPED]
        assert session.of(events.UserInterruption) == []
        assert session.result.result == "The answer."
        check_invariants(session)


async def test_a_reply_that_was_cut_for_a_line_that_was_dropped_is_asked_to_go_on(mock_clock: MockClock) -> None:
    async with open_session(SLOW_ANSWER) as session:
        session.chain.submit("Do the task")
        await tick(mock_clock)
        session.chain.submit("!!use A")
        session.chain.lines.drop("L2")
        mock_clock.autojump_threshold = 0
        await session.chain.wait_idle()
        assert told(session) == ["user: Do the task", "assistant: The whole ", "user: Please continue."]
        assert session.result.status == "done"
        check_invariants(session)


@pytest.mark.parametrize("phrase", ["!!stop", "!!Never mind.", "!! cancel"])
async def test_a_stop_is_stronger(phrase: str) -> None:
    gates = Gates()
    async with open_session(THREE_TOOLS, tools=gates.tools) as session:
        await begin(session, gates, "a")
        assert session.chain.submit(phrase).what == "stopping"
        gates.let("a")
        await session.chain.wait_idle()
        assert session.result.status == "cancelled_with_partial"
        check_invariants(session)


async def test_a_rule_that_makes_lines_urgent_weakens_no_now_line() -> None:
    gates, use = Gates(), settings(handler="rules: [{match: use, action: urgent}]")
    async with open_session(THREE_TOOLS, tools=gates.tools, use=use) as session:
        await begin(session, gates, "a")
        session.chain.submit("!!use A")
        await session.chain.wait_idle()
        assert interruption(session).point == "N"
        check_invariants(session)


# -------------------------------------------------------------------------------------------------------- every moment


@tool(timeout_s=10_000)
async def last(ctx: ToolContext) -> str:
    """Take a minute."""
    ctx.progress("at work")
    await trio.sleep(60)
    return "it has lasted"


@dataclass
class Slow(Model):
    """Breaks off, then asks for two tools, then says nothing, then answers; each call takes a minute."""

    name: str = "slow"
    whole: list[Request] = field(default_factory=list)
    """The requests that were answered."""
    begun: int = 0

    async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        self.begun += 1
        if self.begun == 1:
            raise ModelError("it broke off", retryable=True, retry_after=60)
        await trio.sleep(30)
        on_delta(Delta("text", "The whole "))
        await trio.sleep(30)
        self.whole.append(request)
        calls = [ToolCall(f"{name}{self.begun}", "last", {}) for name in "ab"]
        blocks = {1: (Text("Looking."), *calls), 2: ()}.get(len(self.whole), (Text("The whole answer."),))
        return Reply(Message("assistant", blocks), "tool_use" if calls[0] in blocks else "end_turn")


HANDLER = """
messages: [{role: system, content: GENERAL}]
rules: [{match: ^deploy, config: {effort: low}, messages: [{role: system, content: ASK FIRST}]}]
"""


async def everywhere(
    acts: list[str], *, nth: int, sync_s: float = 0, handler: str = "", max_iterations: int = 9
) -> Session:
    """A run in which these lines come in the very step of the nth event, one as soon as the one before is in."""
    model, use = Slow(), settings(handler=handler, max_iterations=max_iterations)
    async with open_session(model, tools=[last], use=use, file=MemoryFile(sync_s)) as session:

        def say_next(event: events.Event) -> None:
            if acts and session.chain.is_running and len(session.events) >= nth and not session.chain.lines.waiting:
                session.chain.submit(acts.pop(0))

        session.chain.listen(say_next)
        session.chain.submit("Do the task")
        await session.chain.wait_idle()
        check_invariants(session, max_iterations=max_iterations)
    return session


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("sync_s", [0, 1])
def test_now_lines_wait_for_the_disk_alone_whichever_event_they_come_in(sync_s: float) -> None:
    nth, came = 0, ["!!"]
    while came:
        nth += 1
        lines = ["!!use A", "!!use B", "!!use C"]
        session = trio.run(partial(everywhere, lines, nth=nth, sync_s=sync_s), clock=MockClock(autojump_threshold=0))
        came = session.of(events.UserInterruption)
        assert all(event.waited_s <= 2 * sync_s for event in came), f"in the step of event {nth}"
        assert session.result.status == "done"
    assert nth > 15


async def test_a_call_that_has_not_begun_is_made_with_the_line(autojump_clock: MockClock) -> None:
    async with open_session(SLOW_ANSWER, use=settings(max_iterations=1)) as session:
        at(session, events.IterationStarted, lambda: session.chain.submit("!!use A"))
        result = await session.run("Do the task")
        assert told(session) == ["user: Do the task", "user: USER INTERRUPTION: use A"]
        entered = interruption(session)
        assert (entered.point, entered.iteration, entered.remaining) == ("N", 1, 1)
        assert (result.status, result.iterations) == ("done", 1)
        check_invariants(session, max_iterations=1)


@pytest.mark.parametrize("line", ["stop", "!!stop"])
async def test_a_stop_beside_a_now_line_before_the_model_is_asked(line: str) -> None:
    async with open_session(SLOW_ANSWER) as session:
        at(session, events.IterationStarted, lambda: (session.chain.submit("!!use A"), session.chain.submit(line)))
        result = await session.run("Do the task")
        assert (result.status, session.model.requests, session.state("L2")) == ("cancelled", [], "returned")
        check_invariants(session)


async def test_an_interrupt_beside_a_now_line_before_the_model_is_asked() -> None:
    async with open_session(SLOW_ANSWER) as session:
        at(session, events.IterationStarted, lambda: (session.interrupt(), session.chain.submit("!!use A")))
        result = await session.run("Do the task")
        assert (result.status, session.model.requests, session.state("L2")) == ("interrupted", [], "returned")
        check_invariants(session)


# ------------------------------------------------------------------------------------------ what the handler says of it


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (events.TextDelta, events.IterationStarted),
        (events.Retry, events.UserInterruption),
        (events.RunStarted, events.Retry),
    ],
)
async def test_what_the_handler_says_of_a_line_stays_until_the_line_is_answered(
    first: type[events.Event], second: type[events.Event], autojump_clock: MockClock
) -> None:
    model = Slow()
    async with open_session(model, tools=[last], use=settings(handler=HANDLER)) as session:

        def deploy() -> None:
            session.chain.submit("!!deploy it")
            at(session, second, lambda: session.chain.submit("!!and be quick"))

        at(session, first, deploy)
        await session.run("Do the task")
        assert len(session.of(events.UserInterruption)) == 2
        assert [request.tail for request in model.whole if request.tail] == [("ASK FIRST\n\nGENERAL",)]
        assert model.whole[0].overrides.effort == "low"
        check_invariants(session)


async def test_it_stays_also_where_the_line_that_cut_is_dropped_in_its_step(autojump_clock: MockClock) -> None:
    model = Slow(begun=1)
    async with open_session(model, tools=[last], use=settings(handler=HANDLER)) as session:
        session.chain.submit("Do the task")
        await trio.sleep(1)
        session.chain.submit("!!deploy it")
        await trio.sleep(1)
        session.chain.submit("!!and be quick")
        session.chain.lines.drop("L3")
        await session.chain.wait_idle()
        assert [request.tail for request in model.whole if request.tail] == [("ASK FIRST",)]
        check_invariants(session)


async def test_what_was_shown_of_a_reply_has_answered(autojump_clock: MockClock) -> None:
    model = Slow(begun=1)
    async with open_session(model, tools=[last], use=settings(handler=HANDLER)) as session:
        session.chain.submit("Do the task")
        await trio.sleep(1)
        session.chain.submit("!!deploy it")
        await trio.sleep(40)
        session.chain.submit("!!and be quick")
        await session.chain.wait_idle()
        assert [request.tail for request in model.whole if request.tail] == [("GENERAL",)]
        check_invariants(session)
