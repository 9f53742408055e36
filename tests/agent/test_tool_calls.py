"""The tool calls of a reply: which run in parallel, and what lines, interrupts and errors do to them."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from support.checks import checked_session
from support.disks import FullDisk, MemoryFile
from support.gates import Gates
from support.sessions import Session, call_at_event
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.agent.conversation import INTERRUPTED, SKIPPED
from chain.agent.tool_calls import MAX_CALLS_AT_ONCE, batches
from chain.tools.tool import Tool, ToolContext, tool

QUERY_ID = "L1"
"""The id of a session's first line."""


def model_calling(calls: Sequence[str]) -> str:
    """Return the rules of a model whose first reply makes these calls ("NAME ARGUMENT"), and which then answers."""
    rows = [f"{{name: {name}, input: {{at: {at}}}}}" for name, at in (call.split() for call in calls)]
    return f"rules: [{{times: 1, text: Looking., tools: [{', '.join(rows)}]}}, {{text: The answer.}}]"


@asynccontextmanager
async def running_calls(
    *calls: str, tools: Sequence[Tool] = (), file: MemoryFile | None = None
) -> AsyncIterator[tuple[Session, Gates]]:
    """Run a model that makes these calls until its tools wait at their gates. Finally, wait for the run.

    In the log of the gates, ``+a`` is gate a reached, ``-a`` passed, and ``!a`` cancelled there.
    """
    gates = Gates()
    async with checked_session(
        model_calling(calls), tools=[*gates.tools, *tools, raising_tool(gates)], file=file
    ) as session:
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        yield session, gates
        await session.chain.wait_idle()


class Abrupt(BaseException):
    """An exception that is no ``Exception``."""


def raising_tool(gates: Gates) -> Tool:
    """Return a tool that raises ``Abrupt`` after its gate, also when it is cancelled there."""

    @tool(read_only=True)
    async def raise_abruptly(ctx: ToolContext, at: str) -> str:
        """Raise."""
        try:
            await gates.wait_at(at)
        finally:
            raise Abrupt(at)

    return raise_abruptly


async def open_gates(session: Session, gates: Gates, *names: str) -> None:
    """Open these gates, one after the other, and wait for the end of the run."""
    for name in names:
        gates.open(name)
        await wait_all_tasks_blocked()
    await session.chain.wait_idle()


def results(session: Session) -> list[str]:
    """Return the recorded results of the first reply's calls."""
    _query, _calls, message, *_ = session.conversation
    return message.split(" | ")


def ids(session: Session, type: str) -> list[str]:
    """Return the ids of the calls in records of this type."""
    return [r["id"] for r in session.records if r["type"] == type]


def call_ids(session: Session) -> list[str]:
    """Return the ids of the calls, in the order of the reply."""
    return [block.id for message in session.chain.runs.executor.conversation.messages for block in message.calls]


def test_adjacent_reading_calls_are_a_batch() -> None:
    """In this string, each "r" is a call that reads, and each "w" one that writes."""
    assert ["".join(batch) for batch in batches("wrrwwr", lambda c: c == "r")] == ["w", "rr", "w", "w", "r"]


@given(st.lists(st.tuples(st.integers(), st.booleans())))
def test_batches_are_maximal_and_keep_the_order(calls: list[tuple[int, bool]]) -> None:
    def is_reading(call: tuple[int, bool]) -> bool:
        return call[1]

    found = list(batches(calls, is_reading))

    assert [call for batch in found for call in batch] == calls
    assert all(len(batch) == 1 or (batch and all(map(is_reading, batch))) for batch in found)
    assert not any(is_reading(last) and is_reading(first) for (*_, last), (first, *_) in pairwise(found))


async def test_only_reading_calls_run_in_parallel() -> None:
    calls = ["look a", "look b", "change c", "change d", "look e", "look f"]
    async with running_calls(*calls) as (session, gates):
        started_before_opening = {}
        for name in "bacdfe":
            started_before_opening[name] = "".join(gates.reached_names)
            gates.open(name)
            await wait_all_tasks_blocked()
        expected = {"b": "ab", "a": "ab", "c": "abc", "d": "abcd", "f": "abcdef", "e": "abcdef"}
        assert started_before_opening == expected
        assert results(session) == [f"seen {name}" for name in "abcdef"]


async def test_starts_are_ordered_and_recorded_first() -> None:
    gates, counts = Gates(is_open=True), list[tuple[int, int]]()
    async with checked_session(model_calling(["look a", "look b", "look c"]), tools=gates.tools) as session:

        def count_starts(event: events.Event) -> None:
            if isinstance(event, events.ToolCall):
                counts.append((len(ids(session, "tool_started")), len(gates.reached_names)))

        session.chain.listen(count_starts)
        await session.run("Do the task")
        assert gates.reached_names == ["a", "b", "c"]
        assert counts == [(1, 0), (2, 1), (3, 2)], "a call is recorded before its tool starts"
        assert ids(session, "tool_started") == call_ids(session)
        assert sorted(ids(session, "tool_finished")) == sorted(call_ids(session))


