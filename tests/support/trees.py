"""Random trees of agents, and the model that plays them.

A tree is drawn as flat lists of agents, tool calls, questions to finished agents, and faults of models. Each of them
names its agent by a number, so that a failing example shrinks to few agents that do little. The text of a task is only
a key, by which the model finds the steps of the agent.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from chain.config.load import Settings
from chain.messages import Block, Text, ToolCall
from chain.model import Delta, Model, Reply, Request

from .models import ASKING_TOOLS, TOOLS, RandomModel, Step
from .sessions import make_settings

MOST_BELOW = 11
"""The most agents that a run may start."""

FIRST, SECOND = "task main", "task again"
"""The queries of the two runs of an example."""

KINDS = ["agent", "explore", "agent", "worker", "plan"]
NAMES = ["explore-1", "agent-1", "agent-2", "worker-1", "plan-1", "agent-3", "main", "nobody-7"]
"""The agents that are asked: finished ones, active ones and ones that do not exist."""

_STARTS_OTHERS = ("main", "agent", "worker")

Leaf = tuple[str, dict[str, Any]]
"""A tool call that starts no agent: the tool and its input."""

LEAVES: list[Leaf] = [
    ("watch", {}),
    ("slow", {}),
    ("watch", {}),
    ("watch", {"seconds": 0.5}),
    ("look", {}),
    ("watch", {"seconds": 2.5}),
    ("plan_add_task", {"task": "from an agent"}),
    ("plan_list", {}),
    ("dig", {"hosts": 1}),
    ("steered", {}),
    ("ask_user_question", {"question": "Which?", "options": ["left", "right"]}),
    ("peek", {}),
    ("change_file", {"path": "a"}),
    ("wait", {}),
    ("fail", {}),
    ("fail_reading", {}),
    ("cling", {}),
    ("hang", {}),
    ("dig", {}),
    ("danger", {}),
    ("plan_mark_done", {"task_number": 1}),
    ("nothing", {}),
    ("slow", {"bad": True}),
    ("explore", {"task": " "}),
]

FAULTS: list[dict[str, Any]] = [
    {"delay_s": 1.0},
    {"failures": 1},
    {"failures": 1, "breaks_at": 1, "delay_s": 0.5},
    {"failures": 9},
    {"failures": 1, "retryable": False},
    {"stop_reason": "refusal"},
    {"stop_reason": "max_tokens"},
    {"stop_reason": "model_context_window_exceeded"},
    {"stop_reason": "pause_turn"},
    {"is_empty": True},
    {"has_text": True, "delay_s": 0.5},
]


@dataclass
class _Agent:
    """An agent of a tree, with its tool calls and the faults of its model by the number of the step."""

    task: str
    kind: str
    depth: int = 0
    calls: dict[int, list[Leaf]] = field(default_factory=lambda: defaultdict(list))
    faults: dict[int, dict[str, Any]] = field(default_factory=dict)

    def steps(self) -> list[Step]:
        numbers = sorted({*self.calls, *self.faults})
        return [*(self._step(n) for n in numbers), Step((Text(f"The answer to {self.task}."),))]

    def _step(self, n: int) -> Step:
        options = dict(self.faults.get(n, {}))
        texts: list[Block] = [Text("Some text.")] if options.pop("has_text", False) or n not in self.calls else []
        calls = [ToolCall(f"c{i}", name, input) for i, (name, input) in enumerate(self.calls.get(n, []))]
        return Step(() if options.pop("is_empty", False) else (*texts, *calls), **options)


@dataclass(frozen=True)
class Tree:
    """The steps of the agents of a session, by task."""

    tasks: dict[str, list[Step]]


def build_tree(
    agents: Iterable[tuple[int, str, int, Leaf]],
    leaves: Iterable[tuple[int, int, Leaf]],
    questions: Iterable[tuple[int, int, str, Leaf]],
    faults: Iterable[tuple[int, int, dict[str, Any]]],
) -> Tree:
    """Build a tree from its parts. The first item of a part is the number of its agent, modulo the number of agents."""
    all_agents = [_Agent(FIRST, "main"), _Agent(SECOND, "main")]
    parents = all_agents[:1]
    for number, kind, step, leaf in agents:
        parent = parents[number % len(parents)]
        child = _Agent(f"task {len(all_agents) - 1}", kind, parent.depth + 1)
        child.calls[0].append(leaf)
        parent.calls[step].append((kind, {"task": child.task}))
        all_agents.append(child)
        # One more level than the settings allow, so that some calls are refused.
        if kind in _STARTS_OTHERS and child.depth < 4:
            parents.append(child)
    for number, step, leaf in leaves:
        all_agents[number % len(all_agents)].calls[step].append(leaf)
    for n, (number, step, name, leaf) in enumerate(questions):
        question = _Agent(f"question {n}", "")
        question.calls[0].append(leaf)
        asking_agent = all_agents[number % len(all_agents)]
        asking_agent.calls[step].append(("agent_ask", {"agent": name, "question": question.task}))
        all_agents.append(question)
    for number, step, fault in faults:
        all_agents[number % len(all_agents)].faults[step] = fault
    return Tree({agent.task: agent.steps() for agent in all_agents})


numbers = st.integers(0, MOST_BELOW + 1)
step_numbers = st.sampled_from([0, 0, 1, 2])
leaf = st.sampled_from(LEAVES)
trees = st.builds(
    build_tree,
    st.lists(st.tuples(numbers, st.sampled_from(KINDS), step_numbers, leaf), min_size=1, max_size=MOST_BELOW),
    st.lists(st.tuples(numbers, step_numbers, leaf), max_size=8),
    st.lists(st.tuples(numbers, step_numbers, st.sampled_from(NAMES), leaf), max_size=5),
    st.lists(st.tuples(numbers, step_numbers, st.sampled_from(FAULTS)), max_size=4),
)


@dataclass(eq=False)
class TreeModel(Model):
    """A model that does the steps of the latest task in each conversation, then answers."""

    tree: Tree
    name: str = "tree"
    conversations: int = 0

    async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        if self not in request.memory:
            self.conversations += 1
            request.memory[self] = _Dialogue(RandomModel([], f"{self.name}{self.conversations}"))
        dialogue: _Dialogue = request.memory[self]
        dialogue.read(request, self.tree)
        return await dialogue.model.reply(request, on_delta)


@dataclass
class _Dialogue:
    """The remaining steps of one conversation, and the index of the message with their task."""

    model: RandomModel
    task_index: int = -1

    def read(self, request: Request, tree: Tree) -> None:
        texts = [message.text if message.role == "user" else "" for message in request.messages]
        index = max((n for n, text in enumerate(texts) if text in tree.tasks), default=-1)
        if index != self.task_index:
            self.task_index = index
            self.model.steps[:] = tree.tasks[texts[index]] if index >= 0 else []
            self.model.failed = 0


WORKER = {
    "worker.yaml": """
messages: [{role: system, content: You work.}]
interruption_prompt: worker_lines.yaml
""",
    "worker_lines.yaml": """
messages: [{role: user, content: "FOR THE WORKER (${agent}): ${message}"}]
rules: [{match: ^enough, action: stop}, {match: ^wait, action: urgent}, {match: ^note, resume: false}]
""",
}


def tree_settings(
    *, worker: int | None = 3, explore: int | None = None, timeout_s: float = 1e7, **more: Any
) -> Settings:
    """Return settings with a kind ``worker``, which has rules for lines. ``worker`` and ``explore`` limit iterations.

    The default ``timeout_s`` is so long that it does not end a run that waits forever, and the test fails.
    """
    kinds = {
        "worker": {"description": "Works.", "prompt": "worker.yaml", "max_iterations": worker},
        "explore": {"max_iterations": explore},
    }
    return make_settings(agents=True, kinds=json.dumps(kinds), files=json.dumps(WORKER), timeout_s=timeout_s, **more)


TREE_TOOLS = [*TOOLS, *ASKING_TOOLS]
