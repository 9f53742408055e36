"""What stops a run, and what a run that was stopped leaves: stop phrases, and interrupts at every place of the loop.

What steers a run without stopping it is in ``test_steering.py``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import trio
from support import (
    INTERRUPTED,
    SKIPPED,
    MemoryFile,
    Session,
    at,
    check_invariants,
    check_silence,
    open_session,
    settings,
)
from support.gates import SLOW_ANSWER, THREE_ROUNDS, THREE_TOOLS, Gates, begin, finish, results, started, tick
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.lines.parse import STOP_PHRASES
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


class Key:
    """Esc, and where among the events it was pressed."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.pressed_at: list[int] = []

    def press(self) -> bool:
        self.pressed_at.append(len(self.session.events))
        return self.session.chain.interrupt()


@asynccontextmanager
async def interrupting(model: str, **more: Any) -> AsyncIterator[tuple[Session, Key]]:
    """A session, and a check at its end that silence followed every interrupt and that the next run works."""
    async with open_session(model, **more) as session:
        key = Key(session)
        yield session, key
        await session.chain.wait_idle()
        check_invariants(session)
        check_silence(session, key.pressed_at)


def texts(session: Session) -> list[str]:
    """The texts of the conversation as the journal has them, and ``results`` for a message of these."""
    found = [r["message"]["content"] for r in session.records if r["type"] == "message"]
    return ["results" if c[0]["type"] == "tool_result" else c[0].get("text", "call") for c in found]


async def works_again(session: Session) -> None:
    """The next run is like any other: it is answered, and nothing of it is skipped or cut."""
    count = len(session.events)
    session.chain.submit("Do another task")
    await session.chain.wait_idle()
    assert session.result.status == "done"
    assert not [
        e for e in session.events[count:] if isinstance(e, events.ToolResult) and e.text in (SKIPPED, INTERRUPTED)
    ]


# --------------------------------------------------------------------------------------- the four checks, and between


@pytest.mark.parametrize("first", ["the key", "the end"])
async def test_an_interrupt_in_the_very_step_in_which_a_tool_ends_keeps_what_is_true(first: str) -> None:
    gates = Gates()
    async with interrupting(THREE_TOOLS, tools=gates.tools) as (session, key):
        await begin(session, gates, "a")
        if first == "the key":
            key.press()
        gates.let("a", "b", "c")
        if first == "the end":
            key.press()
        await session.chain.wait_idle()
        ended = INTERRUPTED if first == "the key" else "a is done"
        assert [e.text for e in session.of(events.ToolResult)] == [ended, SKIPPED, SKIPPED]
        assert started(session) == ["a"]
        await works_again(session)


async def test_an_interrupt_at_a_result_strikes_the_run_that_follows_at_once() -> None:
    async with interrupting("rules: [{text: The answer.}]") as (session, key):
        at(session, events.TextDelta, lambda: session.chain.submit("then: Do the next task"))
        at(session, events.Result, key.press)
        session.chain.submit("Do the task")
        await session.chain.wait_idle()
        assert [r.status for r in session.of(events.Result)] == ["done", "interrupted"]
        assert len(session.model.requests) == 1
        await works_again(session)


# ------------------------------------------------------------------------------------------- what an interrupt leaves


@pytest.mark.spec("7", "after an interrupt: the text, what is kept and what is dropped")
@pytest.mark.seed("003", "an interrupt while the reply streams")
async def test_an_interrupt_keeps_the_text_that_was_shown_and_nothing_else_of_the_reply(mock_clock: MockClock) -> None:
    model = """
rules:
  - {when: {user: another}, text: The answer.}
  - thinking: 'Hm, hm, hm'
    text: Let me look at it all.
    tools: [{name: gate, input: {at: a}}]
    pace: {chunk: 10, delay_s: 10}
"""
    async with interrupting(model, tools=Gates("a").tools) as (session, key):
        session.chain.submit("Do the task")
        for _ in range(2):
            await tick(mock_clock)
        assert [e.type for e in session.of(events.ThinkingDelta, events.TextDelta)] == ["thinking_delta", "text_delta"]
        key.press()
        await session.chain.wait_idle()
        result = session.result
        assert (result.status, result.phase_reached) == ("interrupted", "answering")
        assert result.result == "Interrupted. Tell the chain what to do instead."
        messages = [r["message"] for r in session.records if r["type"] == "message"]
        assert [b["type"] for m in messages for b in m["content"]] == ["text"] * 3
        assert [t.strip() for t in texts(session)] == ["Do the task", "Let me loo", INTERRUPTED_HERE]
        assert started(session) == []
        await works_again(session)


