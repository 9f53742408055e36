"""Tools that only read run at the same time: which ones, when a line or an interrupt comes, and what is told of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from support import FullDisk, Session, at, check_invariants, open_session
from support.disks import MemoryFile
from support.examples import trying
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


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ("", []),
        ("r", ["r"]),
        ("w", ["w"]),
        ("rrr", ["rrr"]),
        ("www", ["w", "w", "w"]),
        ("rrwr", ["rr", "w", "r"]),
        ("wrrw", ["w", "rr", "w"]),
        ("rwwrr", ["r", "w", "w", "rr"]),
    ],
)
def test_neighbours_that_read_are_a_batch_and_every_other_call_is_one_of_its_own(
    calls: str, expected: list[str]
) -> None:
    assert ["".join(batch) for batch in batches(calls, lambda c: c == "r")] == expected


@given(st.lists(st.tuples(st.integers(), st.booleans())))
def test_batches_lose_nothing_keep_the_order_and_are_as_long_as_they_can_be(calls: list[tuple[int, bool]]) -> None:
    found = list(batches(calls, lambda c: c[1]))

    assert [call for batch in found for call in batch] == calls
    assert all(batch and (len(batch) == 1 or all(along for _, along in batch)) for batch in found)
    assert not any(one[0][1] and two[0][1] for one, two in pairwise(found))


# --------------------------------------------------------------------------------------------------- at the same time


async def test_neighbours_that_read_run_at_the_same_time_and_their_results_keep_the_order_of_the_calls() -> None:
    gates = Gates()
    async with open_session(asking("look a", "look b", "look c"), tools=gates.tools) as session:
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        assert gates.did == ["+a", "+b", "+c"]
        for name in "cab":
            gates.let(name)
            await wait_all_tasks_blocked()
        await session.chain.wait_idle()
        assert gates.did[3:] == ["-c", "-a", "-b"]
        assert [e.text for e in session.of(events.ToolResult)] == ["seen c", "seen a", "seen b"]
        assert results(session) == ["seen a", "seen b", "seen c"]
        assert session.result.status == "done"
        check_invariants(session)


async def test_a_call_that_may_change_something_runs_alone() -> None:
    gates = Gates()
    calls = ["look a", "look b", "change c", "change d", "look e", "look f"]
    async with open_session(asking(*calls), tools=gates.tools) as session:
        session.chain.submit("Do the task")
        seen = []
        for name in "bacdfe":
            await wait_all_tasks_blocked()
            seen.append("".join(d for d in gates.did if d[0] == "+").replace("+", ""))
            gates.let(name)
        await session.chain.wait_idle()
        assert seen == ["ab", "ab", "abc", "abcd", "abcdef", "abcdef"]
        assert results(session) == [f"seen {name}" for name in "abcdef"]
        check_invariants(session)


async def test_a_result_is_told_as_soon_as_its_tool_ends() -> None:
    gates = Gates()
    async with open_session(asking("look a", "look b"), tools=gates.tools) as session:
        session.chain.submit("Do the task")
        gates.let("b")
        await wait_all_tasks_blocked()
        assert [e.text for e in session.of(events.ToolResult)] == ["seen b"]
        assert ids(session, "tool_finished") == call_ids(session)[1:]
        gates.let("a")
        await session.chain.wait_idle()
        check_invariants(session)


async def test_calls_start_in_their_order_and_each_is_on_record_before_its_tool_runs() -> None:
    gates = Gates()
    names = [f"n{n}" for n in range(MAX_CALLS_AT_ONCE)]
    async with open_session(asking(*(f"look {n}" for n in names)), tools=gates.tools) as session:
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
        check_invariants(session)


async def test_only_so_many_run_at_once_and_the_next_starts_as_one_ends() -> None:
    gates = Gates()
    names = [f"n{n}" for n in range(MAX_CALLS_AT_ONCE + 3)]
    async with open_session(asking(*(f"look {n}" for n in names)), tools=gates.tools) as session:
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        assert len(gates.did) == MAX_CALLS_AT_ONCE
        assert len(session.of(events.ToolCall)) == MAX_CALLS_AT_ONCE
        gates.let("n5")
        await wait_all_tasks_blocked()
        assert gates.did[MAX_CALLS_AT_ONCE:] == ["-n5", f"+n{MAX_CALLS_AT_ONCE}"]
        gates.let(*names)
        await session.chain.wait_idle()
        assert results(session) == [f"seen {n}" for n in names]
        check_invariants(session)


async def test_each_call_keeps_its_own_time_limit(mock_clock: MockClock) -> None:
    @tool(read_only=True, timeout_s=3)
    async def short(ctx: ToolContext, at: str) -> str:
        """Wait."""
        await trio.sleep_forever()

    @tool(read_only=True, timeout_s=7)
    async def long(ctx: ToolContext, at: str) -> str:
        """Wait."""
        await trio.sleep(6)
        return "in time"

    async with open_session(asking("short a", "long b", "short c"), tools=[short, long]) as session:
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        mock_clock.jump(3)
        await wait_all_tasks_blocked()
        assert [(e.name, e.seconds) for e in session.of(events.ToolResult)] == [("short", 3), ("short", 3)]
        mock_clock.jump(3)
        await session.chain.wait_idle()
        limit = "short was stopped after 3 s, its time limit; it may have had effects."
        assert results(session) == [limit, "in time", limit]
        check_invariants(session)


async def test_one_that_fails_is_an_error_among_results_and_its_neighbours_go_on() -> None:
    gates = Gates()
    async with open_session(asking("look a", "look bad", "look c"), tools=gates.tools) as session:
        session.chain.submit("Do the task")
        gates.let("bad")
        await wait_all_tasks_blocked()
        gates.let("a", "c")
        await session.chain.wait_idle()
        assert results(session) == ["seen a", "look failed: ValueError: bad", "seen c"]
        assert session.result.status == "done"
        check_invariants(session)


async def test_progress_and_guidance_go_to_each_tool_of_a_batch() -> None:
    gates = Gates()

    @tool(read_only=True)
    async def report(ctx: ToolContext, at: str) -> str:
        """Report."""
        ctx.progress(f"at {at}")
        await gates.work(at)
        return f"heard {[a.value for a in (await ctx.safe_point('end')).adjustments]}"

    async with open_session(asking("report a", "report b"), tools=[report]) as session:
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
        check_invariants(session)


# ------------------------------------------------------------------------------------------------ calls that never run

FAULTY = {
    "an unknown tool": ("{name: nothing, input: {}}", "There is no tool 'nothing'."),
    "input that does not fit": ("{name: change, input: {}}", "The input of change does not fit its schema"),
    "a call that was cut off": ("{name: change, input: {at: x}, cut: true}", "cut off by max_tokens"),
}


@pytest.mark.parametrize("fault", FAULTY)
async def test_a_call_that_cannot_be_run_does_not_part_its_neighbours_and_never_starts(fault: str) -> None:
    call, text = FAULTY[fault]
    gates = Gates()

    model = asking("look a", "FAULT", "look b").replace("{name: FAULT, input: {at: }}", call)
    async with open_session(model, tools=gates.tools) as session:
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        assert gates.did == ["+a", "+b"]
        assert [e.name for e in session.of(events.ToolCall)][0::2] == ["look", "look"]
        gates.let("a", "b")
        await session.chain.wait_idle()
        first, second, third = results(session)
        assert (first, third) == ("seen a", "seen b")
        assert text in second
        a, x, b = call_ids(session)
        assert ids(session, "tool_started") == [a, b]
        assert x not in ids(session, "tool_finished")
        [told] = [e for e in session.of(events.ToolResult) if e.id == x]
        assert (told.is_error, told.seconds) == (True, 0)
        check_invariants(session)


async def test_between_calls_that_change_something_a_faulty_one_keeps_its_place() -> None:
    gates = Gates()
    gates.let("a", "b")
    async with open_session(asking("change a", "nothing x", "change b"), tools=gates.tools) as session:
        await session.run("Do the task")
        assert [e.name for e in session.of(events.ToolResult)] == ["change", "nothing", "change"]
        assert gates.did == ["+a", "-a", "+b", "-b"]
        check_invariants(session)


# ------------------------------------------------------------------------------------------- stops and urgent lines

MANY = [f"n{n}" for n in range(MAX_CALLS_AT_ONCE + 2)]


async def test_a_stop_lets_what_has_started_finish_and_skips_what_had_no_room_yet_and_what_comes_after() -> None:
    gates = Gates()
    calls = [*(f"look {n}" for n in MANY), "change x", "look y"]
    async with open_session(asking(*calls), tools=gates.tools) as session:
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
        check_invariants(session)


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("line", ["stop", "!now"])
@pytest.mark.parametrize("moments", range(8))
async def test_what_had_no_room_yet_does_not_start_after_a_line_that_holds_it_up(moments: int, line: str) -> None:
    gates = Gates()
    async with open_session(asking(*(f"look {n}" for n in MANY)), tools=gates.tools) as session:
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
        check_invariants(session)


async def test_what_was_found_is_shown_in_the_order_of_the_calls_and_failures_are_not_in_it() -> None:
    gates = Gates()
    async with open_session(asking("look a", "look bad", "look c", "change d"), tools=gates.tools) as session:
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        session.chain.submit("stop")
        for name in ("c", "bad", "a"):
            gates.let(name)
            await wait_all_tasks_blocked()
        await session.chain.wait_idle()
        assert session.result.partial_results == ("seen a", "seen c")
        assert "• look: seen a\n• look: seen c\n[2 done, 1 skipped]" in session.result.result


async def test_an_urgent_line_lets_the_batch_finish_skips_the_rest_and_is_delivered_at_c() -> None:
    gates = Gates()
    async with open_session(asking("look a", "look b", "change c", "look d"), tools=gates.tools) as session:
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
        check_invariants(session)


@pytest.mark.parametrize("line", ["stop", "!at once"])
async def test_a_line_in_the_moment_before_a_batch_begins_skips_all_of_it(line: str) -> None:
    """After its check, as its first task is about to start."""
    gates = Gates(is_open=True)
    model = asking("change a", "look b", "look c")
    async with open_session(model, tools=gates.tools) as session, trio.open_nursery() as nursery:

        async def say() -> None:
            session.chain.submit(line)

        at(session, events.ToolResult, lambda: nursery.start_soon(say))
        await session.run("Do the task")
        assert results(session) == ["seen a", SKIPPED, SKIPPED]
        check_invariants(session)


async def test_a_stop_as_the_first_of_a_batch_starts_still_lets_the_others_start() -> None:
    """A batch is one step: what C let through is not parted by a line that comes a moment later."""
    gates = Gates()
    gates.let("a", "b")
    async with open_session(asking("look a", "look b", "look c"), tools=gates.tools) as session:
        gates.let("c")
        at(session, events.ToolCall, lambda: session.chain.submit("stop"))
        await session.run("Do the task")
        assert results(session) == ["seen a", "seen b", "seen c"]
        assert session.result.status == "cancelled_with_partial"
        check_invariants(session)


# -------------------------------------------------------------------------------------------------- hard interrupts


async def test_an_interrupt_keeps_what_ended_stops_what_runs_and_starts_nothing_that_waits() -> None:
    gates = Gates()
    async with open_session(asking(*(f"look {n}" for n in MANY), "change x"), tools=gates.tools) as session:
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
        check_invariants(session)


async def test_an_interrupt_as_a_tool_of_the_batch_starts_keeps_that_tool_and_all_after_it_from_running() -> None:
    gates = Gates()
    async with open_session(asking("look a", "look b", "look c"), tools=gates.tools) as session:
        at(session, events.ToolCall, session.chain.interrupt, nth=2)
        await session.run("Do the task")
        assert gates.did == ["+a", "!a"]
        assert results(session) == [INTERRUPTED, INTERRUPTED, SKIPPED]
        check_invariants(session)


async def test_an_interrupt_as_a_tool_of_the_batch_ends_keeps_its_result() -> None:
    gates = Gates()
    async with open_session(asking("look a", "look b"), tools=gates.tools) as session:
        at(session, events.ToolResult, session.chain.interrupt)
        session.chain.submit("Do the task")
        gates.let("b")
        await session.chain.wait_idle()
        assert results(session) == [INTERRUPTED, "seen b"]
        assert session.result.partial_results == ("seen b",)
        check_invariants(session)


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


async def test_whatever_a_tool_of_a_batch_raises_is_its_result_and_its_neighbours_go_on() -> None:
    gates = Gates()
    tools = [*gates.tools, abrupt(gates)]
    async with open_session(asking("look a", "leave b", "look c"), tools=tools) as session:
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        gates.let("b", "a", "c")
        await session.chain.wait_idle()
        assert session.result.status == "done"
        assert results(session) == ["seen a", "leave failed: Abrupt: b", "seen c"]
        check_invariants(session)


async def test_what_a_tool_raises_when_it_is_interrupted_is_its_result_and_the_run_ends() -> None:
    gates = Gates()
    async with open_session(asking("leave a", "look b"), tools=[*gates.tools, abrupt(gates)]) as session:
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()
        session.chain.interrupt()
        await session.chain.wait_idle()
        assert session.result.status == "interrupted"
        assert (await session.run("Do another task")).status == "done"
        assert results(session) == ["leave failed: Abrupt: a", INTERRUPTED]
        check_invariants(session)


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


async def test_an_error_of_our_own_in_a_batch_comes_out_as_itself_and_stops_its_neighbours() -> None:
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


async def test_errors_of_our_own_in_two_calls_at_once_both_come_out() -> None:
    gates = Gates()
    with pytest.RaisesGroup(Broken, Broken, flatten_subgroups=True):
        async with open_session(asking("look a", "look b"), tools=gates.tools, file=BrokenAt()) as session:
            session.chain.submit("Do the task")
            await wait_all_tasks_blocked()
            gates.let("a", "b")
            await trio.sleep_forever()


async def test_a_disk_that_fills_up_under_a_batch_ends_the_run_and_the_next_knows_what_ran() -> None:
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


# ---------------------------------------------------------------------------------------------------- whatever comes


@dataclass
class Watch:
    """Tools that take their time, and whether two ran together that may not."""

    running: list[str] = field(default_factory=list)
    most: int = 0

    async def work(self, kind: str, seconds: float) -> str:
        assert "change" not in self.running
        assert kind == "look" or not self.running
        self.running.append(kind)
        self.most = max(self.most, len(self.running))
        try:
            await trio.sleep(seconds)
        finally:
            self.running.remove(kind)
        return f"{kind} {seconds:g}"

    @property
    def tools(self) -> list[Tool]:
        @tool(read_only=True, timeout_s=4)
        async def look(ctx: ToolContext, at: float) -> str:
            """Look."""
            return await self.work("look", at)

        @tool(timeout_s=4)
        async def change(ctx: ToolContext, at: float) -> str:
            """Change."""
            return await self.work("change", at)

        return [look, change]


drawn_calls = st.lists(
    st.tuples(st.sampled_from(["look", "look", "look", "change", "nothing"]), st.sampled_from([0, 1, 2, 2.5, 9])),
    min_size=1,
    max_size=24,
)
drawn_lines = st.lists(
    st.tuples(st.sampled_from([0, 0.5, 1, 1.5, 3, 7]), st.sampled_from(["!now", "stop", "(interrupt)", "focus on x"])),
    max_size=3,
)


@trying(150)
@given(drawn_calls, drawn_lines)
def test_whatever_is_asked_for_and_typed_calls_keep_apart_and_results_in_order(
    calls: list[tuple[str, float]], lines: list[tuple[float, str]]
) -> None:
    async def send(session: Session, after: float, line: str) -> None:
        await trio.sleep(after)
        if session.chain.is_running:
            session.chain.interrupt() if line == "(interrupt)" else session.chain.submit(line)

    async def main() -> None:
        watch = Watch()
        model = asking(*(f"{name} {seconds}" for name, seconds in calls))
        async with open_session(model, tools=watch.tools) as session, trio.open_nursery() as nursery:
            session.chain.submit("Do the task")
            for after, line in lines:
                nursery.start_soon(send, session, after, line)
            await session.chain.wait_idle()
            assert watch.running == []
            assert watch.most <= MAX_CALLS_AT_ONCE
            started, finished = ids(session, "tool_started"), ids(session, "tool_finished")
            assert sorted(started) == sorted(finished)
            assert started == [id for id in call_ids(session) if id in started]
            # An interrupt before the reply leaves none of its calls.
            drawn = calls if call_ids(session) else []
            for (name, seconds), id, text in zip(drawn, call_ids(session), results(session), strict=True):
                check_result(name, seconds, text, has_started=id in started)
            nursery.cancel_scope.cancel()
            assert (await session.run("Do another task")).status == "done"
            check_invariants(session)

    trio.run(main, clock=MockClock(autojump_threshold=0))


def check_result(name: str, seconds: float, text: str, *, has_started: bool) -> None:
    """The text is one that this call may have, and tells truly whether it started."""
    if not has_started:
        assert text == SKIPPED or (name == "nothing" and text.startswith("There is no tool"))
    else:
        in_time = f"{name} {seconds:g}" if seconds < 4 else f"{name} was stopped after 4 s"
        assert text == INTERRUPTED or text.startswith(in_time)
