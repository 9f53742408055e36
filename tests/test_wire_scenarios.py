"""Whole sessions with the strict double as their service, which validates every request.

The double also checks that each request of a conversation begins with the one before (I7 of the specification).
"""

from __future__ import annotations

import json
import math
import random
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from itertools import count, cycle, islice, pairwise
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
from support.checks import check_invariants, check_no_late_starts
from support.examples import count_once, max_examples, sample_in_short_run
from support.sessions import Session, make_settings
from support.small_window import SUMMARY, SUMMARY_REQUEST
from support.users import INTERRUPT, LINES, ActingUser
from support.wire import TOOLS, open_wire
from support.wire_bench import FINAL, HANDLER, THINKING, Bench, BenchScript, open_bench
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


def reply_in_tree(body: Mapping[str, Any]) -> Step:
    """Return the next reply to the latest task in a conversation."""
    count = 0
    for message in reversed(body["messages"]):
        if (task := task_of(message)) is not None:
            steps = TASKS[task]
            return steps[count] if count < len(steps) else text(f"That is it: {task}.", delay_between=0.1)
        count += message["role"] == "assistant" and any(b["type"] == "tool_use" for b in message["content"])
    return FINAL


FIRST_ESTIMATE = 3.5
"""Characters per token that the program assumes before a service reports tokens."""
WINDOW = 20_000
"""Tokens of the context window of the small service. Two results of ``READ`` do not fit in it."""
READ = calls(("read", {"length": 29_000}), say="I read.")


@tool(read_only=True)
async def read(ctx: ToolContext, length: int) -> str:
    """Read this many characters."""
    return f"{ctx.call_id} ".ljust(length, "x")


class SmallService:
    """The script of a service with a small window. It counts 1.3 times the tokens of the program's first estimate."""

    def __init__(self) -> None:
        self.steps: list[Step] = [READ, READ, FINAL, READ]
        self.refused: list[str] = []
        """The conversations that were too long."""
        self.summaries = 0

    def __call__(self, body: Mapping[str, Any]) -> Step:
        counted = {key: body.get(key) for key in ("system", "tools", "messages")}
        tokens = math.ceil(len(json.dumps(counted, ensure_ascii=False)) / FIRST_ESTIMATE * 1.3)
        if tokens > WINDOW:
            self.refused.append(json.dumps(body["messages"]).replace('"cache_control": {"type": "ephemeral"}', ""))
            return Status(400, message=f"prompt is too long: {tokens} tokens > {WINDOW} maximum")
        if SUMMARY_REQUEST in json.dumps(body["messages"][-1]):
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
    "a tree of agents": reply_in_tree,
    "a small window": SmallService(),
}
OPTIONS: dict[str, dict[str, Any]] = {
    # The window is unknown, and compaction shortens the conversation.
    "a small window": {"policy": Policy(window=0), "continuity": False, "context_window": 0}
}
MAX_ITERATIONS = 6
LINES_TO_SEND = [
    *("use the other file", "!at once", "todo: add x", "why?", "then: next", "stop", "!!now", "@2 stop", INTERRUPT),
]


async def play(bench: Bench, name: str, acts: list[tuple[int, str]]) -> Session:
    """Play a scenario and another run after it. Each act is the number of an event and what the user does then."""
    limit = 2 if name == "the last iteration" else MAX_ITERATIONS
    settings = make_settings(max_iterations=limit, handler=HANDLER, agents=name == "a tree of agents")
    script = SmallService() if name == "a small window" else SCENARIOS[name]
    async with bench.open(script, tools=[*TOOLS, read], settings=settings) as session:
        if name == "a refusal":
            bench.double.expect_withdrawal()
        agents = {"main"}

        def announce_agent(event: events.Event) -> None:
            if isinstance(event, events.IterationStarted) and event.agent not in agents:
                agents.add(event.agent)
                bench.double.expect_new_conversation()

        session.chain.listen(announce_agent)
        session.chain.listen(user := ActingUser(session, acts))
        for query in ["Do the task", "Do another task", *(["And the next"] if name == "a refusal" else [])]:
            session.chain.submit(query)
            if query == "Do the task":
                user.perform_first()
            await session.chain.wait_idle()
        check_invariants(session, max_iterations=limit)
        check_no_late_starts(session, session.interrupted_at)
    if isinstance(script, SmallService):
        assert len(script.refused) == len(set(script.refused)), "a request that was too long is not repeated"
        assert "context_full" not in [result.status for result in session.of(events.Result)]
        if not acts:
            assert script.summaries == 2
    return session


@pytest.mark.parametrize("system_messages", [False, True], ids=["user messages", "system messages"])
@pytest.mark.parametrize("name", sample_in_short_run([*SCENARIOS], every=5))
async def test_lines_at_many_moments(name: str, system_messages: bool, mock_clock: MockClock) -> None:
    random.seed(0)  # of the pauses before retries
    options = OPTIONS.get(name, {})
    async with open_bench(mock_clock, max_connections=3, system_messages=system_messages, **options) as bench:

        async def count_events() -> int:
            return len((await play(bench, name, [])).events)

        # tests/test_scenarios.py tries every moment; this test every second one, or every eighth of a long scenario.
        step = 8 if name == "a tree of agents" else 2
        first = 1 if system_messages else 0  # so that the two cases try different moments
        moments = range(first, await count_once((play, name), count_events) + 1, step)
        for moment, line in sample_in_short_run(list(zip(moments, cycle(LINES_TO_SEND), strict=False)), every=12):
            await play(bench, name, [(moment, line), (moment + 5, "why?")])
        assert [complaint for request in bench.double.requests for complaint in request.complaints] == []
        roles = {message["role"] for request in bench.double.requests for message in request.messages}
        assert ("system" in roles) == system_messages


