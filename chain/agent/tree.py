"""The agents of a session that are at work: who started whom, which one a line goes to, how a stop reaches them all.

Nothing here waits. A line goes to the deepest agent that the user can be talking to (SPEC section 10)::

    main ──> the first of explore, plan, all others that has an agent at work below it; of several the youngest
         ──> and so on below that one, until there is none

An agent that an ``agent_ask`` put to work does not count, nor what works for it: the conversation goes on above. Nor
does one that is completing: its run is over, and its answer is being handed over.

A stop and an interrupt mark every run below the one that they are meant for, in the same step. So whatever ends first,
no agent above it takes that for an answer and goes on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from chain.agent.spec import AgentContext
from chain.agent.state import Run
from chain.errors import UserError
from chain.events import Origin
from chain.lines.accepted import Accepted
from chain.lines.inbox import Inbox, find_waiting_line

_RANKS = {"explore": 0, "plan": 1}
"""The kinds whose agents lines go to before those of all other kinds, in their order."""

AgentState: TypeAlias = Literal["executing", "completing", "finished"]
"""What an agent is doing: its run is active, or over, or it is kept to be asked again."""


@dataclass(frozen=True, slots=True)
class AgentView:
    """An agent as people see it; ``since`` is in seconds since the epoch, ``tokens`` are also of those it started."""

    name: str
    kind: str
    parent: str
    task: str
    state: AgentState
    since: float
    iteration: int
    max_iterations: int
    tokens: int
    waiting: int


@dataclass(eq=False)
class AgentNode:
    """An agent at work. ``run`` is ``None`` only for the main agent, between two runs.

    ``is_asked``: it was finished, and is asked one more question. ``below`` are those that work for it, oldest first.
    """

    agent: AgentContext
    kind: str
    task: str = ""
    parent: AgentNode | None = None
    is_asked: bool = False
    run: Run | None = None
    is_completing: bool = False
    below: list[AgentNode] = field(default_factory=list)
    since: float = field(default_factory=time.time)

    @property
    def name(self) -> str:
        """The agent's name, as in ``explore-1``."""
        return self.agent.name

    @property
    def inbox(self) -> Inbox:
        """Where its lines wait."""
        return self.agent.inbox

    @property
    def depth(self) -> int:
        """How many agents are above it."""
        return 0 if self.parent is None else self.parent.depth + 1

    @property
    def is_for_a_question(self) -> bool:
        """Whether it works for an ``agent_ask``, its own or one further up."""
        return self.is_asked or (self.parent is not None and self.parent.is_for_a_question)

    @property
    def iteration(self) -> int:
        """The iteration of its run; 0 without one."""
        return 0 if self.run is None else self.run.iteration

    def all(self) -> Iterator[AgentNode]:
        """Itself, and all below it."""
        yield self
        for node in tuple(self.below):
            yield from node.all()

    def stop(self) -> None:
        """End its run and those of all below it at their next safe point."""
        for node in self.all():
            if node.run is not None:
                node.run.stop()

    def interrupt(self) -> None:
        """Cancel what it and all below it have in hand."""
        for node in self.all():
            if node.run is not None:
                node.run.interrupt()

    def apply_urgency(self, lines: Sequence[Accepted]) -> None:
        """What the urgent and the now lines among those that have come to it do at once.

        A now line cuts what it has in hand; the agents below it end with that.
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
        """The agent as people are shown it."""
        return AgentView(
            name=self.name,
            kind=self.kind,
            parent="" if self.parent is None else self.parent.name,
            task=self.task,
            state="completing" if self.is_completing else "finished" if self.run is None else "executing",
            since=self.since,
            iteration=self.iteration,
            max_iterations=self.agent.spec.limits.max_iterations,
            tokens=0 if self.run is None else self.run.usage.total_tokens,
            waiting=len(self.inbox),
        )


class AgentTree:
    """The main agent of a session, and all that work for it."""

    def __init__(self, main: AgentNode) -> None:
        self.main = main

    def named(self, name: str) -> AgentNode:
        """The agent at work with this name, whose case does not matter. Raises ``UserError`` with those that are."""
        there = {node.name: node for node in self.main.all() if not node.is_completing}
        folded = {known.casefold(): node for known, node in there.items()}
        found = there.get(name) or folded.get(name.casefold())
        if found is None:
            those = f"only {self.main.name} is" if len(there) == 1 else f"those at work are {', '.join(there)}"
            raise UserError(f"there is no agent {name!r:.80} at work; {those}")
        return found

    def target(self) -> AgentNode:
        """The agent that a line without an address goes to."""
        node = self.main
        while below := [each for each in node.below if not (each.is_completing or each.is_asked)]:
            node = min(reversed(below), key=lambda each: _RANKS.get(each.kind, len(_RANKS)))
        return node

    # ------------------------------------------------------------------------------------------- waiting lines

    @property
    def waiting(self) -> tuple[Accepted, ...]:
        """The lines that wait, for whichever agent, in the order of acceptance."""
        return tuple(a for a in self.main.agent.shared.ledger.lines.waiting if not a.is_leaving)

    def last_waiting(self, origin: Origin) -> str | None:
        """The id of the latest line from there that ``drop`` would still remove."""
        own = (a for a in reversed(self.waiting) if a.origin == origin)
        return next((accepted.id for accepted in own if not accepted.was_used), None)

    def drop(self, id: str, reason: str = "") -> Accepted:
        """Remove a waiting line for good. Raises ``UserError`` as ``Inbox.drop`` does."""
        accepted = find_waiting_line(self.waiting, id)
        node = next(node for node in self.main.all() if node.name == accepted.agent)
        return node.inbox.drop(accepted.id, iteration=node.iteration, reason=reason)
