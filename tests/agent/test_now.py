"""Now lines (``!!``) cancel the reply or the tools, are delivered at once, and the run continues. L1 is the query."""

import pytest
import trio
from support.checks import checked_session
from support.gates import SLOW_ANSWER, THREE_TOOLS, Gates, start_run
from support.sessions import INTERRUPTED, SKIPPED, call_at_event, make_settings
from trio.testing import MockClock

from chain import events

MID_ANSWER_S = 15
"""A moment after the first piece of an answer (10 s), and before the second one (20 s)."""


async def test_a_cut_reply_is_not_the_result(autojump_clock: MockClock) -> None:
    async with checked_session(SLOW_ANSWER) as session:
        session.chain.submit("Do the task")
        await trio.sleep(MID_ANSWER_S)
        session.chain.submit("use B")
        session.chain.submit("!!use A")
        await session.chain.wait_idle()
        message = "USER INTERRUPTION: use B\n\nUSER INTERRUPTION: use A"
        assert session.sent() == f"user: Do the task\nassistant: The whole \nuser: {message}"
        [interruption] = session.of(events.UserInterruption)
        assert (interruption.ids, interruption.point, interruption.iteration) == (("L2", "L3"), "N", 1)
        cut_reply, answer = session.of(events.Reply)
        assert (cut_reply.text, cut_reply.tool_calls) == ("The whole ", 0)
        result = session.result
        assert (result.status, result.iterations, result.replies) == ("done", 2, (answer.text,))
        assert result.result == answer.text


@pytest.mark.parametrize("reply", ["text: '   x'", "thinking: Hm, text: x"], ids=["blank text", "thinking"])
async def test_a_cut_reply_without_text_leaves_nothing(reply: str, autojump_clock: MockClock) -> None:
    model = f"rules: [{{when: {{interruption: .}}, text: Noted.}}, {{{reply}, pace: {{chunk: 2, delay_s: 10}}}}]"
    async with checked_session(model) as session:
        session.chain.submit("Do the task")
        await trio.sleep(MID_ANSWER_S)
        session.chain.submit("!!use A")
        await session.chain.wait_idle()
        assert session.sent() == "user: Do the task\nuser: USER INTERRUPTION: use A"


async def test_an_inbox_accepts_twice_as_many_now_lines() -> None:
    gates = Gates()
    async with checked_session(THREE_TOOLS, tools=gates.tools, settings=make_settings(inbox_size=2)) as session:
        await start_run(session, gates, "a")
        answers = [session.chain.submit(f"!!line {n}").what for n in range(5)]
        assert answers == [*["queued"] * 4, "refused"]
        await session.chain.wait_idle()
        [interruption] = session.of(events.UserInterruption)
        assert interruption.ids == ("L2", "L3", "L4", "L5")


async def test_a_dropped_now_line_still_cuts() -> None:
    gates = Gates()
    async with checked_session(THREE_TOOLS, tools=gates.tools) as session:
        await start_run(session, gates, "a")
        session.chain.submit("!!use A")
        session.chain.lines.drop("L2")
        await session.chain.wait_idle()
        assert [e.text for e in session.of(events.ToolResult)] == [INTERRUPTED, SKIPPED, SKIPPED]
        assert session.of(events.UserInterruption) == []
        assert session.result.result == "The answer."


async def test_a_cut_for_a_dropped_line_is_continued(autojump_clock: MockClock) -> None:
    async with checked_session(SLOW_ANSWER) as session:
        session.chain.submit("Do the task")
        await trio.sleep(MID_ANSWER_S)
        session.chain.submit("!!use A")
        session.chain.lines.drop("L2")
        await session.chain.wait_idle()
        assert session.sent() == "user: Do the task\nassistant: The whole \nuser: Please continue."
        assert session.result.status == "done"


@pytest.mark.parametrize("line", ["stop", "!!stop"])
async def test_a_stop_precedes_a_now_line(line: str) -> None:
    async with checked_session(SLOW_ANSWER) as session:
        submit = session.chain.submit
        call_at_event(session, events.IterationStarted, lambda: (submit("!!use A"), submit(line)))
        result = await session.run("Do the task")
        assert (result.status, session.state("L2")) == ("cancelled", "returned")
        assert session.model.requests == []


@pytest.mark.parametrize(
    ("deploy_event", "next_event"),
    [
        pytest.param(events.TextDelta, events.IterationStarted, id="in the answer, then at the next iteration"),
        pytest.param(events.Retry, events.UserInterruption, id="in a pause, then at the delivery"),
        pytest.param(events.RunStarted, events.Retry, id="at the start, then in a pause"),
    ],
)
async def test_a_rules_prompt_stays_until_the_answer(
    deploy_event: type[events.Event], next_event: type[events.Event], autojump_clock: MockClock
) -> None:
    """The line that a rule matches is cut by another now line before the model has answered it."""
    model = """
rules:
  - {times: 1, error: {message: It is busy, retryable: true, retry_after: 60}}
  - {text: The whole answer., pace: {chunk: 10, delay_s: 10}}
"""
    handler = """
messages: [{role: system, content: GENERAL}]
rules: [{match: ^deploy, config: {effort: low}, messages: [{role: system, content: ASK FIRST}]}]
"""
    async with checked_session(model, settings=make_settings(handler=handler)) as session:

        def deploy() -> None:
            session.chain.submit("!!deploy it")
            call_at_event(session, next_event, lambda: session.chain.submit("!!and be quick"))

        call_at_event(session, deploy_event, deploy)
        await session.run("Do the task")
        assert len(session.of(events.UserInterruption)) == 2
        last = session.model.requests[-1]
        assert (last.tail, last.overrides.effort) == (("ASK FIRST\n\nGENERAL",), "low")
