"""Tools that only read run at the same time: which ones, when a line or an interrupt comes, and what is told of it."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from support import FullDisk, Session, at, checked_session, open_session
from support.disks import MemoryFile
from support.gates import Gates
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.agent.conversation import INTERRUPTED, SKIPPED
from chain.agent.tool_calls import MAX_CALLS_AT_ONCE, batches
from chain.tools.tool import Tool, ToolContext, tool


def asking(*calls: str) -> str:
    """A model whose first reply makes these calls, each given as a name and an argument; then it answers."""
    rows = "".join(
        f"      - {{name: {name}, input: {{at: {at}}}}}\n" for name, _, at in (call.partition(" ") for call in calls)
    )
    return f"rules:\n  - times: 1\n    text: Looking.\n    tools:\n{rows}  - {{text: The answer.}}\n"


def results(session: Session) -> list[str]:
    """The texts of the results that the conversation holds, in its order."""
    return [
        block["content"]
        for record in session.records
        if record["type"] == "message"
        for block in record["message"]["content"]
        if block["type"] == "tool_result"
    ]


def ids(session: Session, type: str) -> list[str]:
    """The numbers of the calls that records of this type tell of, as the events name them."""
    return [r["id"] for r in session.records if r["type"] == type]


def call_ids(session: Session) -> list[str]:
    """The ids of the calls, in the order of the reply."""
    return [
        block["id"]
        for record in session.records
        if record["type"] == "message"
        for block in record["message"]["content"]
        if block["type"] == "tool_use"
    ]


# ------------------------------------------------------------------------------------------------------- the batches


@given(st.lists(st.tuples(st.integers(), st.booleans())))
def test_batches_are_maximal_and_keep_the_order(calls: list[tuple[int, bool]]) -> None:
    assert ["".join(batch) for batch in batches("wrrwwr", lambda c: c == "r")] == ["w", "rr", "w", "w", "r"]
    found = list(batches(calls, lambda c: c[1]))

    assert [call for batch in found for call in batch] == calls
    assert all(batch and (len(batch) == 1 or all(along for _, along in batch)) for batch in found)
    assert not any(one[0][1] and two[0][1] for one, two in pairwise(found))


# --------------------------------------------------------------------------------------------------- at the same time


async def test_writing_calls_run_alone_reading_ones_together() -> None:
    gates = Gates()
    calls = ["look a", "look b", "change c", "change d", "look e", "look f"]
    async with checked_session(asking(*calls), tools=gates.tools) as session:
        session.chain.submit("Do the task")
        seen = []
        for name in "bacdfe":
            await wait_all_tasks_blocked()
            seen.append("".join(d for d in gates.did if d[0] == "+").replace("+", ""))
            gates.let(name)
        await session.chain.wait_idle()
        assert seen == ["ab", "ab", "abc", "abcd", "abcdef", "abcdef"]
        assert results(session) == [f"seen {name}" for name in "abcdef"]


async def test_starts_are_ordered_and_recorded_first() -> None:
    gates = Gates()
    names = [f"n{n}" for n in range(MAX_CALLS_AT_ONCE)]
    async with checked_session(asking(*(f"look {n}" for n in names)), tools=gates.tools) as session:
        noted: list[tuple[int, int]] = []

        def note() -> None:
            noted.append((len(ids(session, "tool_started")), len(gates.did)))

        for n in range(MAX_CALLS_AT_ONCE):
            at(session, events.ToolCall, note, nth=n + 1)
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        assert gates.did == [f"+{n}" for n in names]
        assert noted == [(n + 1, n) for n in range(MAX_CALLS_AT_ONCE)]
        assert ids(session, "tool_started") == call_ids(session)
        gates.let(*names)
        await session.chain.wait_idle()
        assert sorted(ids(session, "tool_finished")) == sorted(call_ids(session))


async def test_parallel_calls_are_limited() -> None:
    gates = Gates()
    names = [f"n{n}" for n in range(MAX_CALLS_AT_ONCE + 3)]
    async with checked_session(asking(*(f"look {n}" for n in names)), tools=gates.tools) as session:
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        assert len(gates.did) == MAX_CALLS_AT_ONCE
        assert len(session.of(events.ToolCall)) == MAX_CALLS_AT_ONCE
        gates.let("n5")
        await wait_all_tasks_blocked()
        assert gates.did[MAX_CALLS_AT_ONCE:] == ["-n5", f"+n{MAX_CALLS_AT_ONCE}"]
        assert [e.text for e in session.of(events.ToolResult)] == ["seen n5"], "published as soon as its tool ends"
        gates.let(*names)
        await session.chain.wait_idle()
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

    async with checked_session(asking("short a", "long b", "short c"), tools=[short, long]) as session:
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        mock_clock.jump(3)
        await wait_all_tasks_blocked()
        assert [(e.name, e.seconds) for e in session.of(events.ToolResult)] == [("short", 3), ("short", 3)]
        mock_clock.jump(3)
        await session.chain.wait_idle()
        limit = "short was stopped after 3 s, its time limit; it may have had effects."
        assert results(session) == [limit, "in time", limit]


async def test_each_tool_of_a_batch_gets_guidance() -> None:
    gates = Gates()

    @tool(read_only=True)
    async def report(ctx: ToolContext, at: str) -> str:
        """Report."""
        ctx.progress(f"at {at}")
        await gates.work(at)
        return f"heard {[a.value for a in (await ctx.safe_point('end')).adjustments]}"

    async with checked_session(asking("report a", "report b"), tools=[report]) as session:
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        session.chain.submit("focus on prices")
        gates.let("a", "b")
        await session.chain.wait_idle()
        assert results(session) == ["heard ['prices']"] * 2
        assert [(e.id, e.text) for e in session.of(events.ToolProgress)] == list(
            zip(call_ids(session), ["at a", "at b"], strict=True)
        )
        assert session.state("L2") == "delivered"


# ------------------------------------------------------------------------------------------------ calls that never run


async def test_an_invalid_call_does_not_split_a_batch() -> None:
    gates = Gates()
    async with checked_session(asking("look a", "nothing x", "look b"), tools=gates.tools) as session:
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        assert gates.did == ["+a", "+b"]
        gates.let("a", "b")
        await session.chain.wait_idle()
        first, second, third = results(session)
        assert (first, third) == ("seen a", "seen b")
        assert second.startswith("There is no tool 'nothing'.")
        a, x, b = call_ids(session)
        assert ids(session, "tool_started") == [a, b]
        assert x not in ids(session, "tool_finished")
        [told] = [e for e in session.of(events.ToolResult) if e.id == x]
        assert (told.is_error, told.seconds) == (True, 0)


# ------------------------------------------------------------------------------------------- stops and urgent lines

MANY = [f"n{n}" for n in range(MAX_CALLS_AT_ONCE + 2)]


async def test_a_stop_finishes_started_calls_and_skips_others() -> None:
    gates = Gates()
    calls = [*(f"look {n}" for n in MANY), "change x", "look y"]
    async with checked_session(asking(*calls), tools=gates.tools) as session:
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        session.chain.submit("stop")
        await wait_all_tasks_blocked()
        assert session.chain.is_running
        gates.let(*MANY)
        await session.chain.wait_idle()
        result = session.result
        assert (result.status, result.phase_reached) == ("cancelled_with_partial", "tools")
        assert result.partial_results == tuple(f"seen {n}" for n in MANY[:MAX_CALLS_AT_ONCE])
        assert f"[{MAX_CALLS_AT_ONCE} done, 4 skipped]" in result.result
        assert results(session) == [*result.partial_results, *[SKIPPED] * 4]
        assert len(session.model.requests) == 1
        assert (await session.run("Do another task")).status == "done"


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("line", ["stop", "!now"])
@pytest.mark.parametrize("moments", range(8))
async def test_stops_and_urgent_lines_hold_queued_calls(moments: int, line: str) -> None:
    gates = Gates()
    async with checked_session(asking(*(f"look {n}" for n in MANY)), tools=gates.tools) as session:
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        gates.let(MANY[0])
        for _ in range(moments):
            await trio.lowlevel.checkpoint()
        session.chain.submit(line)
        started = len(ids(session, "tool_started"))
        gates.let(*MANY)
        await session.chain.wait_idle()
        assert len(ids(session, "tool_started")) == started


async def test_an_urgent_line_waits_for_the_batch() -> None:
    gates = Gates()
    async with checked_session(asking("look a", "look b", "change c", "look d"), tools=gates.tools) as session:
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        gates.let("a")
        await wait_all_tasks_blocked()
        session.chain.submit("!use the other file")
        gates.let("b")
        await session.chain.wait_idle()
        [entered] = session.of(events.UserInterruption)
        assert (entered.point, entered.tools_skipped) == ("C", ("change", "look"))
        assert results(session) == ["seen a", "seen b", SKIPPED, SKIPPED]
        assert session.result.status == "done"


async def test_a_batch_starts_as_one_step() -> None:
    """A batch is one step: what C let through is not parted by a line that comes a moment later."""
    gates = Gates()
    gates.let("a", "b")
    async with checked_session(asking("look a", "look b", "look c"), tools=gates.tools) as session:
        gates.let("c")
        at(session, events.ToolCall, lambda: session.chain.submit("stop"))
        await session.run("Do the task")
        assert results(session) == ["seen a", "seen b", "seen c"]
        assert session.result.status == "cancelled_with_partial"


# -------------------------------------------------------------------------------------------------- hard interrupts


async def test_an_interrupt_of_a_batch() -> None:
    gates = Gates()
    async with checked_session(asking(*(f"look {n}" for n in MANY), "change x"), tools=gates.tools) as session:
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        gates.let("n3")
        await wait_all_tasks_blocked()
        session.chain.interrupt()
        await session.chain.wait_idle()
        assert session.result.status == "interrupted"
        assert session.result.partial_results == ("seen n3",)
        started = MANY[: MAX_CALLS_AT_ONCE + 1]
        expected = ["seen n3" if n == "n3" else INTERRUPTED if n in started else SKIPPED for n in MANY]
        assert results(session) == [*expected, SKIPPED]
        assert [d for d in gates.did if d[0] == "+"] == [f"+{n}" for n in started]
        assert sorted(d for d in gates.did if d[0] == "!") == sorted(f"!{n}" for n in started if n != "n3")
        assert sorted(ids(session, "tool_started")) == sorted(ids(session, "tool_finished"))
        assert (await session.run("Do another task")).status == "done"


async def test_an_interrupt_as_a_batch_starts() -> None:
    gates = Gates()
    async with checked_session(asking("look a", "look b", "look c"), tools=gates.tools) as session:
        at(session, events.ToolCall, session.chain.interrupt, nth=2)
        await session.run("Do the task")
        assert gates.did == ["+a", "!a"]
        assert results(session) == [INTERRUPTED, INTERRUPTED, SKIPPED]


# ------------------------------------------------------------------------------------------------- errors of our own


class Broken(BaseException):
    """A mistake of our own, which no tool makes."""


class Abrupt(BaseException):
    """What a tool may raise, although nobody expects it."""


def abrupt(gates: Gates) -> Tool:
    @tool(read_only=True)
    async def leave(ctx: ToolContext, at: str) -> str:
        """Leave, whatever else comes."""
        try:
            await gates.work(at)
        finally:
            raise Abrupt(at)
        return ""

    return leave


async def test_any_exception_of_a_tool_is_its_result() -> None:
    gates = Gates()
    tools = [*gates.tools, abrupt(gates)]
    async with checked_session(asking("look a", "leave b", "look c"), tools=tools) as session:
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        gates.let("b", "a", "c")
        await session.chain.wait_idle()
        assert session.result.status == "done"
        assert results(session) == ["seen a", "leave failed: Abrupt: b", "seen c"]


async def test_an_exception_during_an_interrupt_is_the_result() -> None:
    gates = Gates()
    async with checked_session(asking("leave a", "look b"), tools=[*gates.tools, abrupt(gates)]) as session:
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        session.chain.interrupt()
        await session.chain.wait_idle()
        assert session.result.status == "interrupted"
        assert (await session.run("Do another task")).status == "done"
        assert results(session) == ["leave failed: Abrupt: a", INTERRUPTED]


class BrokenAt(MemoryFile):
    """A file layer with a fault: no call's end can be recorded, or only those of calls with these results."""

    def __init__(self, *at: str) -> None:
        super().__init__()
        self._texts = [f"seen {each}" for each in at]

    def append(self, data: bytes) -> None:
        record = json.loads(data)
        if record["type"] == "tool_finished" and (not self._texts or record.get("text") in self._texts):
            raise Broken(record.get("text"))
        super().append(data)


async def test_internal_errors_propagate_and_cancel_the_batch() -> None:
    gates = Gates()
    with pytest.raises(Broken, match="b"):  # noqa: PT012
        async with open_session(asking("look a", "look b", "look c"), tools=gates.tools, file=BrokenAt("b")) as session:
            session.chain.submit("Do the task")
            await wait_all_tasks_blocked()
            gates.let("b")
            await trio.sleep_forever()
    assert {"!a", "!c"} <= set(gates.did)
    assert session.result.status == "error"
    assert session.state("L1") == "delivered"


async def test_a_full_disk_under_a_batch_keeps_results() -> None:
    gates, disk = Gates(), FullDisk()
    async with open_session(asking("look a", "look b", "look c"), tools=gates.tools, file=disk) as session:
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        disk.full = True
        gates.let("a", "b")
        await session.chain.wait_idle()
        assert session.result.status == "error"
        assert "No space left" in session.result.result
        assert "!c" in gates.did
        disk.full = False
        assert (await session.run("Do another task")).status == "done"
        assert results(session) == ["seen a", "seen b", INTERRUPTED]