@pytest.mark.spec("7", "after an interrupt: the text, what is kept and what is dropped")
@pytest.mark.parametrize("shown", ["nothing", "thinking", "blank text"])
async def test_what_is_blank_is_not_kept(shown: str, mock_clock: MockClock) -> None:
    said = {"nothing": "text: Text.", "thinking": "thinking: Hm\n    text: Text.", "blank text": "text: '   Text.'"}
    model = "rules:\n  - {when: {user: another}, text: The answer.}\n  - " + said[shown]
    async with interrupting(f"{model}\n    pace: {{chunk: 2, delay_s: 10}}") as (session, key):
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        if shown != "nothing":
            await tick(mock_clock)
        key.press()
        await session.chain.wait_idle()
        assert texts(session) == ["Do the task", INTERRUPTED_HERE]
        await works_again(session)


@pytest.mark.seed("003", "the states after an interrupt")
@pytest.mark.seed("004", "cleanup after any ending")
async def test_an_interrupted_run_is_over_and_the_next_one_works() -> None:
    gates = Gates()
    async with interrupting(THREE_TOOLS, tools=gates.tools) as (session, key):
        await begin(session, gates, "a", "shorter", "!at once", "todo: add x", "then: Do the next task")
        assert key.press()
        assert session.chain.is_running, "until its ending is settled"
        await session.chain.wait_idle()
        assert not session.chain.is_running
        assert session.chain.waiting == ()
        assert {session.state(f"L{n}") for n in range(2, 6)} == {"returned"}
        assert session.chain.plan.tasks == (), "a todo that came back was not done"
        result = session.result
        assert (result.status, result.partial, result.phase_reached) == ("interrupted", True, "tools")
        assert (result.termination_reason, result.exit_code) == ("user_interrupted", 130)
        gates.let("a", "b", "c")
        await works_again(session)
        assert results(session)[-3:] == ["a is done", "b is done", "c is done"], "the urgent line is forgotten"


async def test_an_interrupt_kills_the_tool_that_a_stop_waits_for() -> None:
    gates = Gates("a")
    async with interrupting(THREE_TOOLS, tools=gates.tools) as (session, key):
        await begin(session, gates, "b")
        assert session.chain.submit("stop").what == "stopping"
        await wait_all_tasks_blocked()
        assert session.of(events.Result) == []
        key.press()
        await session.chain.wait_idle()
        assert session.result.status == "interrupted"
        assert [e.text for e in session.of(events.ToolResult)] == ["a is done", INTERRUPTED, SKIPPED]
        assert texts(session)[-1] == INTERRUPTED_HERE
        assert session.state("L2") == "handled"
        gates.let("b", "c")
        await works_again(session)


# --------------------------------------------------------------------------------------------------------- stop phrases


@pytest.mark.spec("3", "stop and the other phrases")
@pytest.mark.seed("004", "each phrase cancels")
@pytest.mark.parametrize("phrase", STOP_PHRASES)
async def test_each_stop_phrase_ends_the_run(phrase: str) -> None:
    gates = Gates()
    async with open_session(THREE_TOOLS, tools=gates.tools) as session:
        await begin(session, gates, "a")
        assert session.chain.submit(f"\t{phrase.title()}!").what == "stopping"
        result = await finish(session, gates)
        assert (result.status, session.state("L2")) == ("cancelled_with_partial", "handled")


FOUND = "Here's what I found before you cancelled:\n• gate: a is done\n[1 done, 0 skipped]"
THINKS = "rules: [{thinking: 'Hm, hm, hm', text: The answer., pace: {chunk: 10, delay_s: 10}}]"
AWAY = "rules: [{text: The answer., error: {message: away, retryable: true, retry_after: 20, times: 1, after: 5}}]"