async def test_the_conversations_of_a_tree_only_grow(mock_clock: MockClock) -> None:
    async with open_bench(mock_clock, max_connections=3) as bench:
        earlier_requests = len(bench.double.requests)
        session = await play(bench, "a tree of agents", [])
        requests = bench.double.requests[earlier_requests:]
        assert {result.status for result in session.of(events.Result)} == {"done"}
        conversations: dict[str | None, list[Seen]] = defaultdict(list)
        for request in requests:
            conversations[first_task(request)].append(request)
        assert {task: len(of_task) for task, of_task in conversations.items()} == {
            "Do the task": 5,  # with the two for "Do another task"
            "deep": 3,
            "deeper": 3,
            "beside": 7,  # three for its task, and two for each of "again" and "and again"
            "new": 2,
        }
        concurrent = [task for task in map(first_task, requests) if task in ("deeper", "beside")]
        assert sum(earlier != later for earlier, later in pairwise(concurrent)) > 1, "the requests interleave"
        for of_task in conversations.values():
            alone, cache = Conversations(), PromptCache()
            assert all(alone.follow(request.body) is None for request in of_task)
            assert reuse([cache.account(request.body) for request in of_task]) >= 0.99


def first_task(request: Seen) -> str | None:
    """Return the task with which the conversation of a request begins."""
    first, *_ = request.messages
    return task_of(first)


# ------------------------------------------------------------------------------------------------------- random runs

# Values that are listed more than once are more frequent.
inputs = st.sampled_from([{}, {"at": "x"}, {"bad": True}])
texts = st.sampled_from(["Some text.", "More ⏳.", "USER INTERRUPTION: stop", " "])
blocks = st.lists(
    st.one_of(
        texts.map(lambda t: {"type": "text", "text": t}),
        st.builds(
            lambda name, input: {"type": "tool_use", "name": name, "input": input},
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
user_acts = st.lists(st.tuples(st.integers(0, 60), st.sampled_from([*LINES, *LINES, INTERRUPT])), max_size=14)


@max_examples(100)
@given(st.lists(st.one_of(replies, replies, replies, faults), max_size=10), user_acts, st.integers(1, 6), st.booleans())
def test_the_service_accepts_every_request_of_random_runs(
    script: list[Step], acts: list[tuple[int, str]], limit: int, interactive: bool
) -> None:
    clock = MockClock()

    async def main() -> None:
        settings = make_settings(max_iterations=limit, handler=HANDLER)
        options: dict[str, Any] = {"tools": TOOLS, "settings": settings, "interactive": interactive}
        async with open_bench(clock) as bench, bench.open(script, **options) as session:
            session.chain.listen(ActingUser(session, acts))

            def allow_refusal(event: events.Event) -> None:
                if isinstance(event, events.RunStarted):
                    bench.double.expect_withdrawal()

            session.chain.listen(allow_refusal)
            for query in ("Do the task", "Do another task", "And one more"):
                session.chain.submit(query)
                await session.chain.wait_idle()
            check_invariants(session, max_iterations=limit)

    random.seed(0)  # of the pauses before retries
    trio.run(main, clock=clock)


# ----------------------------------------------------------------------------------------------------- the long run

LONG_RUN = 200
"""Iterations of the long run."""


def long_script(body: Mapping[str, Any], n: int) -> Step:
    """Return the reply to request ``n``: one call, or thirty, which are more blocks than the cache looks back over."""
    if n >= LONG_RUN - 1:
        return FINAL
    count = 30 if n % 50 == 25 else 1
    return thinking("Hm.", calls(*[("look", {"at": f"{n}.{i}"}) for i in range(count)], say=f"Looking, {n}."))


@pytest.mark.slow
@pytest.mark.parametrize("system_messages", [False, True], ids=["user messages", "system messages"])
async def test_a_long_run_uses_the_cache(system_messages: bool, mock_clock: MockClock) -> None:
    settings = make_settings(max_iterations=250, handler=HANDLER)
    lines = ["use the other file", "todo: add x", "why?", "context: it is late", "focus on prices", "!at once"]
    options: dict[str, Any] = {"thinking": THINKING, "system_messages": system_messages}
    async with open_wire(long_script, settings=settings, max_iterations=250, **options) as wire:
        # A line at every eighth call.
        lines_by_call = dict(zip(count(8, 8), islice(cycle(lines), LONG_RUN), strict=False))
        call_numbers = count(1)

        def send_line(event: events.Event) -> None:
            if isinstance(event, events.ToolCall) and (line := lines_by_call.get(next(call_numbers))):
                wire.session.chain.submit(line)

        wire.session.chain.listen(send_line)
        result = await wire.session.run("Count")
        assert (result.status, result.iterations) == ("done", LONG_RUN)
        assert len(wire.session.of(events.UserInterruption)) >= 25
        assert wire.double.reuse >= 0.99
        usage = result.usage
        assert usage.cache_read_tokens == sum(account.cache_read for account in wire.double.accounts)
        input_tokens = usage.total_tokens - usage.output_tokens
        assert usage.cache_read_tokens > 0.9 * input_tokens, "all but the tails and the newest messages"