NAMES = [f"n{n}" for n in range(MAX_CALLS_AT_ONCE + 2)]
AT_ONCE, QUEUED = NAMES[:MAX_CALLS_AT_ONCE], NAMES[MAX_CALLS_AT_ONCE:]
"""The arguments of calls that start together, and of two that wait for one of these to end."""


async def test_parallel_calls_are_limited() -> None:
    async with running_calls(*(f"look {n}" for n in NAMES)) as (session, gates):
        next_name, _ = QUEUED
        started = [f"+{name}" for name in AT_ONCE]
        assert gates.log == started
        assert len(session.of(events.ToolCall)) == MAX_CALLS_AT_ONCE
        gates.open("n5")
        await wait_all_tasks_blocked()
        assert gates.log == [*started, "-n5", f"+{next_name}"]
        assert [e.text for e in session.of(events.ToolResult)] == ["seen n5"], "published as soon as its tool ends"
        await open_gates(session, gates, *NAMES)
        assert results(session) == [f"seen {n}" for n in NAMES]


async def test_each_call_has_its_own_time_limit(mock_clock: MockClock) -> None:
    @tool(read_only=True, timeout_s=3)
    async def short(ctx: ToolContext, at: str) -> str:
        """Wait."""
        await trio.sleep_forever()

    @tool(read_only=True, timeout_s=7)
    async def long(ctx: ToolContext, at: str) -> str:
        """Wait."""
        await trio.sleep(6)
        return "in time"

    async with running_calls("short a", "long b", "short c", tools=[short, long]) as (session, _):
        mock_clock.jump(3)
        await wait_all_tasks_blocked()
        assert [(e.name, e.seconds) for e in session.of(events.ToolResult)] == [("short", 3), ("short", 3)]
        mock_clock.jump(3)
        await session.chain.wait_idle()
        limit = "short was stopped after 3 s, its time limit; it may have had effects."
        assert results(session) == [limit, "in time", limit]


async def test_each_tool_of_a_batch_gets_guidance() -> None:
    @tool(read_only=True)
    async def report(ctx: ToolContext, at: str) -> str:
        """Report."""
        ctx.progress(f"at {at}")
        await released.wait()
        return f"received {[a.value for a in (await ctx.safe_point('end')).adjustments]}"

    released = trio.Event()
    async with running_calls("report a", "report b", tools=[report]) as (session, _):
        session.chain.submit("focus on prices")
        released.set()
        await session.chain.wait_idle()
        assert results(session) == ["received ['prices']"] * 2
        progress = [(e.id, e.text) for e in session.of(events.ToolProgress)]
        assert progress == list(zip(call_ids(session), ["at a", "at b"], strict=True))


async def test_an_invalid_call_does_not_split_a_batch() -> None:
    async with running_calls("look a", "nothing x", "look b") as (session, gates):
        assert gates.reached_names == ["a", "b"]
        await open_gates(session, gates, "a", "b")
        first, second, third = results(session)
        assert (first, third) == ("seen a", "seen b")
        assert second.startswith("There is no tool 'nothing'.")
        a, x, b = call_ids(session)
        assert (ids(session, "tool_started"), sorted(ids(session, "tool_finished"))) == ([a, b], [a, b])
        [invalid] = [e for e in session.of(events.ToolResult) if e.id == x]
        assert (invalid.is_error, invalid.seconds) == (True, 0)


async def test_a_stop_finishes_started_calls_and_skips_others() -> None:
    async with running_calls(*(f"look {n}" for n in NAMES), "change x", "look y") as (session, gates):
        session.chain.submit("stop")
        await wait_all_tasks_blocked()
        assert session.chain.is_running
        await open_gates(session, gates, *NAMES)
        result = session.result
        assert (result.status, result.phase_reached) == ("cancelled_with_partial", "tools")
        assert result.partial_results == tuple(f"seen {n}" for n in AT_ONCE)
        skipped = [*QUEUED, "x", "y"]
        assert f"[{len(AT_ONCE)} done, {len(skipped)} skipped]" in result.result
        assert results(session) == [*result.partial_results, *[SKIPPED for _ in skipped]]
        assert len(session.model.requests) == 1


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("line", ["stop", "!now"])
@pytest.mark.parametrize("checkpoints", range(8))
async def test_stops_and_urgent_lines_hold_queued_calls(checkpoints: int, line: str) -> None:
    """The line comes this many checkpoints after a call has ended, so at each moment until the next call starts."""
    async with running_calls(*(f"look {n}" for n in NAMES)) as (session, gates):
        gates.open("n0")
        for _ in range(checkpoints):
            await trio.lowlevel.checkpoint()
        session.chain.submit(line)
        started = ids(session, "tool_started")
        await open_gates(session, gates, *NAMES)
        assert ids(session, "tool_started") == started


