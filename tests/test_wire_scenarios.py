"""Whole sessions with the strict double as their service: it validates every request, and I7 to the block.

There are scenarios with lines at many moments, such as a tree of agents and a conversation that outgrows the window,
random runs, and a long run that shows what the prompt cache saves.
"""

from __future__ import annotations

import json
import math
import random
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import trio
from double import (
    Conversations,
    Cut,
    ErrorEvent,
    Policy,
    PromptCache,
    Reset,
    Say,
    Seen,
    Status,
    Step,
    calls,
    nothing,
    reuse,
    text,
    thinking,
)
from hypothesis import given
from hypothesis import strategies as st
from support import INTERRUPT, LINES, Acts, Session, check_invariants, check_silence, trying
from support import settings as chain_settings
from support.examples import count_once, some
from support.small_window import ASKS, SUMMARY
from support.wire import TOOLS, open_wire
from support.wire_bench import FINAL, HANDLER, THINKING, Bench, BenchScript, bench
from trio.testing import MockClock

from chain import events
from chain.tools.tool import ToolContext, tool

LOOK = calls(("look", {"at": "x"}), ("slow", {}), say="Let me look.", text_chunk=4)

TASKS: dict[str, list[Step]] = {
    # The replies to each task of a tree of agents, before the answer.
    "Do the task": [
        calls(("agent", {"task": "deep"}), ("explore", {"task": "beside"}), ("look", {}), say="I begin.", text_chunk=4),
        calls(("agent_ask", {"agent": "explore-1", "question": "again"}), say="I ask."),
    ],
    "deep": [
        calls(("explore", {"task": "deeper"}), ("slow", {}), delay_between=0.1),
        calls(("slow", {}), delay_between=0.1),
    ],
    "deeper": [
        thinking("Hm.", calls(("look", {"at": "x"}), delay_between=0.1)),
        calls(("look", {}), delay_between=0.1),
    ],
    "beside": [
        thinking("So.", calls(("look", {"at": "y"}), ("look", {"at": "z"}), delay_between=0.1)),
        calls(("plan_list", {}), delay_between=0.1),
    ],
    "again": [calls(("look", {"at": "again"}), delay_between=0.1)],
    "Do another task": [
        calls(("agent_ask", {"agent": "explore-1", "question": "and again"}), ("plan", {"task": "new"}), say="I ask.")
    ],
    "and again": [calls(("look", {"at": "and again"}))],
    "new": [calls(("plan_add_task", {"task": "check it"}))],
}


def task_of(message: Mapping[str, Any]) -> str | None:
    """Return the task that a message gives to an agent."""
    blocks = message["content"]
    texts = [b.get("text") for b in blocks if isinstance(b, dict)] if isinstance(blocks, list) else [blocks]
    return next((each for each in texts if each in TASKS), None) if message["role"] == "user" else None


def tree(body: Mapping[str, Any]) -> Step:
    """Return the next reply to the latest task in a conversation."""
    done = 0
    for message in reversed(body["messages"]):
        if (task := task_of(message)) is not None:
            steps = TASKS[task]
            return steps[done] if done < len(steps) else text(f"That is it: {task}.", delay_between=0.1)
        done += message["role"] == "assistant" and any(b["type"] == "tool_use" for b in message["content"])
    return FINAL


WINDOW = 20_000
"""Tokens of the context window of the small service."""
BIG = calls(("read", {"length": 29_000}), say="I read.")


@tool(read_only=True)
async def read(ctx: ToolContext, length: int) -> str:
    """Read this many characters."""
    return f"{ctx.call_id} ".ljust(length, "x")


class SmallService:
    """The script of a service with a small window, which counts 1.3 tokens for each that we estimate."""

    def __init__(self) -> None:
        self.steps: list[Step] = [BIG, BIG, FINAL, BIG]
        self.refused: list[str] = []
        """The conversations that were too long."""
        self.summaries = 0

    def __call__(self, body: Mapping[str, Any]) -> Step:
        read = {key: body.get(key) for key in ("system", "tools", "messages")}
        tokens = math.ceil(len(json.dumps(read, ensure_ascii=False)) / 3.5 * 1.3)
        if tokens > WINDOW:
            self.refused.append(json.dumps(body["messages"]).replace('"cache_control": {"type": "ephemeral"}', ""))
            return Status(400, message=f"prompt is too long: {tokens} tokens > {WINDOW} maximum")
        if ASKS in json.dumps(body["messages"][-1]):
            self.summaries += 1
            return text(SUMMARY, usage={"input_tokens": tokens})
        step = self.steps.pop(0) if self.steps else FINAL
        return replace(step, usage={"input_tokens": tokens}) if isinstance(step, Say) else step


