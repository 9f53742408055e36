"""Scripted trees of agents, each replayed with a line, a stop or an interrupt at every moment.

A moment is an event: everything that can be seen from outside happens at one, and what is done in the very step of an
event is as close to it as it can be.
"""

from __future__ import annotations

import random

import pytest
import trio
from support import INTERRUPT, Acts, Replies, Session, check_invariants, check_silence, open_session, wait_quiet
from support.examples import counted, some
from support.models import Step
from support.trees import FIRST, SECOND, TREE_TOOLS, Tree, TreeModel, tree_settings
from trio.testing import MockClock

from chain import events
from chain.messages import Text, ToolCall


def calls(*named: tuple[str, str]) -> Step:
    """A reply with these calls: a tool and, for those that hand one over, the task; ``NAME?`` asks that agent."""
    inputs = {
        "ask_user_question": {"question": "Which?", "options": ["left", "right"]},
        "plan_add_task": {"task": "check it"},
    }
    blocks = []
    for n, (tool, task) in enumerate(named):
        if tool.endswith("?"):
            call = ToolCall(f"c{n}", "agent_ask", {"agent": tool.removesuffix("?"), "question": task})
        else:
            call = ToolCall(f"c{n}", tool, {"task": task} if task else inputs.get(tool, {}))
        blocks.append(call)
    return Step((Text("I begin."), *blocks))


def says(text: str) -> Step:
    return Step((Text(text),), delay_s=0.5)


WATCH = ("watch", "")

SCENARIOS: dict[str, dict[str, list[Step]]] = {
    "three levels, siblings and a question to one of them": {
        FIRST: [calls(("agent", "deep"), ("plan", "beside"), WATCH), calls(("explore-1?", "again")), says("All.")],
        "deep": [calls(WATCH, ("explore", "deeper"), ("plan_add_task", "")), says("Deep.")],
        "deeper": [calls(WATCH), says("Deeper.")],
        "beside": [calls(WATCH, WATCH), calls(WATCH, ("plan_add_task", "")), says("Planned.")],
        "again": [calls(WATCH), says("As I said.")],
    },
    "agents that have no iteration left": {
        FIRST: [calls(("worker", "long"), ("explore", "long"), ("agent", "above")), says("All.")],
        "long": [calls(WATCH), calls(WATCH), calls(WATCH)],
        "above": [calls(("worker", "long"), WATCH), says("Above.")],
    },
    "agents that ask each other": {
        FIRST: [calls(("agent", "one"), ("agent", "one")), calls(("agent-1?", "first"), ("agent-2?", "second"))],
        "one": [says("One.")],
        "first": [calls(("agent-2?", "one"), WATCH), says("First.")],
        "second": [calls(("agent-1?", "one"), WATCH), says("Second.")],
    },
    "agents whose models fail, and one that asks the user": {
        FIRST: [calls(("explore", "refused"), ("explore", "asking"), ("agent", "broken"), WATCH), says("All.")],
        "refused": [calls(WATCH), Step((Text("No."),), "refusal", delay_s=0.5)],
        "asking": [calls(("ask_user_question", ""), WATCH), says("Asked.")],
        "broken": [calls(("plan", "cut off"), WATCH), Step((Text("Some"),), failures=1, breaks_at=1), says("Mended.")],
        "cut off": [calls(WATCH), Step((Text("Some te"),), "max_tokens", delay_s=0.5)],
    },
}

ENDINGS = {
    "three levels, siblings and a question to one of them": "explore-1 done, agent-1 done, plan-1 done, explore-1 done",
    "agents that have no iteration left": (
        "explore-1 max_iterations, worker-1 max_iterations, worker-2 max_iterations, agent-1 done"
    ),
    "agents that ask each other": "agent-1 done, agent-1 done, agent-2 done, agent-2 done",
    "agents whose models fail, and one that asks the user": (
        "explore-1 refused, plan-1 truncated, agent-1 done, explore-2 done"
    ),
}
"""How the agents of each scenario end when nobody says anything, whoever is first."""

LINES = ["use the other file ‹›", "@1 stop", "@2 !!now ‹›", INTERRUPT]
"""The other kinds of lines come to random trees, at random moments (``test_tree_properties``)."""


async def play(name: str, moment: int, line: str) -> list[events.Event]:
    """Play a scenario with something done at a moment, and another run after it. The events of the first run."""
    tree = Tree({SECOND: [calls(("explore", "once more")), says("Fine.")], "once more": [says("More.")]})
    tree.tasks.update(SCENARIOS[name])
    use = tree_settings(max_iterations=4, worker=2, explore=2)
    random.seed(0)  # the jitter of the retries
    async with open_session(TreeModel(tree), tools=TREE_TOOLS, use=use) as session:
        async with trio.open_nursery() as nursery:
            acts = Acts(session, [(moment, line)])
            session.chain.listen(acts)
            session.chain.listen(Replies(session, [(1, "2")], nursery))
            with session.chain.answering():
                session.chain.submit(FIRST)
                acts.at_once()
                await wait_quiet(session)
            first = list(session.events)
            # The next run works, whatever the last one went through.
            assert (await session.run(SECOND)).result == "Fine."
        check(session)
    return first


def check(session: Session) -> None:
    check_invariants(session, max_iterations=4)
    check_silence(session, session.interrupted_at)
    assert session.of(events.Result)[0].status != "error"


@pytest.mark.parametrize("name", SCENARIOS)
async def test_how_the_agents_of_a_scenario_end(name: str, autojump_clock: MockClock) -> None:
    told = await play(name, -1, "")
    ended = [f"{e.name} {e.status}" for e in told if isinstance(e, events.AgentEnded)]
    assert sorted(ended) == sorted(ENDINGS[name].split(", "))


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_line_at_every_moment_of_a_tree(name: str, line: str, autojump_clock: MockClock) -> None:
    async def count() -> int:
        return len(await play(name, -1, line))

    for moment in some(range(await counted((play, name), count) + 1), every=96):
        await play(name, moment, line)
