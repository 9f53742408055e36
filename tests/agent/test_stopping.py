"""The text, the results and the conversation that remain after a stop or an interrupt. L1 is the query."""

import pytest
from support.checks import check_next_run, checked_session
from support.gates import THREE_TOOLS, Gates, advance, finish_run, start_run, started_gates
from support.sessions import call_at_event, open_session
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.text.wording import INTERRUPT_NOTE, QUESTION, STOP_NOTE

# A tool that returns a result and an unknown one, then an answer in two pieces.
TOOLS_THEN_ANSWER = """
rules:
  - {when: {interruption: .}, text: Noted.}
  - {when: {step: 1}, tools: [{name: gate, input: {at: a}}, {name: nothing, input: {}}]}
  - {text: The whole answer., pace: {chunk: 10, delay_s: 10}}
"""


async def test_interrupts_at_a_result_hit_the_follow_up() -> None:
    async with open_session("rules: [{text: The answer.}]") as session:
        call_at_event(session, events.TextDelta, lambda: session.chain.submit("then: Do the next task"))
        call_at_event(session, events.Result, session.interrupt)
        session.chain.submit("Do the task")
        await session.chain.wait_idle()
        assert [r.status for r in session.of(events.Result)] == ["done", "interrupted"]
        assert len(session.model.requests) == 1
        await check_next_run(session)


async def test_an_interrupt_keeps_only_the_shown_text(mock_clock: MockClock) -> None:
    model = """
rules:
  - {when: {user: another}, text: The answer.}
  - thinking: 'Hm, hm, hm'
    text: Let me look at it all.
    tools: [{name: gate, input: {at: a}}]
    pace: {chunk: 10, delay_s: 10}
"""
    async with open_session(model, tools=Gates("a").tools) as session:
        session.chain.submit("Do the task")
        for _ in range(2):  # the thinking, then ten characters of the text
            await advance(mock_clock)
        assert [e.type for e in session.of(events.ThinkingDelta, events.TextDelta)] == ["thinking_delta", "text_delta"]
        session.interrupt()
        await session.chain.wait_idle()
        result = session.result
        assert (result.status, result.phase_reached) == ("interrupted", "answering")
        assert result.result == "Interrupted. Tell the chain what to do instead."
        assert session.conversation == ["Do the task", "Let me loo", INTERRUPT_NOTE]
        assert started_gates(session) == []
        await check_next_run(session)


@pytest.mark.parametrize("reply", ["thinking: Hm, text: Text.", "text: '   Text.'"], ids=["thinking", "blank text"])
async def test_an_interrupt_keeps_no_blank_text(reply: str, mock_clock: MockClock) -> None:
    model = f"rules: [{{when: {{user: another}}, text: Done.}}, {{{reply}, pace: {{chunk: 2, delay_s: 10}}}}]"
    async with open_session(model) as session:
        session.chain.submit("Do the task")
        await advance(mock_clock)
        session.interrupt()
        await session.chain.wait_idle()
        assert session.conversation == ["Do the task", INTERRUPT_NOTE]
        await check_next_run(session)


RESULTS = "Here's what I found before you cancelled:\n• gate: a is done\n[1 done, 0 skipped]"


async def test_a_stop_before_an_answer_shows_results() -> None:
    async with checked_session(TOOLS_THEN_ANSWER, tools=Gates("a").tools) as session:
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        session.chain.submit("stop")
        await session.chain.wait_idle()
        result = session.result
        assert (result.status, result.phase_reached) == ("cancelled_with_partial", "thinking")
        assert result.partial_results == ("a is done",), "without the error of the unknown tool"
        assert result.result == f"{RESULTS}\n\n{QUESTION}"
        _query, _calls, _results, *after_tools = session.conversation
        assert after_tools == [STOP_NOTE]


async def test_a_stop_while_answering_shows_text_and_results(mock_clock: MockClock) -> None:
    async with checked_session(TOOLS_THEN_ANSWER, tools=Gates("a").tools) as session:
        session.chain.submit("Do the task")
        await advance(mock_clock)
        session.chain.submit("stop")
        await session.chain.wait_idle()
        result = session.result
        assert (result.status, result.phase_reached) == ("cancelled_during_synthesis", "answering")
        assert result.partial_results == ("a is done",)
        note = "Results found but response generation was cancelled."
        assert result.result == f"The whole\n\n{RESULTS}\n\n{note}\n\n{QUESTION}"
        _query, _calls, _results, *after_tools = session.conversation
        assert after_tools == ["The whole ", STOP_NOTE]


async def test_a_stop_shows_nothing_of_a_broken_reply(mock_clock: MockClock) -> None:
    model = "rules: [{text: The answer., error: {message: away, retryable: true, retry_after: 20, times: 1, after: 5}}]"
    async with checked_session(model) as session:
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        session.chain.submit("stop")
        await session.chain.wait_idle()
        assert (session.result.result, session.result.phase_reached) == (f"Cancelled. {QUESTION}", "thinking")
        assert [(r.state, r.reason) for r in session.chain.lines.receipts if r.id == "L2"] == [("handled", "")]
        assert session.conversation == ["Do the task", STOP_NOTE]


async def test_a_stop_at_the_result_finds_nothing_running() -> None:
    replies: list[str] = []
    async with checked_session("rules: [{text: The answer.}]") as session:
        call_at_event(session, events.Result, lambda: replies.append(session.chain.submit("stop").message))
        assert (await session.run("Do the task")).status == "done"
        assert replies == ["Nothing is running."]
        assert [r.id for r in session.chain.lines.receipts] == ["L1"]
        await check_next_run(session)


async def test_several_stops_are_one_and_all_handled() -> None:
    gates = Gates()
    async with open_session(THREE_TOOLS, tools=gates.tools) as session:
        await start_run(session, gates, "a", "!shorter")
        for phrase in ("stop", "Never mind.", "forget it"):
            assert session.chain.submit(phrase).what == "stopping"
        result = await finish_run(session, gates)
        assert len(session.of(events.Result)) == 1
        assert session.conversation.count(STOP_NOTE) == 1
        assert session.state("L2") == "returned"
        assert [session.state(id) for id in ("L3", "L4", "L5")] == ["handled"] * 3
        assert result.exit_code == 3, "a line was returned"
        assert result.result.endswith(f"[1 done, 2 skipped]\n\n{QUESTION}")
        assert session.of(events.UserInterruption) == []
