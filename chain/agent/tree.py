"""The tree of the active agents. It selects the agent that receives a line, and passes stops to all agents.

A line goes to the deepest agent that the user can be talking to (SPEC section 10)::

    main ──> the first of explore, plan, all others that has an active agent below it; of several the youngest
         ──> and so on below that agent, until there is none

Agents that work for an ``agent_ask`` are skipped. Agents that are completing are skipped too: their run is over, and
their answer is being passed on.

A stop and an interrupt mark every run below their target in the same step. Otherwise a parent could mistake the end of
a child for an answer and continue.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from chain.agent.spec import AgentContext
from chain.agent.state import Run
from chain.errors import UserError
from chain.events import Origin
from chain.lines.accepted import AcceptedLine
from chain.lines.inbox import Inbox, find_waiting_line

_RANKS = {"explore": 0, "plan": 1}
"""The kinds of agents that receive lines before all other kinds, with their order."""

Activity: TypeAlias = Literal["executing", "completing", "finished"]
"""The state of an agent: its run is active, its run is over, or the agent is stored to be asked again."""


@dataclass(frozen=True, slots=True)
class AgentView:
    """An agent as front ends show it.

    ``since`` is in seconds since the epoch. ``tokens`` includes the tokens of the agents below.
    """

    name: str
    kind: str
    parent: str
    task: str
    state: Activity
    since: float
    iteration: int
    max_iterations: int
    tokens: int
    waiting: int

    @classmethod
    def of(cls, agent: AgentContext, activity: Activity) -> AgentView:
        """Return the view of an agent."""
        state = agent.state
        return cls(
            name=state.name,
            kind=state.kind,
            parent=state.parent,
            task=state.task,
            state=activity,
            since=state.began,
            iteration=state.iteration,
            max_iterations=agent.spec.limits.max_iterations,
            tokens=state.usage.total_tokens,
            waiting=len(agent.inbox),
        )


@dataclass(eq=False)
class AgentNode:
    """An active agent. ``run`` is ``None`` only for the main agent, between two runs.

    ``is_asked``: the agent had finished, and works for an ``agent_ask``. ``below`` are the agents that work for it,
    oldest first.
    """

    agent: AgentContext
    parent: AgentNode | None = None
    is_asked: bool = False
    run: Run | None = None
    is_completing: bool = False
    below: list[AgentNode] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The agent's name, such as ``explore-1``."""
        return self.agent.name

    @property
    def inbox(self) -> Inbox:
        """The inbox of the agent's lines."""
        return self.agent.inbox

    @property
    def depth(self) -> int:
        """The number of agents above this one."""
        return 0 if self.parent is None else self.parent.depth + 1

    @property
    def is_for_a_question(self) -> bool:
        """Whether this agent, or one above it, works for an ``agent_ask``."""
        return self.is_asked or (self.parent is not None and self.parent.is_for_a_question)

    @property
    def iteration(self) -> int:
        """The iteration of the agent's run; 0 without one."""
        return 0 if self.run is None else self.run.iteration

    def all(self) -> Iterator[AgentNode]:
        """Yield this agent and all below it."""
        yield self
        for node in tuple(self.below):
            yield from node.all()

    def stop(self) -> None:
        """End the runs of this agent and all below it at their next safe point."""
        for node in self.all():
            if node.run is not None:
                node.run.stop()

    def interrupt(self) -> None:
        """Cancel the runs of this agent and all below it."""
        for node in self.all():
            if node.run is not None:
                node.run.interrupt()

    def apply_urgency(self, lines: Sequence[AcceptedLine]) -> None:
        """Apply the immediate effects of new urgent and now lines.

        A now line cuts the run and interrupts the agents below.
        """
        questions = self.agent.shared.questions
        urgencies = {accepted.line.urgency for accepted in lines}
        if "now" in urgencies:
            questions.withdraw({node.name for node in self.all()})
            for below in tuple(self.below):
                below.interrupt()
            if self.run is not None:
                self.run.cut("now")
        elif "urgent" in urgencies:
            questions.withdraw({self.name})

    def view(self) -> AgentView:
        """Return the agent as front ends show it."""
        running: Activity = "completing" if self.is_completing else "executing"
        return AgentView.of(self.agent, "finished" if self.run is None else running)


class AgentTree:
    """The main agent of a session, and all agents that work for it."""

    def __init__(self, main: AgentNode) -> None:
        self.main = main

    def find_agent(self, name: str) -> AgentNode:
        """Return the active agent with this name, ignoring case. Raise ``UserError`` if there is none."""
        nodes = {node.name: node for node in self.main.all() if not node.is_completing}
        folded = {known.casefold(): node for known, node in nodes.items()}
        found = nodes.get(name) or folded.get(name.casefold())
        if found is None:
            raise UserError(f"there is no active agent {name!r:.80}; active: {', '.join(nodes)}")
        return found

    def target(self) -> AgentNode:
        """Return the agent that a line without an address goes to."""
        node = self.main
        while below := [each for each in node.below if not (each.is_completing or each.is_asked)]:
            node = min(reversed(below), key=lambda each: _RANKS.get(each.agent.state.kind, len(_RANKS)))
        return node

    @property
    def waiting(self) -> tuple[AcceptedLine, ...]:
        """The waiting lines of all agents, in the order of acceptance."""
        return tuple(a for a in self.main.agent.shared.ledger.lines.waiting if not a.is_leaving)

    def last_waiting(self, origin: Origin) -> str | None:
        """Return the id of the latest line of this origin that can still be dropped, or ``None``."""
        own = (a for a in reversed(self.waiting) if a.origin == origin)
        return next((accepted.id for accepted in own if not accepted.was_used), None)

    def drop(self, id: str, reason: str = "") -> AcceptedLine:
        """Drop a waiting line and return it. Raise ``UserError`` as ``Inbox.drop`` does."""
        accepted = find_waiting_line(self.waiting, id)
        node = next(node for node in self.main.all() if node.name == accepted.agent)
        return node.inbox.drop(accepted.id, iteration=node.iteration, reason=reason)
