"""Now lines (``!!``): they cut the work in hand, are delivered at point N, and the run goes on (SPEC, section 4)."""

from __future__ import annotations

import pytest
from support import INTERRUPTED, SKIPPED, Session, at, check_invariants, open_session, settings
from support.gates import SLOW_ANSWER, THREE_TOOLS, Gates, begin, tick
from trio.testing import MockClock

from chain import events

RETRIES = """
rules:
  - {times: 2, error: {message: It is busy, retryable: true, retry_after: 60}}
  - {when: {interruption: .}, text: Noted.}
  - {text: The answer.}
"""


def interruption(session: Session) -> events.UserInterruption:
    (found,) = session.of(events.UserInterruption)
    assert isinstance(found, events.UserInterruption)
    return found


def told(session: Session, n: int = -1) -> list[str]:
    return session.sent(n).splitlines()


@pytest.mark.spec("4", "N: a now line cuts the reply")
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


@pytest.mark.spec("4", "N: a now line cuts the reply")
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


@pytest.mark.spec("4", "N: a now line cancels the tools")
@pytest.mark.spec("3", "!!any text")
async def test_running_tools_are_cancelled_and_the_others_skipped() -> None:
    gates = Gates()
    async with open_session(THREE_TOOLS, tools=gates.tools) as session:
        await begin(session, gates, "a")
        session.chain.submit("!!use A")
        await session.chain.wait_idle()

        assert [e.text for e in session.of(events.ToolResult)] == [INTERRUPTED, SKIPPED, SKIPPED]
        assert gates.did == ["+a", "!a"]
        entered = interruption(session)
        assert (entered.point, entered.tools_skipped) == ("N", ("gate", "gate"))
        assert (session.result.status, session.result.iterations) == ("done", 2)
        assert "[The user" not in session.sent()
        check_invariants(session)


@pytest.mark.spec("4", "N: a now line during a retry pause")
async def test_a_retry_pause_ends_and_the_call_is_made_with_the_line_in_the_same_iteration(
    mock_clock: MockClock,
) -> None:
    async with open_session(RETRIES, use=settings(max_iterations=1)) as session:
        at(session, events.Retry, lambda: session.chain.submit("!!use A"))
        session.chain.submit("Do the task")
        mock_clock.autojump_threshold = 0
        await session.chain.wait_idle()

        entered = interruption(session)
        assert (entered.point, entered.iteration, entered.remaining) == ("N", 1, 1)
        assert told(session)[:2] == ["user: Do the task", "user: USER INTERRUPTION: use A"]
        assert (session.result.status, session.result.iterations) == ("done", 1)
        check_invariants(session, max_iterations=1)


@pytest.mark.spec("4", "N: a now line on the last iteration")
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


@pytest.mark.spec("4", "N: a now line needs no room")
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
        session.chain.drop("L2")
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
        session.chain.drop("L2")
        mock_clock.autojump_threshold = 0
        await session.chain.wait_idle()
        assert told(session) == ["user: Do the task", "assistant: The whole ", "user: Please continue."]
        assert session.result.status == "done"
        check_invariants(session)


async def test_a_question_now_leads_back_to_the_task(mock_clock: MockClock) -> None:
    async with open_session(SLOW_ANSWER) as session:
        session.chain.submit("Do the task")
        await tick(mock_clock)
        session.chain.submit("!!how far are you?")
        mock_clock.autojump_threshold = 0
        await session.chain.wait_idle()
        assert session.result.replies[0] == "Noted."
        assert "Your reply was shown to the user." in session.sent()
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