SCENARIOS: dict[str, BenchScript] = {
    "an answer without tools": [FINAL],
    "one round of tools": [LOOK, FINAL],
    "three rounds of tools": [LOOK, LOOK, calls(("plan_add_task", {"task": "x"})), FINAL],
    "tools that fail": [calls(("fail", {}), ("nothing", {}), ("look", {"bad": 1}), ("look", {})), FINAL],
    "thirty calls at once": [calls(*[("look", {"at": str(n)}) for n in range(30)]), LOOK, FINAL],
    "thinking before and between": [
        *(thinking("Hm.", LOOK), thinking("So.", calls(("look", {}))), thinking("Ah.", FINAL))
    ],
    "a reply that breaks": [LOOK, Cut(5, reply=FINAL), ErrorEvent(after=4, reply=LOOK), FINAL],
    "an error that ends the run": [LOOK, Status(400, message="No.")],
    "an empty reply": [LOOK, nothing(), FINAL],
    "a refusal": [FINAL, LOOK, text("No.", stop_reason="refusal")],
    "a truncated reply": [LOOK, text("Some te", stop_reason="max_tokens")],
    "a truncated call": [
        Say(({"type": "tool_use", "name": "look", "input_json": '{"a'},), stop_reason="max_tokens"),
        FINAL,
    ],
    "the last iteration": [LOOK, LOOK, LOOK, LOOK],
    "a tree of agents": tree,
    "a small window": SmallService(),
}
OPTIONS: dict[str, dict[str, Any]] = {
    # The window is unknown, and compaction shortens the conversation.
    "a small window": {"policy": Policy(window=0), "continuity": False, "context_window": 0}
}
LIMIT = 6
ALL_LINES = [
    "use the other file",
    "!at once",
    "todo: add x",
    "why?",
    "then: next",
    "stop",
    "!!now",
    "@2 stop",
    INTERRUPT,
]


async def play(one: Bench, name: str, at: list[tuple[int, str]]) -> Session:
    """Play a scenario with these lines at these moments, and another run after it."""
    limit = 2 if name == "the last iteration" else LIMIT
    use = chain_settings(max_iterations=limit, handler=HANDLER, agents=name == "a tree of agents")
    script = SmallService() if name == "a small window" else SCENARIOS[name]
    async with one.open(script, tools=[*TOOLS, read], use=use) as session:
        if name == "a refusal":
            one.double.expect_withdrawal()
        known = {"main"}

        def announce(event: events.Event) -> None:
            if isinstance(event, events.IterationStarted) and event.agent not in known:
                known.add(event.agent)
                one.double.expect_new_conversation()

        session.chain.listen(announce)
        session.chain.listen(acts := Acts(session, at))
        for query in ["Do the task", "Do another task", *(["And the next"] if name == "a refusal" else [])]:
            session.chain.submit(query)
            if query == "Do the task":
                acts.at_once()
            await session.chain.wait_idle()
        check_invariants(session, max_iterations=limit)
        check_silence(session, session.interrupted_at)
    if isinstance(script, SmallService):
        assert len(script.refused) == len(set(script.refused)), "a request that was too long is not repeated"
        assert "context_full" not in [result.status for result in session.of(events.Result)]
        assert at or script.summaries == 2
    return session