@dataclass(frozen=True)
class Stop:
    """A stop after so many ticks of the clock (``None``: before the first step), and what it shows and leaves."""

    model: str
    ticks: int | None
    status: str
    phase: str
    shows: Sequence[str]
    partial: tuple[str, ...] = ()
    texts: Sequence[str] = ()
    requests: int = 1
    iterations: int = 1


STOPS = [
    pytest.param(
        Stop(AWAY, None, "cancelled", "thinking", ["Cancelled."], requests=0, iterations=0),
        id="before the first step",
        marks=pytest.mark.seed("004", "cancel before anything was done"),
    ),
    pytest.param(
        Stop(THINKS, 1, "cancelled", "thinking", ["Cancelled."]),
        id="while the model thinks",
        marks=[pytest.mark.spec("7", "thinking, none"), pytest.mark.seed("004", "cancel while thinking")],
    ),
    pytest.param(
        # What failed is no result.
        Stop(
            SURVEY,
            0,
            "cancelled_with_partial",
            "thinking",
            [FOUND],
            ("a is done",),
            ["call", "results"],
            2,
            iterations=2,
        ),
        id="while the model thinks about results",
        marks=pytest.mark.spec("7", "thinking, some"),
    ),
    pytest.param(
        Stop(SLOW_ANSWER, 1, "cancelled", "answering", ["The whole"], texts=["The whole"]),
        id="in an answer",
        marks=[
            pytest.mark.spec("7", "stop, in a reply that streams"),
            pytest.mark.spec("7", "answering, none"),
            pytest.mark.seed("004", "cancel in the answer, no results"),
        ],
    ),
    pytest.param(
        Stop(
            SURVEY,
            1,
            "cancelled_during_synthesis",
            "answering",
            ["The whole", FOUND, "Results found but response generation was cancelled."],
            ("a is done",),
            ["call", "results", "The whole"],
            requests=2,
            iterations=2,
        ),
        id="in an answer, with results",
        marks=[pytest.mark.spec("7", "answering, some"), pytest.mark.seed("004", "cancel in the answer, some results")],
    ),
    # The text is taken back.
    pytest.param(Stop(AWAY, 0, "cancelled", "thinking", ["Cancelled."]), id="in the wait before another attempt"),
]


@pytest.mark.parametrize("stop", STOPS)
async def test_what_a_stop_shows(stop: Stop, mock_clock: MockClock) -> None:
    async with open_session(stop.model, tools=Gates("a").tools) as session:
        session.chain.submit("Do the task")
        if stop.ticks is not None:
            await wait_all_tasks_blocked()
        for _ in range(stop.ticks or 0):
            await tick(mock_clock)
        begun = trio.current_time()
        assert session.chain.submit("stop").what == "stopping"
        await session.chain.wait_idle()
        assert trio.current_time() == begun, "the reply is cut at once"
        result = session.result
        assert (result.status, result.phase_reached, result.partial_results) == (stop.status, stop.phase, stop.partial)
        separator = " " if list(stop.shows) == ["Cancelled."] else "\n\n"
        assert result.result == separator.join([*stop.shows, QUESTION])
        assert [t.strip() for t in texts(session)] == ["Do the task", *stop.texts, STOPPED]
        assert (len(session.model.requests), result.iterations) == (stop.requests, stop.iterations)
        check_invariants(session)
        mock_clock.autojump_threshold = 0
        await works_again(session)
        check_invariants(session)


@pytest.mark.spec("7", "tools, none")
@pytest.mark.seed("004", "cancel in the tools, no result yet")
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


@pytest.mark.spec("4", "C: before each tool, the first included")
@pytest.mark.spec("4", "a stop waits after the tools: the run ends")
@pytest.mark.spec("7", "stop, in a tool")
@pytest.mark.spec("7", "tools, some")
@pytest.mark.seed("004", "cancel in the tools, some results")
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
        assert result.result == (
            "Here's what I found before you cancelled:\n• gate: a is done\n• gate: b is done\n"
            f"[2 done, 1 skipped]\n\n{QUESTION}"
        )
        assert result.partial_results == ("a is done", "b is done")
        assert texts(session) == ["Do the task", "Looking.", "results", STOPPED]
        assert len(session.model.requests) == 1


