"""The tool calls of a reply: which run together, and what lines, interrupts and errors do to them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from support import FullDisk, Session, at, checked_session
from support.disks import MemoryFile
from support.gates import Gates
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.agent.conversation import INTERRUPTED, SKIPPED
from chain.agent.tool_calls import MAX_CALLS_AT_ONCE, batches
from chain.tools.tool import Tool, ToolContext, tool


def asking(calls: Sequence[str]) -> str:
    """A model whose first reply makes these calls, each a name and an argument; then it answers."""
    rows = [f"{{name: {name}, input: {{at: {at}}}}}" for name, at in (call.split() for call in calls)]
    return f"rules: [{{times: 1, text: Looking., tools: [{', '.join(rows)}]}}, {{text: The answer.}}]"


@asynccontextmanager
async def calling(
    *calls: str, tools: Sequence[Tool] = (), file: MemoryFile | None = None
) -> AsyncIterator[tuple[Session, Gates]]:
    """Run a model that makes these calls until its tools wait at their gates. At the end, wait for the run."""
    gates = Gates()
    async with checked_session(asking(calls), tools=[*gates.tools, *tools, leaving(gates)], file=file) as session:
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        yield session, gates
        await session.chain.wait_idle()


class Abrupt(BaseException):
    """An exception that is no ``Exception``."""


def leaving(gates: Gates) -> Tool:
    @tool(read_only=True)
    async def leave(ctx: ToolContext, at: str) -> str:
        """Raise, even if it is cancelled."""
        try:
            await gates.work(at)
        finally:
            raise Abrupt(at)
        return ""

    return leave


async def open_gates(session: Session, gates: Gates, *names: str) -> None:
    """Open these gates, one after the other, and wait for the end of the run."""
    for name in names:
        gates.let(name)
        await wait_all_tasks_blocked()
    await session.chain.wait_idle()


def results(session: Session) -> list[str]:
    """Return the results in the conversation."""
    return session.conversation[2].split(" | ")


def ids(session: Session, type: str) -> list[str]:
    """Return the ids of the calls in records of this type."""
    return [r["id"] for r in session.records if r["type"] == type]


def call_ids(session: Session) -> list[str]:
    """Return the ids of the calls, in the order of the reply."""
    return [block.id for message in session.chain.runs.executor.conversation.messages for block in message.calls]


@given(st.lists(st.tuples(st.integers(), st.booleans())))
def test_batches_are_maximal_and_keep_the_order(calls: list[tuple[int, bool]]) -> None:
    assert ["".join(batch) for batch in batches("wrrwwr", lambda c: c == "r")] == ["w", "rr", "w", "w", "r"]
    found = list(batches(calls, lambda c: c[1]))

    assert [call for batch in found for call in batch] == calls
    assert all(batch and (len(batch) == 1 or all(along for _, along in batch)) for batch in found)
    assert not any(one[0][1] and two[0][1] for one, two in pairwise(found))


async def test_writing_calls_run_alone_reading_ones_together() -> None:
    calls = ["look a", "look b", "change c", "change d", "look e", "look f"]
    async with calling(*calls) as (session, gates):
        seen = []
        for name in "bacdfe":
            seen.append("".join(gates.begun))
            gates.let(name)
            await wait_all_tasks_blocked()
        assert seen == ["ab", "ab", "abc", "abcd", "abcdef", "abcdef"]
        assert results(session) == [f"seen {name}" for name in "abcdef"]


async def test_starts_are_ordered_and_recorded_first() -> None:
    gates, noted = Gates(is_open=True), list[tuple[int, int]]()
    async with checked_session(asking([f"look {n}" for n in "abcde"]), tools=gates.tools) as session:
        for n in range(5):
            at(
                session,
                events.ToolCall,
                lambda: noted.append((len(ids(session, "tool_started")), len(gates.begun))),
                n + 1,
            )
        await session.run("Do the task")
        assert (gates.begun, noted) == (list("abcde"), [(n + 1, n) for n in range(5)])
        assert ids(session, "tool_started") == call_ids(session)
        assert sorted(ids(session, "tool_finished")) == sorted(call_ids(session))


async def test_parallel_calls_are_limited() -> None:
    names = [f"n{n}" for n in range(MAX_CALLS_AT_ONCE + 3)]
    async with calling(*(f"look {n}" for n in names)) as (session, gates):
        assert len(gates.did) == len(session.of(events.ToolCall)) == MAX_CALLS_AT_ONCE
        gates.let("n5")
        await wait_all_tasks_blocked()
        assert gates.did[MAX_CALLS_AT_ONCE:] == ["-n5", f"+n{MAX_CALLS_AT_ONCE}"]
        assert [e.text for e in session.of(events.ToolResult)] == ["seen n5"], "published as soon as its tool ends"
        await open_gates(session, gates, *names)
        assert results(session) == [f"seen {n}" for n in names]


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

    async with calling("short a", "long b", "short c", tools=[short, long]) as (session, _):
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
        await go_on.wait()
        return f"heard {[a.value for a in (await ctx.safe_point('end')).adjustments]}"

    go_on = trio.Event()
    async with calling("report a", "report b", tools=[report]) as (session, _):
        session.chain.submit("focus on prices")
        go_on.set()
        await session.chain.wait_idle()
        assert results(session) == ["heard ['prices']"] * 2
        progress = [(e.id, e.text) for e in session.of(events.ToolProgress)]
        assert progress == list(zip(call_ids(session), ["at a", "at b"], strict=True))


async def test_an_invalid_call_does_not_split_a_batch() -> None:
    async with calling("look a", "nothing x", "look b") as (session, gates):
        assert gates.begun == ["a", "b"]
        await open_gates(session, gates, "a", "b")
        first, second, third = results(session)
        assert (first, third) == ("seen a", "seen b")
        assert second.startswith("There is no tool 'nothing'.")
        a, x, b = call_ids(session)
        assert (ids(session, "tool_started"), sorted(ids(session, "tool_finished"))) == ([a, b], [a, b])
        [invalid] = [e for e in session.of(events.ToolResult) if e.id == x]
        assert (invalid.is_error, invalid.seconds) == (True, 0)


MANY = [f"n{n}" for n in range(MAX_CALLS_AT_ONCE + 2)]


async def test_a_stop_finishes_started_calls_and_skips_others() -> None:
    async with calling(*(f"look {n}" for n in MANY), "change x", "look y") as (session, gates):
        session.chain.submit("stop")
        await wait_all_tasks_blocked()
        assert session.chain.is_running
        await open_gates(session, gates, *MANY)
        result = session.result
        assert (result.status, result.phase_reached) == ("cancelled_with_partial", "tools")
        assert result.partial_results == tuple(f"seen {n}" for n in MANY[:MAX_CALLS_AT_ONCE])
        assert f"[{MAX_CALLS_AT_ONCE} done, 4 skipped]" in result.result
        assert results(session) == [*result.partial_results, *[SKIPPED] * 4]
        assert len(session.model.requests) == 1


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("line", ["stop", "!now"])
@pytest.mark.parametrize("moments", range(8))
async def test_stops_and_urgent_lines_hold_queued_calls(moments: int, line: str) -> None:
    async with calling(*(f"look {n}" for n in MANY)) as (session, gates):
        gates.let(MANY[0])
        for _ in range(moments):
            await trio.lowlevel.checkpoint()
        session.chain.submit(line)
        started = len(ids(session, "tool_started"))
        await open_gates(session, gates, *MANY)
        assert len(ids(session, "tool_started")) == started


async def test_an_urgent_line_waits_for_the_batch() -> None:
    async with calling("look a", "look b", "change c", "look d") as (session, gates):
        gates.let("a")
        await wait_all_tasks_blocked()
        session.chain.submit("!use the other file")
        await open_gates(session, gates, "b")
        [entered] = session.of(events.UserInterruption)
        assert (entered.point, entered.tools_skipped) == ("C", ("change", "look"))
        assert results(session) == ["seen a", "seen b", SKIPPED, SKIPPED]


async def test_a_batch_starts_as_one_step() -> None:
    gates = Gates(is_open=True)
    async with checked_session(asking(["look a", "look b", "look c"]), tools=gates.tools) as session:
        at(session, events.ToolCall, lambda: session.chain.submit("stop"))
        await session.run("Do the task")
        assert results(session) == ["seen a", "seen b", "seen c"]
        assert session.result.status == "cancelled_with_partial"


async def test_an_interrupt_of_a_batch() -> None:
    async with calling(*(f"look {n}" for n in MANY), "change x") as (session, gates):
        gates.let("n3")
        await wait_all_tasks_blocked()
        session.interrupt()
        await session.chain.wait_idle()
        assert (session.result.status, session.result.partial_results) == ("interrupted", ("seen n3",))
        started = MANY[: MAX_CALLS_AT_ONCE + 1]
        expected = ["seen n3" if n == "n3" else INTERRUPTED if n in started else SKIPPED for n in MANY]
        assert (gates.begun, results(session)) == (started, [*expected, SKIPPED])
        assert sorted(d for d in gates.did if d[0] == "!") == sorted(f"!{n}" for n in started if n != "n3")
        assert sorted(ids(session, "tool_started")) == sorted(ids(session, "tool_finished"))


async def test_an_interrupt_as_a_batch_starts() -> None:
    gates = Gates()
    async with checked_session(asking(["look a", "look b", "look c"]), tools=gates.tools) as session:
        at(session, events.ToolCall, session.interrupt, nth=2)
        await session.run("Do the task")
        assert gates.did == ["+a", "!a"]
        assert results(session) == [INTERRUPTED, INTERRUPTED, SKIPPED]


async def test_any_exception_of_a_tool_is_its_result() -> None:
    async with calling("look a", "leave b", "look c") as (session, gates):
        await open_gates(session, gates, "b", "a", "c")
        assert results(session) == ["seen a", "leave failed: Abrupt: b", "seen c"]


async def test_an_exception_during_an_interrupt_is_the_result() -> None:
    async with calling("leave a", "look b") as (session, _):
        session.interrupt()
        await session.chain.wait_idle()
        assert session.result.status == "interrupted"
        assert results(session) == ["leave failed: Abrupt: a", INTERRUPTED]


async def test_internal_errors_propagate_and_cancel_the_batch() -> None:
    class Broken(BaseException):
        """A mistake of our own."""

    class BrokenFile(MemoryFile):
        def append(self, data: bytes) -> None:
            if json.loads(data).get("text") == "seen b":
                raise Broken
            super().append(data)

    with pytest.raises(Broken):  # noqa: PT012
        async with calling("look a", "look b", "look c", file=BrokenFile()) as (session, gates):
            gates.let("b")
            await trio.sleep_forever()
    assert {"!a", "!c"} <= set(gates.did)
    assert (session.result.status, session.state("L1")) == ("error", "delivered")


async def test_a_full_disk_under_a_batch_keeps_results() -> None:
    disk = FullDisk()
    async with calling("look a", "look b", "look c", file=disk) as (session, gates):
        disk.full = True
        gates.let("a", "b")
        await session.chain.wait_idle()
        assert session.result.status == "error"
        assert "No space left" in session.result.result
        assert "!c" in gates.did
        disk.full = False
        assert (await session.run("Do another task")).status == "done"
        assert results(session) == ["seen a", "seen b", INTERRUPTED]
