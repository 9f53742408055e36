"""Whole runs through the double, which validates every request of them: scenarios with a line at many moments, random
runs, and a long one that shows what the prompt cache saves.

The double knows how long each request's tail is, so that it holds I7 to the block.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest
import trio
from double import Cut, ErrorEvent, Reset, Say, Status, Step, calls, nothing, text, thinking
from hypothesis import given
from hypothesis import strategies as st
from support import INTERRUPT, LINES, Acts, Session, check_invariants, check_silence, trying
from support import settings as chain_settings
from support.examples import counted, some
from support.wire import TOOLS, wired
from support.wire_bench import FINAL, HANDLER, THINKING, Bench, bench
from trio.testing import MockClock

from chain import events

LOOK = calls(("look", {"at": "x"}), ("slow", {}), say="Let me look.", text_chunk=4)

SCENARIOS: dict[str, list[Step]] = {
    "an answer without tools": [FINAL],
    "one round of tools": [LOOK, FINAL],
    "three rounds of tools": [LOOK, LOOK, calls(("plan_add_task", {"task": "x"})), FINAL],
    "tools that fail": [calls(("fail", {}), ("nothing", {}), ("look", {"bad": 1}), ("look", {})), FINAL],
    "thirty calls at once": [calls(*[("look", {"at": str(n)}) for n in range(30)]), LOOK, FINAL],
    "thinking before and between": [
        thinking("Hm.", LOOK),
        thinking("So.", calls(("look", {}))),
        thinking("Ah.", FINAL),
    ],
    "a reply that breaks": [LOOK, Cut(5, reply=FINAL), ErrorEvent(after=4, reply=LOOK), FINAL],
    "an error that ends the run": [LOOK, Status(400, message="No.")],
    "an empty reply": [LOOK, nothing(), FINAL],
    "a refusal": [FINAL, LOOK, text("No.", stop_reason="refusal")],
    "a truncated reply": [LOOK, text("Some te", stop_reason="max_tokens")],
    "a call that is cut off": [
        Say(({"type": "tool_use", "name": "look", "input_json": '{"a'},), stop_reason="max_tokens"),
        FINAL,
    ],
    "the last iteration": [LOOK, LOOK, LOOK, LOOK],
}
LIMIT = {"the last iteration": 2}
MOST = 6


def opened(limit: int, *, interactive: bool = False) -> dict[str, Any]:
    """How the sessions of this file are opened."""
    use = chain_settings(max_iterations=limit, handler=HANDLER)
    return {"tools": TOOLS, "use": use, "interactive": interactive}


def queries(name: str) -> list[str]:
    return ["Do the task", "And the next"] if name == "a refusal" else ["Do the task"]


async def play(bench: Bench, name: str, at: list[tuple[int, str]]) -> Session:
    """One session with these lines at these moments, and another run after it."""
    limit = LIMIT.get(name, MOST)
    async with bench.open(SCENARIOS[name], **opened(limit)) as session:
        if "refusal" in name:
            bench.double.expect_withdrawal()
        acts = Acts(session, at)
        session.chain.listen(acts)
        for query in [*queries(name), "And another"]:
            session.chain.submit(query)
            if query == "Do the task":
                acts.at_once()
            await session.chain.wait_idle()
        check_invariants(session, max_iterations=limit)
        check_silence(session, session.interrupted_at)
    return session


ALL_LINES = ["use the other file", "!at once", "todo: add x", "why?", "then: next", "stop", INTERRUPT]


@pytest.mark.parametrize("system_messages", [False, True])
@pytest.mark.parametrize("name", some([*SCENARIOS], every=5))
async def test_lines_at_moments_all_over_the_scenario(name: str, system_messages: bool, mock_clock: MockClock) -> None:
    random.seed(0)  # the jitter of the retries
    async with bench(mock_clock, system_messages=system_messages) as at:

        async def count() -> int:
            return len((await play(at, name, [])).events)

        # At each second, for time. tests/test_scenarios.py goes through them all.
        for moment in some(range(system_messages, await counted((play, name), count) + 1, 2), every=12):
            await play(at, name, [(moment, ALL_LINES[moment % len(ALL_LINES)]), (moment + 5, "why?")])
        assert [c for r in at.double.requests for c in r.complaints] == []
        roles = {m["role"] for r in at.double.requests for m in r.messages}
        assert ("system" in roles) == system_messages


# ------------------------------------------------------------------------------------------------------- random runs

inputs = st.sampled_from([{}, {"at": "x"}, {"bad": True}])
blocks = st.lists(
    st.one_of(
        st.sampled_from(["Some text.", "More ⏳.", "USER INTERRUPTION: stop"]).map(
            lambda t: {"type": "text", "text": t}
        ),
        st.builds(
            lambda n, i: {"type": "tool_use", "name": n, "input": i},
            st.sampled_from(["look", "slow", "fail", "plan_list", "no"]),
            inputs,
        ),
        st.just({"type": "thinking", "thinking": "Hm."}),
        st.just({"type": "text", "text": " "}),
    ),
    max_size=4,
).map(tuple)
replies = st.builds(
    Say,
    blocks,
    st.sampled_from([None] * 8 + ["max_tokens", "refusal", "model_context_window_exceeded"]),
    text_chunk=st.sampled_from([0, 3]),
    delay_between=st.sampled_from([0.0, 0.0, 0.5]),
)
faults = st.sampled_from([Status(529), Status(401), Reset(None), Reset(4), Cut(4, extra=9), ErrorEvent()])
moments = st.lists(st.tuples(st.integers(0, 60), st.sampled_from([*LINES, *LINES, INTERRUPT])), max_size=14)


@trying(max_examples=100)
@given(st.lists(st.one_of(replies, replies, replies, faults), max_size=10), moments, st.integers(1, 6), st.booleans())
def test_whatever_happens_the_service_takes_every_request(
    script: list[Step], at: list[tuple[int, str]], limit: int, interactive: bool
) -> None:
    clock = MockClock()

    async def main() -> None:
        async with bench(clock) as one, one.open(script, **opened(limit, interactive=interactive)) as session:
            session.chain.listen(Acts(session, at))
            # A refusal may come at each run.
            session.chain.listen(lambda e: one.double.expect_withdrawal() if isinstance(e, events.RunStarted) else None)
            for query in ("Do the task", "Do another task", "And one more"):
                session.chain.submit(query)
                await session.chain.wait_idle()
            check_invariants(session, max_iterations=limit)

    random.seed(0)
    trio.run(main, clock=clock)


# ----------------------------------------------------------------------------------------------------- the long run


def long_script(body: Mapping[str, Any], n: int) -> Step:
    """200 iterations: mostly one call, now and then thirty."""
    if n >= 199:
        return FINAL
    count = 30 if n % 50 == 25 else 1
    return thinking("Hm.", calls(*[("look", {"at": f"{n}.{i}"}) for i in range(count)], say=f"Looking, {n}."))


@pytest.mark.slow
@pytest.mark.parametrize("system_messages", [False, True])
async def test_two_hundred_iterations_with_interruptions_read_what_repeats(
    system_messages: bool, mock_clock: MockClock
) -> None:
    use = chain_settings(max_iterations=250, handler=HANDLER)
    lines = ["use the other file", "todo: add x", "why?", "context: it is late", "focus on prices", "!at once"]
    options: dict[str, Any] = {"thinking": THINKING, "system_messages": system_messages}
    async with wired(long_script, use=use, max_iterations=250, **options) as wire:
        seen = 0

        def interrupt(event: events.Event) -> None:
            nonlocal seen
            if isinstance(event, events.ToolCall):
                seen += 1
                if seen % 8 == 0:
                    wire.session.chain.submit(lines[seen // 8 % len(lines)])

        wire.session.chain.listen(interrupt)
        result = await wire.session.run("Count")
        assert (result.status, result.iterations) == ("done", 200)
        assert len(wire.session.of(events.UserInterruption)) >= 25
        assert wire.double.reuse >= 0.99
        usage = result.usage
        assert usage.cache_read_tokens == sum(a.cache_read for a in wire.double.accounts)
        # All but the tails and the newest messages came from the cache.
        assert usage.cache_read_tokens > 0.9 * (usage.total_tokens - usage.output_tokens)
