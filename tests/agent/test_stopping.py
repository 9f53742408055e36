"""What stops and interrupts leave of a run: the shown text, the results and the conversation."""

from __future__ import annotations

import pytest
from support import (
    at,
    checked_session,
    open_session,
)
from support.checks import check_next_run
from support.gates import THREE_TOOLS, Gates, begin, finish, started, tick
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.text.wording import INTERRUPT_NOTE, QUESTION, STOP_NOTE

SURVEY = """
rules:
  - {when: {interruption: .}, text: Noted.}
  - {when: {step: 1}, tools: [{name: gate, input: {at: a}}, {name: nothing, input: {}}]}
  - {text: The whole answer., pace: {chunk: 10, delay_s: 10}}
"""
"""A tool that finds something and one that fails, then an answer in two pieces."""


async def test_interrupts_at_a_result_hit_the_next_run() -> None:
    async with open_session("rules: [{text: The answer.}]") as session:
        at(session, events.TextDelta, lambda: session.chain.submit("then: Do the next task"))
        at(session, events.Result, session.interrupt)
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
        for _ in range(2):
            await tick(mock_clock)
        assert [e.type for e in session.of(events.ThinkingDelta, events.TextDelta)] == ["thinking_delta", "text_delta"]
        session.interrupt()
        await session.chain.wait_idle()
        result = session.result
        assert (result.status, result.phase_reached) == ("interrupted", "answering")
        assert result.result == "Interrupted. Tell the chain what to do instead."
        assert session.conversation == ["Do the task", "Let me loo", INTERRUPT_NOTE]
        assert started(session) == []
        await check_next_run(session)


@pytest.mark.parametrize("shown", ["nothing", "thinking", "blank text"])
async def test_an_interrupt_keeps_no_blank_text(shown: str, mock_clock: MockClock) -> None:
    said = {"nothing": "text: Text.", "thinking": "thinking: Hm\n    text: Text.", "blank text": "text: '   Text.'"}
    model = "rules:\n  - {when: {user: another}, text: The answer.}\n  - " + said[shown]
    async with open_session(f"{model}\n    pace: {{chunk: 2, delay_s: 10}}") as session:
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        if shown != "nothing":
            await tick(mock_clock)
        session.interrupt()
        await session.chain.wait_idle()
        assert session.conversation == ["Do the task", INTERRUPT_NOTE]
        await check_next_run(session)


LIST = "Here's what I found before you cancelled:\n• gate: a is done\n[1 done, 0 skipped]"


@pytest.mark.parametrize("is_shown", [False, True])
async def test_a_stop_after_tools_shows_results_and_text(is_shown: bool, mock_clock: MockClock) -> None:
    """What failed is no result."""
    async with checked_session(SURVEY, tools=Gates("a").tools) as session:
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        if is_shown:
            await tick(mock_clock)
        session.chain.submit("stop")
        await session.chain.wait_idle()
        result, note = session.result, "Results found but response generation was cancelled."
        assert result.phase_reached == ("answering" if is_shown else "thinking")
        assert result.status == ("cancelled_during_synthesis" if is_shown else "cancelled_with_partial")
        assert result.partial_results == ("a is done",)
        assert result.result.split("\n\n") == (["The whole", LIST, note, QUESTION] if is_shown else [LIST, QUESTION])
        assert session.conversation[3:] == (["The whole ", STOP_NOTE] if is_shown else [STOP_NOTE])


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
    said: list[str] = []
    async with checked_session("rules: [{text: The answer.}]") as session:
        at(session, events.Result, lambda: said.append(session.chain.submit("stop").message))
        assert (await session.run("Do the task")).status == "done"
        assert said == ["Nothing is running."]
        assert [r.id for r in session.chain.lines.receipts] == ["L1"]
        await check_next_run(session)


async def test_several_stops_are_one_and_all_handled() -> None:
    gates = Gates()
    async with open_session(THREE_TOOLS, tools=gates.tools) as session:
        await begin(session, gates, "a", "!shorter")
        for phrase in ("stop", "Never mind.", "forget it"):
            assert session.chain.submit(phrase).what == "stopping"
        result = await finish(session, gates)
        assert len(session.of(events.Result)) == 1
        assert session.conversation.count(STOP_NOTE) == 1
        assert [session.state(f"L{n}") for n in range(2, 6)] == ["returned", "handled", "handled", "handled"]
        assert result.exit_code == 3, "a line was returned"
        assert result.result.endswith(f"[1 done, 2 skipped]\n\n{QUESTION}")
        assert session.of(events.UserInterruption) == []
