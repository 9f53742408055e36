"""What stops a run, and what a run that was stopped leaves: stop phrases, and interrupts at every place of the loop.

What steers a run without stopping it is in ``test_steering.py``.
"""

from __future__ import annotations

import pytest
import trio
from support import (
    SKIPPED,
    MemoryFile,
    Session,
    at,
    check_invariants,
    open_session,
    settings,
)
from support.checks import check_next_run
from support.gates import THREE_ROUNDS, THREE_TOOLS, Gates, begin, finish, started, tick
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.tools.tool import ToolContext, tool

STOPPED = "[The user stopped the run here]"
INTERRUPTED_HERE = "[The user interrupted the run here]"
QUESTION = "What would you like to do instead?"

SURVEY = """
rules:
  - {when: {interruption: .}, text: Noted.}
  - {when: {step: 1}, tools: [{name: gate, input: {at: a}}, {name: nothing, input: {}}]}
  - {text: The whole answer., pace: {chunk: 10, delay_s: 10}}
"""
"""A tool that finds something and one that fails, then an answer in two pieces."""


def texts(session: Session) -> list[str]:
    """The texts of the conversation as the journal has them, and ``results`` for a message of these."""
    found = [r["message"]["content"] for r in session.records if r["type"] == "message"]
    return ["results" if c[0]["type"] == "tool_result" else c[0].get("text", "call") for c in found]


async def test_an_interrupt_at_a_result_strikes_the_run_that_follows_at_once() -> None:
    async with open_session("rules: [{text: The answer.}]") as session:
        at(session, events.TextDelta, lambda: session.chain.submit("then: Do the next task"))
        at(session, events.Result, session.interrupt)
        session.chain.submit("Do the task")
        await session.chain.wait_idle()
        assert [r.status for r in session.of(events.Result)] == ["done", "interrupted"]
        assert len(session.model.requests) == 1
        await check_next_run(session)


# ------------------------------------------------------------------------------------------- what an interrupt leaves


async def test_an_interrupt_keeps_the_text_that_was_shown_and_nothing_else_of_the_reply(mock_clock: MockClock) -> None:
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
        messages = [r["message"] for r in session.records if r["type"] == "message"]
        assert [b["type"] for m in messages for b in m["content"]] == ["text"] * 3
        assert [t.strip() for t in texts(session)] == ["Do the task", "Let me loo", INTERRUPTED_HERE]
        assert started(session) == []
        await check_next_run(session)


@pytest.mark.parametrize("shown", ["nothing", "thinking", "blank text"])
async def test_what_is_blank_is_not_kept(shown: str, mock_clock: MockClock) -> None:
    said = {"nothing": "text: Text.", "thinking": "thinking: Hm\n    text: Text.", "blank text": "text: '   Text.'"}
    model = "rules:\n  - {when: {user: another}, text: The answer.}\n  - " + said[shown]
    async with open_session(f"{model}\n    pace: {{chunk: 2, delay_s: 10}}") as session:
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        if shown != "nothing":
            await tick(mock_clock)
        session.interrupt()
        await session.chain.wait_idle()
        assert texts(session) == ["Do the task", INTERRUPTED_HERE]
        await check_next_run(session)


# --------------------------------------------------------------------------------------------------------- stop phrases


LIST = "Here's what I found before you cancelled:\n• gate: a is done\n[1 done, 0 skipped]"


@pytest.mark.parametrize("is_shown", [False, True])
async def test_a_stop_after_the_tools_shows_what_was_found_and_the_answer_so_far(
    is_shown: bool, mock_clock: MockClock
) -> None:
    """What failed is no result."""
    async with open_session(SURVEY, tools=Gates("a").tools) as session:
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
        assert [t.strip() for t in texts(session)[3:]] == (["The whole", STOPPED] if is_shown else [STOPPED])
        check_invariants(session)


async def test_a_stop_in_the_wait_before_another_attempt_shows_nothing_of_the_reply_that_broke(
    mock_clock: MockClock,
) -> None:
    model = "rules: [{text: The answer., error: {message: away, retryable: true, retry_after: 20, times: 1, after: 5}}]"
    async with open_session(model) as session:
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        session.chain.submit("stop")
        await session.chain.wait_idle()
        assert (session.result.result, session.result.phase_reached) == (f"Cancelled. {QUESTION}", "thinking")
        assert [(r.state, r.reason) for r in session.chain.lines.receipts if r.id == "L2"] == [("handled", "")]
        assert texts(session) == ["Do the task", STOPPED]
        check_invariants(session)


async def test_a_stop_before_the_first_tool_has_a_result() -> None:
    """The tool that runs fails, so nothing was found."""

    @tool
    async def fails(ctx: ToolContext) -> str:
        """Fail when the stop is there."""
        await trio.testing.wait_all_tasks_blocked()
        raise OSError("no")

    model = "rules: [{tools: [{name: fails, input: {}}, {name: fails, input: {}}]}]"
    async with open_session(model, tools=[fails]) as session:
        at(session, events.ToolCall, lambda: session.chain.submit("stop"))
        result = await session.run("Do the task")
        assert (result.status, result.phase_reached, result.partial_results) == ("cancelled", "tools", ())
        assert result.result == "Cancelled before any results. What would you like to do?"
        assert [e.text for e in session.of(events.ToolResult)] == ["fails failed: OSError: no", SKIPPED]
        check_invariants(session)