@pytest.mark.seed("004", "cancel in the tools of a later round")
async def test_a_stop_keeps_the_results_of_all_rounds() -> None:
    gates = Gates("a", "b")
    async with open_session(THREE_ROUNDS, tools=gates.tools) as session:
        await begin(session, gates, "c")
        session.chain.submit("stop")
        result = await finish(session, gates)
        assert (result.iterations, result.partial_results) == (3, ("a is done", "b is done", "c is done"))
        assert "[3 done, 0 skipped]" in result.result


@pytest.mark.seed("004", "cancel between two phases")
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


async def test_a_stop_in_the_step_in_which_the_tools_of_a_reply_are_known_skips_them() -> None:
    for kind in (events.UsageReport, events.Reply):
        async with open_session(THREE_TOOLS, tools=Gates("a", "b", "c").tools) as session:
            at(session, kind, lambda session=session: session.chain.submit("stop"))
            result = await session.run("Do the task")
            assert started(session) == []
            assert [e.text for e in session.of(events.ToolResult)] == [SKIPPED] * 3
            assert (result.status, result.phase_reached) == ("cancelled", "answering")
            assert result.result == f"Looking.\n\n{QUESTION}"
            assert texts(session) == ["Do the task", "Looking.", "results", STOPPED]
            check_invariants(session)


@pytest.mark.seed("004", "a race of a stop at completion")
async def test_a_stop_in_the_step_of_the_last_reply_ends_the_run() -> None:
    async with open_session("rules: [{text: The answer.}]") as session:
        at(session, events.TextDelta, lambda: session.chain.submit("shorter"))
        at(session, events.TextDelta, lambda: session.chain.submit("then: Do the next task"))
        at(session, events.Reply, lambda: session.chain.submit("stop"))
        result = await session.run("Do the task")
        assert (result.status, result.result) == ("cancelled", f"The answer.\n\n{QUESTION}")
        assert texts(session) == ["Do the task", "The answer.", STOPPED]
        assert (session.state("L2"), session.state("L3")) == ("returned", "returned")
        check_invariants(session)


@pytest.mark.seed("004", "a race of a stop at completion")
async def test_a_stop_in_the_step_of_the_result_finds_nothing_to_stop() -> None:
    said: list[str] = []
    async with open_session("rules: [{text: The answer.}]") as session:
        at(session, events.Result, lambda: said.append(session.chain.submit("stop").message))
        assert (await session.run("Do the task")).status == "done"
        assert said == ["Nothing is running."]
        assert [r.id for r in session.chain.receipts] == ["L1"]
        await works_again(session)
        check_invariants(session)


async def test_a_stop_while_lines_are_carried_out_counts_as_after_the_tools() -> None:
    gates = Gates()
    async with open_session(THREE_TOOLS, tools=gates.tools) as session:
        at(session, events.PlanChanged, lambda: session.chain.submit("stop"))
        await begin(session, gates, "a", "todo: add x")
        result = await finish(session, gates)
        assert (result.status, result.phase_reached) == ("cancelled_with_partial", "thinking")
        assert len(session.model.requests) == 1


@pytest.mark.parametrize("limit", [1, 20])
async def test_a_stop_is_a_stop_on_the_last_iteration_too(limit: int) -> None:
    gates = Gates()
    async with open_session(THREE_TOOLS, tools=gates.tools, use=settings(max_iterations=limit)) as session:
        await begin(session, gates, "a", "shorter", "then: Do the next task")
        session.chain.submit("stop")
        result = await finish(session, gates, max_iterations=limit)
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
        assert [(r.text, r.state) for r in session.chain.receipts][1:] == [
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


@pytest.mark.seed("004", "cleanup after any ending")
async def test_after_a_stop_the_next_line_starts_a_run_on_the_same_conversation() -> None:
    gates = Gates("b", "c")
    async with open_session(THREE_TOOLS, tools=gates.tools) as session:
        await begin(session, gates, "a")
        session.chain.submit("stop")
        await finish(session, gates)
        assert (await session.run("Do another task")).status == "done"
        assert session.sent() == (
            f"user: Do the task\nassistant: Looking.\nuser: a is done, {SKIPPED}, {SKIPPED}\nuser: {STOPPED}\n"
            "user: Do another task\nassistant: Looking.\nuser: a is done, b is done, c is done"
        )
        assert session.result.partial_results == (), "each run has its own"
        check_invariants(session)