async def test_an_urgent_line_waits_for_the_batch() -> None:
    async with running_calls("look a", "look b", "change c", "look d") as (session, gates):
        gates.open("a")
        await wait_all_tasks_blocked()
        session.chain.submit("!use the other file")
        await open_gates(session, gates, "b")
        [interruption] = session.of(events.UserInterruption)
        assert (interruption.point, interruption.tools_skipped) == (events.Point.BEFORE_TOOL, ("change", "look"))
        assert results(session) == ["seen a", "seen b", SKIPPED, SKIPPED]


async def test_a_stop_at_a_batchs_start_skips_nothing() -> None:
    gates = Gates(is_open=True)
    async with checked_session(model_calling(["look a", "look b", "look c"]), tools=gates.tools) as session:
        call_at_event(session, events.ToolCall, lambda: session.chain.submit("stop"))
        await session.run("Do the task")
        assert results(session) == ["seen a", "seen b", "seen c"]
        assert session.result.status == "cancelled_with_partial"


async def test_an_interrupt_cancels_started_calls_only() -> None:
    async with running_calls(*(f"look {n}" for n in NAMES), "change x") as (session, gates):
        gates.open("n3")
        await wait_all_tasks_blocked()
        session.interrupt()
        await session.chain.wait_idle()
        assert (session.result.status, session.result.partial_results) == ("interrupted", ("seen n3",))
        after_n3, skipped = QUEUED
        cancelled = [*(name for name in AT_ONCE if name != "n3"), after_n3]
        assert gates.reached_names == [*AT_ONCE, after_n3]
        assert {entry for entry in gates.log if entry.startswith("!")} == {f"!{name}" for name in cancelled}
        result_of = {"n3": "seen n3", skipped: SKIPPED, "x": SKIPPED, **dict.fromkeys(cancelled, INTERRUPTED)}
        assert results(session) == [result_of[name] for name in (*NAMES, "x")]
        assert sorted(ids(session, "tool_started")) == sorted(ids(session, "tool_finished"))


async def test_an_interrupt_at_a_start_prevents_later_calls() -> None:
    gates = Gates()
    async with checked_session(model_calling(["look a", "look b", "look c"]), tools=gates.tools) as session:
        call_at_event(session, events.ToolCall, session.interrupt, nth=2)
        await session.run("Do the task")
        assert gates.log == ["+a", "!a"]
        assert results(session) == [INTERRUPTED, INTERRUPTED, SKIPPED]


async def test_any_exception_of_a_tool_is_its_result() -> None:
    async with running_calls("look a", "raise_abruptly b", "look c") as (session, gates):
        await open_gates(session, gates, "b", "a", "c")
        assert results(session) == ["seen a", "raise_abruptly failed: Abrupt: b", "seen c"]


async def test_an_exception_during_an_interrupt_is_the_result() -> None:
    async with running_calls("raise_abruptly a", "look b") as (session, _):
        session.interrupt()
        await session.chain.wait_idle()
        assert session.result.status == "interrupted"
        assert results(session) == ["raise_abruptly failed: Abrupt: a", INTERRUPTED]


async def test_internal_errors_propagate_and_cancel_the_batch() -> None:
    class Broken(BaseException):
        """An internal error."""

    class BrokenFile(MemoryFile):
        def append(self, data: bytes) -> None:
            if json.loads(data).get("text") == "seen b":
                raise Broken
            super().append(data)

    with pytest.raises(Broken):  # noqa: PT012 (the error ends the whole block)
        async with running_calls("look a", "look b", "look c", file=BrokenFile()) as (session, gates):
            gates.open("b")
            await trio.sleep_forever()
    assert {"!a", "!c"} <= set(gates.log)
    assert (session.result.status, session.state(QUERY_ID)) == ("error", "delivered")


async def test_a_full_disk_under_a_batch_keeps_results() -> None:
    disk = FullDisk()
    async with running_calls("look a", "look b", "look c", file=disk) as (session, gates):
        disk.full = True
        gates.open("a", "b")
        await session.chain.wait_idle()
        assert session.result.status == "error"
        assert "No space left" in session.result.result
        assert "!c" in gates.log
        disk.full = False
        assert (await session.run("Do another task")).status == "done"
        assert results(session) == ["seen a", "seen b", INTERRUPTED]
