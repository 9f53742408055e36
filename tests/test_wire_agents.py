"""Trees of agents through the double, which validates every request: each conversation is held to the rules for itself,
however those of several agents come in between, and each reads from the cache what it has sent before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
from double import Conversations, PromptCache, Seen, Step, calls, reuse, text, thinking
from support import INTERRUPT, Acts, Session, check_invariants, check_silence
from support import settings as chain_settings
from support.examples import counted, some
from support.wire import TOOLS
from support.wire_bench import FINAL, HANDLER, Bench, bench
from trio.testing import MockClock

from chain import events

TASKS: dict[str, list[Step]] = {
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
        calls(("agent_ask", {"agent": "explore-1", "question": "and again"}), ("plan", {"task": "new"}), say="I ask."),
    ],
    "and again": [calls(("look", {"at": "and again"}))],
    "new": [calls(("plan_add_task", {"task": "check it"}))],
}


def told(message: Mapping[str, Any]) -> str | None:
    """The task that a message tells."""
    blocks = message["content"]
    texts = [b.get("text") for b in blocks if isinstance(b, dict)] if isinstance(blocks, list) else [blocks]
    return next((each for each in texts if each in TASKS), None) if message["role"] == "user" else None


def obey(body: Mapping[str, Any]) -> Step:
    """The next step of the latest task in a conversation, then an answer."""
    done = 0
    for message in reversed(body["messages"]):
        if (task := told(message)) is not None:
            steps = TASKS[task]
            return steps[done] if done < len(steps) else text(f"That is it: {task}.", delay_between=0.1)
        done += message["role"] == "assistant" and any(b["type"] == "tool_use" for b in message["content"])
    return FINAL


async def play(at: Bench, moments: Sequence[tuple[int, str]] = ()) -> Session:
    """Two runs of the tree with these lines at these moments."""
    use = chain_settings(agents=True, max_iterations=5, handler=HANDLER)
    async with at.open(obey, tools=TOOLS, use=use) as session:
        known: set[str] = set()

        def announce(event: events.Event) -> None:
            if isinstance(event, events.IterationStarted) and event.agent not in known:
                known.add(event.agent)
                if event.agent != "main":  # its conversation is the one that each session may begin
                    at.double.expect_new_conversation()

        session.chain.listen(announce)
        acts = Acts(session, moments)
        session.chain.listen(acts)
        for query in ("Do the task", "Do another task"):
            session.chain.submit(query)
            await session.chain.wait_idle()
        check_invariants(session, max_iterations=5)
        check_silence(session, session.interrupted_at)
    return session


def by_conversation(requests: list[Seen]) -> dict[str | None, list[Seen]]:
    """The requests of each agent: its first task is its own."""
    found: dict[str | None, list[Seen]] = defaultdict(list)
    for request in requests:
        found[told(request.messages[0])].append(request)
    return found


async def test_the_conversations_of_a_tree_interleave_and_each_only_grows(mock_clock: MockClock) -> None:
    async with bench(mock_clock, at_once=3) as at:
        before = len(at.double.requests)
        session = await play(at)
        requests = at.double.requests[before:]
        assert {r.status for r in session.of(events.Result)} == {"done"}
        conversations = by_conversation(requests)
        assert {key: len(found) for key, found in conversations.items()} == {
            "Do the task": 5,
            "deep": 3,
            "deeper": 3,
            "beside": 3 + 2 + 2,
            "new": 2,
        }
        order = [told(request.messages[0]) for request in requests]
        beside = [task for task in order if task in ("deeper", "beside")]
        assert sum(one != other for one, other in pairwise(beside)) > 1, "they come in between"
        for found in conversations.values():
            alone, cache = Conversations(), PromptCache()
            assert [alone.follow(request.body) for request in found] == [None] * len(found)
            assert reuse([cache.account(request.body) for request in found]) >= 0.99


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("line", ["use the other file", "!at once", "!!now", "stop", "@explore-1 stop", INTERRUPT])
async def test_whatever_the_user_does_to_a_tree_the_service_takes_every_request(
    line: str, mock_clock: MockClock
) -> None:
    async with bench(mock_clock, at_once=3) as at:

        async def count() -> int:
            return len((await play(at)).events)

        for moment in some(range(2, await counted(play, count), 8), every=24):
            before = len(at.double.requests)
            await play(at, [(moment, line)])
            for found in by_conversation(at.double.requests[before:]).values():
                alone = Conversations()
                assert [alone.follow(request.body) for request in found] == [None] * len(found)
        assert [c for r in at.double.requests for c in r.complaints] == []
