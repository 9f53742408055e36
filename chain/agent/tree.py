"""The tree of the active agents. It selects the agent that receives a line, and stops whole branches.

A line without an address goes to one of the deepest agents (SPEC section 10). The search starts at the main agent.
Each step moves to an agent directly below: to an ``explore`` agent if there is one, else to a ``plan`` agent, else to
an agent of another kind. If there are several of them, the step moves to the youngest. The search ends at an agent that
has no agents below.

The search ignores agents that work for an ``agent_ask``. It also ignores agents that are completing: the run of such an
agent is over, and the answer is being passed to the parent.

A stop or an interrupt of an agent changes the state of its run and of all runs below it in one step. Otherwise a parent
could mistake the end of a stopped child for an answer, and continue.
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
"""The kinds of agents that receive lines before all other kinds. A kind with a lower number comes first."""

Activity: TypeAlias = Literal["executing", "completing", "finished"]
"""The state of an agent.

``executing``: its run is active. ``completing``: its run is over, but the agent has not left the tree yet.
``finished``: it has no run; a child agent is stored, so that it can be asked again.
"""


@dataclass(frozen=True, slots=True)
class AgentView:
    """A description of an agent for front ends.

    ``since`` is the time when the agent's last run started, in seconds since the epoch. ``tokens`` includes the tokens
    of the agents below. ``waiting`` is the number of lines in the agent's inbox.
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
        """Return the description of an agent that is in the state ``activity``."""
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

    ``is_asked``: the agent had finished before, and now works for an ``agent_ask``. ``is_completing``: its run is over.
    ``below`` are the active agents that this agent has started or asked, oldest first.
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
        """The inbox of the lines that wait for this agent."""
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
        """The current iteration of the agent's run. It is 0 if the agent has no run."""
        return 0 if self.run is None else self.run.iteration

    def all(self) -> Iterator[AgentNode]:
        """Yield this agent and all agents below it, at every depth."""
        yield self
        for node in tuple(self.below):
            yield from node.all()

    def stop(self) -> None:
        """Stop the runs of this agent and of all agents below it. Each run ends at its next safe point."""
        for node in self.all():
            if node.run is not None:
                node.run.stop()

    def interrupt(self) -> None:
        """Cancel the runs of this agent and of all agents below it."""
        for node in self.all():
            if node.run is not None:
                node.run.interrupt()

    def apply_urgency(self, lines: Sequence[AcceptedLine]) -> None:
        """Apply the immediate effects of newly accepted lines for this agent.

        A ``now`` line interrupts the agents below, cancels this agent's model call or running tools, and withdraws the
        questions of all these agents. An urgent line withdraws only this agent's questions.
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
        """Return a description of this agent for front ends."""
        running: Activity = "completing" if self.is_completing else "executing"
        return AgentView.of(self.agent, "finished" if self.run is None else running)


class AgentTree:
    """The main agent of a session, and all active agents below it."""

    def __init__(self, main: AgentNode) -> None:
        self.main = main

    def find_agent(self, name: str) -> AgentNode:
        """Return the active agent with this name, ignoring case. Raise ``UserError`` if there is no such agent."""
        nodes = {node.name: node for node in self.main.all() if not node.is_completing}
        folded = {known.casefold(): node for known, node in nodes.items()}
        found = nodes.get(name) or folded.get(name.casefold())
        if found is None:
            raise UserError(f"there is no active agent {name!r:.80}; active: {', '.join(nodes)}")
        return found

    def target(self) -> AgentNode:
        """Return the agent that receives a line without an address, as the docstring of this module describes."""
        node = self.main
        while below := [each for each in node.below if not (each.is_completing or each.is_asked)]:
            node = min(reversed(below), key=lambda each: _RANKS.get(each.agent.state.kind, len(_RANKS)))
        return node

    @property
    def waiting(self) -> tuple[AcceptedLine, ...]:
        """The waiting lines of all agents, in the order of acceptance."""
        return tuple(a for a in self.main.agent.shared.ledger.lines.waiting if not a.is_leaving)

    def last_waiting(self, origin: Origin) -> str | None:
        """Return the id of the latest waiting line from ``origin`` that can still be dropped, or ``None``."""
        own = (a for a in reversed(self.waiting) if a.origin == origin)
        return next((accepted.id for accepted in own if not accepted.is_used), None)

    def drop(self, id: str, reason: str = "") -> AcceptedLine:
        """Drop the waiting line with this id, and return it.

        Raise ``UserError`` if no such line waits, or if a running tool has already read the line.
        """
        accepted = find_waiting_line(self.waiting, id)
        node = next(node for node in self.main.all() if node.name == accepted.agent)
        return node.inbox.drop(accepted.id, iteration=node.iteration, reason=reason)