@pytest.mark.parametrize("system_messages", [False, True])
@pytest.mark.parametrize("name", some([*SCENARIOS], every=5))
async def test_lines_at_many_moments(name: str, system_messages: bool, mock_clock: MockClock) -> None:
    random.seed(0)  # of the pauses before retries
    async with bench(mock_clock, at_once=3, system_messages=system_messages, **OPTIONS.get(name, {})) as one:

        async def count() -> int:
            return len((await play(one, name, [])).events)

        # Some of the moments. tests/test_scenarios.py has all of them.
        step = 8 if name == "a tree of agents" else 2
        for moment in some(range(system_messages, await count_once((play, name), count) + 1, step), every=12):
            line = ALL_LINES[moment // step % len(ALL_LINES)]
            await play(one, name, [(moment, line), (moment + 5, "why?")])
        assert [c for r in one.double.requests for c in r.complaints] == []
        roles = {m["role"] for r in one.double.requests for m in r.messages}
        assert ("system" in roles) == system_messages


async def test_the_conversations_of_a_tree_only_grow(mock_clock: MockClock) -> None:
    async with bench(mock_clock, at_once=3) as one:
        before = len(one.double.requests)
        session = await play(one, "a tree of agents", [])
        requests = one.double.requests[before:]
        assert {r.status for r in session.of(events.Result)} == {"done"}
        conversations: dict[str | None, list[Seen]] = defaultdict(list)
        for request in requests:
            conversations[task_of(request.messages[0])].append(request)
        assert {task: len(found) for task, found in conversations.items()} == {
            "Do the task": 5,
            "deep": 3,
            "deeper": 3,
            "beside": 3 + 2 + 2,
            "new": 2,
        }
        order = [task_of(request.messages[0]) for request in requests]
        concurrent = [task for task in order if task in ("deeper", "beside")]
        assert sum(earlier != later for earlier, later in pairwise(concurrent)) > 1, "the requests interleave"
        for found in conversations.values():
            alone, cache = Conversations(), PromptCache()
            assert [alone.follow(request.body) for request in found] == [None] * len(found)
            assert reuse([cache.account(request.body) for request in found]) >= 0.99


# ------------------------------------------------------------------------------------------------------- random runs

inputs = st.sampled_from([{}, {"at": "x"}, {"bad": True}])
texts = st.sampled_from(["Some text.", "More ⏳.", "USER INTERRUPTION: stop", " "])
blocks = st.lists(
    st.one_of(
        texts.map(lambda t: {"type": "text", "text": t}),
        st.builds(
            lambda n, i: {"type": "tool_use", "name": n, "input": i},
            st.sampled_from(["look", "slow", "fail", "plan_list", "no"]),
            inputs,
        ),
        st.just({"type": "thinking", "thinking": "Hm."}),
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
def test_the_service_accepts_every_request_of_random_runs(
    script: list[Step], at: list[tuple[int, str]], limit: int, interactive: bool
) -> None:
    clock = MockClock()

    async def main() -> None:
        use = chain_settings(max_iterations=limit, handler=HANDLER)
        options: dict[str, Any] = {"tools": TOOLS, "use": use, "interactive": interactive}
        async with bench(clock) as one, one.open(script, **options) as session:
            session.chain.listen(Acts(session, at))
            # Each run may end in a refusal.
            session.chain.listen(lambda e: one.double.expect_withdrawal() if isinstance(e, events.RunStarted) else None)
            for query in ("Do the task", "Do another task", "And one more"):
                session.chain.submit(query)
                await session.chain.wait_idle()
            check_invariants(session, max_iterations=limit)

    random.seed(0)
    trio.run(main, clock=clock)


# ----------------------------------------------------------------------------------------------------- the long run


def long_script(body: Mapping[str, Any], n: int) -> Step:
    """Return the reply of one of 200 iterations: one call, and sometimes thirty."""
    if n >= 199:
        return FINAL
    count = 30 if n % 50 == 25 else 1
    return thinking("Hm.", calls(*[("look", {"at": f"{n}.{i}"}) for i in range(count)], say=f"Looking, {n}."))


@pytest.mark.slow
@pytest.mark.parametrize("system_messages", [False, True])
async def test_a_long_run_uses_the_cache(system_messages: bool, mock_clock: MockClock) -> None:
    use = chain_settings(max_iterations=250, handler=HANDLER)
    lines = ["use the other file", "todo: add x", "why?", "context: it is late", "focus on prices", "!at once"]
    options: dict[str, Any] = {"thinking": THINKING, "system_messages": system_messages}
    async with open_wire(long_script, use=use, max_iterations=250, **options) as wire:
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
        # All but the tails and the newest messages.
        assert usage.cache_read_tokens > 0.9 * (usage.total_tokens - usage.output_tokens)