async def test_a_stop_in_the_tools_skips_the_rest_and_shows_what_was_found() -> None:
    gates = Gates("a")
    async with open_session(THREE_TOOLS, tools=gates.tools) as session:
        await begin(session, gates, "b")
        session.chain.submit("stop")
        await wait_all_tasks_blocked()
        assert session.of(events.Result) == [], "the running tool finishes"
        result = await finish(session, gates)
        assert started(session) == ["a", "b"]
        assert (result.status, result.phase_reached) == ("cancelled_with_partial", "tools")
        assert (result.termination_reason, result.partial) == ("user_cancelled", True)
        assert result.result == (
            "Here's what I found before you cancelled:\n• gate: a is done\n• gate: b is done\n"
            f"[2 done, 1 skipped]\n\n{QUESTION}"
        )
        assert result.partial_results == ("a is done", "b is done")
        assert texts(session) == ["Do the task", "Looking.", "results", STOPPED]
        assert len(session.model.requests) == 1


async def test_a_stop_keeps_the_results_of_all_rounds() -> None:
    gates = Gates("a", "b")
    async with open_session(THREE_ROUNDS, tools=gates.tools) as session:
        await begin(session, gates, "c")
        session.chain.submit("stop")
        result = await finish(session, gates)
        assert (result.iterations, result.partial_results) == (3, ("a is done", "b is done", "c is done"))
        assert "[3 done, 0 skipped]" in result.result


async def test_a_stop_between_two_iterations_makes_no_call() -> None:
    gates, disk = Gates(), MemoryFile()
    async with open_session(THREE_TOOLS, tools=gates.tools, file=disk) as session:
        await begin(session, gates, "a")
        disk.hold()
        session.chain.submit("shorter")
        gates.let("a", "b", "c")
        await wait_all_tasks_blocked()
        assert len(session.of(events.ToolResult)) == 3
        assert session.chain.submit("stop").what == "stopping"
        disk.release()
        await session.chain.wait_idle()
        result = session.result
        assert (result.status, result.phase_reached) == ("cancelled_with_partial", "thinking")
        assert (result.iterations, len(session.model.requests)) == (1, 1)
        assert session.state("L2") == "delivered", "it was in already"
        check_invariants(session)


async def test_a_stop_in_the_step_of_the_result_finds_nothing_to_stop() -> None:
    said: list[str] = []
    async with open_session("rules: [{text: The answer.}]") as session:
        at(session, events.Result, lambda: said.append(session.chain.submit("stop").message))
        assert (await session.run("Do the task")).status == "done"
        assert said == ["Nothing is running."]
        assert [r.id for r in session.chain.lines.receipts] == ["L1"]
        await check_next_run(session)
        check_invariants(session)


async def test_a_stop_while_lines_are_carried_out_counts_as_after_the_tools() -> None:
    gates = Gates()
    async with open_session(THREE_TOOLS, tools=gates.tools) as session:
        at(session, events.PlanChanged, lambda: session.chain.submit("stop"))
        await begin(session, gates, "a", "todo: add x")
        result = await finish(session, gates)
        assert (result.status, result.phase_reached) == ("cancelled_with_partial", "thinking")
        assert len(session.model.requests) == 1


async def test_a_stop_is_a_stop_on_the_last_iteration_too() -> None:
    gates = Gates()
    async with open_session(THREE_TOOLS, tools=gates.tools, use=settings(max_iterations=1)) as session:
        await begin(session, gates, "a", "shorter", "then: Do the next task")
        session.chain.submit("stop")
        result = await finish(session, gates, max_iterations=1)
        assert result.status == "cancelled_with_partial"
        assert (session.state("L2"), session.state("L3")) == ("returned", "returned")


async def test_a_stop_needs_no_room_in_the_channel() -> None:
    gates = Gates()
    async with open_session(THREE_TOOLS, tools=gates.tools, use=settings(inbox_size=1)) as session:
        await begin(session, gates, "a", "shorter")
        assert session.chain.submit("slower").what == "refused"
        assert session.chain.submit("stop").what == "stopping"
        result = await finish(session, gates)
        assert result.status == "cancelled_with_partial"
        assert [(r.text, r.state) for r in session.chain.lines.receipts][1:] == [
            ("shorter", "returned"),
            ("stop", "handled"),
            ("slower", "refused"),
        ]


async def test_several_stops_are_one_and_each_is_handled() -> None:
    gates = Gates()
    async with open_session(THREE_TOOLS, tools=gates.tools) as session:
        await begin(session, gates, "a", "!shorter")
        for phrase in ("stop", "Never mind.", "forget it"):
            assert session.chain.submit(phrase).what == "stopping"
        result = await finish(session, gates)
        assert len(session.of(events.Result)) == 1
        assert texts(session).count(STOPPED) == 1
        assert [session.state(f"L{n}") for n in range(2, 6)] == ["returned", "handled", "handled", "handled"]
        assert result.result.endswith(f"[1 done, 2 skipped]\n\n{QUESTION}")
        assert session.of(events.UserInterruption) == []


@pytest.mark.parametrize("line", ["use B", "!use B", "todo: add x", "then: x"])
async def test_a_line_after_the_stop_comes_back_as_well(line: str) -> None:
    gates = Gates()
    async with open_session(THREE_TOOLS, tools=gates.tools) as session:
        await begin(session, gates, "a")
        session.chain.submit("stop")
        assert session.chain.submit(line).what == "queued"
        result = await finish(session, gates)
        assert (session.state("L3"), result.exit_code) == ("returned", 3)
        assert session.chain.plan.tasks == ()
