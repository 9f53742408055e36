"""Now lines (``!!``): they cut the work in hand, are delivered at point N, and the run goes on (SPEC, section 4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import trio
from support import INTERRUPTED, SKIPPED, Session, at, checked_session, settings
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


async def test_a_cut_reply_is_not_the_result(mock_clock: MockClock) -> None:
    async with checked_session(SLOW_ANSWER) as session:
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


async def test_now_lines_have_their_own_inbox_limit() -> None:
    gates = Gates()
    async with checked_session(THREE_TOOLS, tools=gates.tools, use=settings(inbox_size=2)) as session:
        await begin(session, gates, "a")
        answers = [session.chain.submit(f"!!line {n}").what for n in range(6)]
        assert answers == ["queued"] * 4 + ["refused"] * 2
        await session.chain.wait_idle()
        assert len(interruption(session).ids) == 4


async def test_a_dropped_now_line_still_cuts() -> None:
    gates = Gates()
    async with checked_session(THREE_TOOLS, tools=gates.tools) as session:
        await begin(session, gates, "a")
        session.chain.submit("!!use A")
        session.chain.lines.drop("L2")
        await session.chain.wait_idle()
        assert [e.text for e in session.of(events.ToolResult)] == [INTERRUPTED, SKIPPED, SKIPPED]
        assert session.of(events.UserInterruption) == []
        assert session.result.result == "The answer."


async def test_a_cut_for_a_dropped_line_is_continued(mock_clock: MockClock) -> None:
    async with checked_session(SLOW_ANSWER) as session:
        session.chain.submit("Do the task")
        await tick(mock_clock)
        session.chain.submit("!!use A")
        session.chain.lines.drop("L2")
        mock_clock.autojump_threshold = 0
        await session.chain.wait_idle()
        assert told(session) == ["user: Do the task", "assistant: The whole ", "user: Please continue."]
        assert session.result.status == "done"


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


@pytest.mark.parametrize("line", ["stop", "!!stop"])
async def test_a_stop_beats_a_now_line(line: str) -> None:
    async with checked_session(SLOW_ANSWER) as session:
        at(session, events.IterationStarted, lambda: (session.chain.submit("!!use A"), session.chain.submit(line)))
        result = await session.run("Do the task")
        assert (result.status, session.model.requests, session.state("L2")) == ("cancelled", [], "returned")


# ------------------------------------------------------------------------------------------ what the handler says of it


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (events.TextDelta, events.IterationStarted),
        (events.Retry, events.UserInterruption),
        (events.RunStarted, events.Retry),
    ],
)
async def test_handler_words_stay_until_the_line_is_answered(
    first: type[events.Event], second: type[events.Event], autojump_clock: MockClock
) -> None:
    model = Slow()
    async with checked_session(model, tools=[last], use=settings(handler=HANDLER)) as session:

        def deploy() -> None:
            session.chain.submit("!!deploy it")
            at(session, second, lambda: session.chain.submit("!!and be quick"))

        at(session, first, deploy)
        await session.run("Do the task")
        assert len(session.of(events.UserInterruption)) == 2
        assert [request.tail for request in model.whole if request.tail] == [("ASK FIRST\n\nGENERAL",)]
        assert model.whole[0].overrides.effort == "low"
