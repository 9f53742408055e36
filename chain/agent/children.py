"""Child agents: how they start and end, and which finished agents can be asked again.

A child runs inside a tool call of its parent, so the child ends with that call. A child ends in one step without an
``await``: its lines and findings move to the parent, and it leaves the tree.

If several calls ask the same finished agent, the calls run one after the other. But if the asking agent itself works
for an ``agent_ask``, its call fails instead of waiting: two agents that ask each other would wait forever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import trio

from chain.agent.executor import Executor
from chain.agent.history import AgentState
from chain.agent.spec import AgentContext, AgentSpec, Shared
from chain.agent.state import Outcome, Run
from chain.agent.tree import AgentNode, AgentTree, AgentView
from chain.errors import ToolError, UserError
from chain.events import Status
from chain.journal import records
from chain.lines.accepted import AcceptedLine
from chain.lines.inbox import Inbox
from chain.text.wording import pluralize
from chain.tools.tool import Delegating

_WITH_ANSWER: frozenset[Status] = frozenset({"done", "max_iterations", "truncated"})
"""The statuses of runs with an answer, which may be incomplete."""

MakeSpec: TypeAlias = Callable[[str, str, AgentSpec, str], AgentSpec]
"""A function that returns a child's spec. Raises ``UserError`` if the kind is unknown or cannot be used.

The arguments are the child's kind, its name, its parent's spec, and the id of the tool call that starts the child.
"""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of the agent tree: levels below the main agent, active child agents, and stored finished agents."""

    max_depth: int = 3
    max_running: int = 8
    max_kept: int = 50


@dataclass(eq=False)
class _StoredAgent:
    """A child agent, stored so that it can be asked again. The call that uses the agent holds the lock ``in_use``."""

    executor: Executor
    in_use: trio.Lock = field(default_factory=trio.Lock)

    def has_other_users(self, ended: _StoredAgent) -> bool:
        """Return whether a call uses this agent or waits for it.

        ``ended`` is the agent whose call is ending now. If this agent is ``ended``, that call does not count.
        """
        return self.in_use.statistics().tasks_waiting > 0 or (self is not ended and self.in_use.locked())


class Children:
    """The owner of all child agents of a session, active and finished."""

    def __init__(
        self, tree: AgentTree, shared: Shared, make_spec: MakeSpec, bounds: Bounds, numbers: Counter[str]
    ) -> None:
        """Create an owner without agents. ``numbers`` counts the agents started in the session, by kind."""
        self._tree = tree
        self._shared = shared
        self._make_spec = make_spec
        self.bounds = bounds
        self._numbers = numbers
        self._stored: dict[str, _StoredAgent] = {}
        """The stored agents by name, the most recently used last. An agent stays stored while it answers a question."""

    @property
    def finished(self) -> tuple[AgentView, ...]:
        """The finished agents that can be asked again, without those that are answering a question at the moment."""
        contexts = [stored.executor.context for stored in self._stored.values()]
        return tuple(AgentView.of(context, "finished") for context in contexts if not context.state.is_at_work)

    def problem_of(self, kind: str) -> str:
        """Return the reason why agents of this kind cannot be started, or an empty string if they can."""
        try:
            self._make_spec(kind, kind, self._tree.main.agent.spec, "")
        except UserError as error:
            return str(error)
        return ""

    def restore(self, state: AgentState) -> Executor:
        """Restore a finished agent of an earlier process, so that it can be asked again. Return its executor.

        Raise ``UserError`` if the agent's kind no longer exists or cannot be used.
        """
        spec = self._make_spec(state.kind, state.name, self._tree.main.agent.spec, state.parent_id)
        agent = self._stored[state.name] = self._new_agent(spec)
        return agent.executor

    async def start(self, parent: AgentNode, kind: str, task: str, call_id: str) -> str:
        """Run a new agent with a task, and return its answer. Raise ``ToolError`` if there is no answer."""
        if not task.strip():
            raise ToolError("The task is empty; say what the agent should do.")
        name = f"{kind}-{self._numbers[kind] + 1}"
        return await self._run_agent(None, kind, name, parent, task, call_id)

    async def ask(self, parent: AgentNode, name: str, question: str, call_id: str) -> str:
        """Run a finished agent again with a question, and return the answer. Raise ``ToolError`` if there is none."""
        if not question.strip():
            raise ToolError("The question is empty.")
        name = name.strip()
        agent = self._stored.get(name)
        if agent is None:
            raise ToolError(self._explain_not_askable(name))
        if agent.in_use.locked() and parent.is_for_a_question:
            raise ToolError(f"{name} is answering another question; ask again later.")
        await self._wait_for(agent, name, parent)
        try:
            kind = agent.executor.context.state.kind
            return await self._run_agent(agent, kind, name, parent, question, call_id)
        finally:
            agent.in_use.release()

    async def _wait_for(self, agent: _StoredAgent, name: str, parent: AgentNode) -> None:
        """Acquire ``agent.in_use``. Raise ``ToolError`` if the user stops the parent's run before the lock is free."""
        run = parent.run
        assert run is not None
        with run.cut_scope("stop") as scope:
            if run.is_ending:
                scope.cancel()  # the stop came in the step in which the call started
            await agent.in_use.acquire()
        if scope.cancelled_caught:
            raise ToolError(f"{name} was not started: the user stopped the run.")

    def _new_agent(self, spec: AgentSpec) -> _StoredAgent:
        """Create an agent with this spec.

        Must be called after the agent's ``AgentStarted`` record was written, because that record creates its state.
        """
        shared = self._shared
        inbox = Inbox(shared.ledger, agent=spec.name, size=self._tree.main.inbox.size)
        return _StoredAgent(Executor(AgentContext(spec, shared, inbox, shared.agents[spec.name])))

    async def _run_agent(
        self, stored: _StoredAgent | None, kind: str, name: str, parent: AgentNode, task: str, call_id: str
    ) -> str:
        """Run the agent ``stored``, or a new agent if ``stored`` is ``None``, with a task. Return the answer.

        Raise ``ToolError`` if the agent cannot be started or ends without an answer.
        """
        # A ``now`` line may have cancelled the call while the call waited for the agent.
        await trio.lowlevel.checkpoint_if_cancelled()
        # No await from here to the run: otherwise a concurrent call could pass the limits at the same time.
        self._check_limits(parent)
        try:
            spec = self._make_spec(kind, name, parent.agent.spec, call_id)
        except UserError as error:
            raise ToolError(f"No {kind} can be started: {error}") from None
        above = parent.run
        assert above is not None
        if above.is_ending:
            raise ToolError(f"{name} was not started: the user stopped the run.")
        record = records.AgentStarted(name, kind, call_id, task, parent.name)
        started = self._shared.journal.record(record)
        agent = self._new_agent(spec) if stored is None else stored
        context = agent.executor.context
        context.spec = spec
        node = AgentNode(context, parent, is_asked=stored is not None)
        node.run = run = Run(task=task, above=above, call_id=call_id, delegating=Delegation(self, node))
        parent.below.append(node)
        self._shared.journal.emit_after_acks(started.emit)
        context.check_prompt(node.iteration)
        node.inbox.room.set()
        status: Status = "error"
        try:
            outcome = await agent.executor.run(run)
            status = outcome.status
        except (trio.Cancelled, BaseExceptionGroup):
            status = "limit_reached" if run.is_timed_out and not run.is_interrupted else "interrupted"
            raise
        finally:
            # No await from here to the end.
            node.is_completing = True
            if status not in _WITH_ANSWER:
                above.step.children_findings.setdefault(call_id, []).extend(run.findings)
                above.dropped_findings += run.dropped_findings
                above.skipped_calls += run.skipped_calls
            moved = self._hand_over_lines(node, parent)
            parent.below.remove(node)
            self._shared.jobs.kill_jobs_of(name)
            self._store_finished(agent, run, parent, status)
            if not above.is_ending:
                parent.apply_urgency(moved)
        return _answer_or_raise(name, run, outcome)

    def _hand_over_lines(self, node: AgentNode, parent: AgentNode) -> tuple[AcceptedLine, ...]:
        """Move the waiting lines of the ending agent ``node`` to its parent, and return the moved lines.

        Todo lines that were already carried out are not moved, but settled as ``handled``.
        """
        for accepted in node.inbox.all_lines():
            if accepted.is_carried_out:
                self._shared.ledger.settle(accepted, "handled", iteration=node.iteration)
        moved = node.inbox.hand_over(parent.inbox, iteration=parent.iteration)
        node.inbox.room.set()  # wake the senders that wait for room
        return moved

    def _store_finished(self, agent: _StoredAgent, run: Run, parent: AgentNode, status: Status) -> None:
        """Record the end of an agent, and store it so that it can be asked again.

        If more agents are stored than the limit allows, remove the least recently used ones that no call uses.
        """
        spec = agent.executor.context.spec
        self._stored.pop(spec.name, None)
        self._stored[spec.name] = agent
        unused = [name for name, each in self._stored.items() if not each.has_other_users(agent)]
        forgotten = unused[: max(len(self._stored) - self.bounds.max_kept, 0)]
        for name in forgotten:
            del self._stored[name]
        ended = records.AgentEnded(
            spec.name, spec.parent_id, status, run.iteration, parent.name, run.usage, tuple(forgotten)
        )
        # A full disk must not prevent an agent from ending.
        self._shared.journal.emit_after_acks(self._shared.journal.record_if_possible(ended).emit)

    def _check_limits(self, parent: AgentNode) -> None:
        """Raise ``ToolError`` if the depth or the concurrency limit allows no further child."""
        if parent.depth >= self.bounds.max_depth:
            levels = pluralize(self.bounds.max_depth, "level")
            raise ToolError(f"Agents can be nested at most {levels} deep (agents.max_depth); do this yourself.")
        at_work = sum(1 for _ in self._tree.main.all()) - 1
        if at_work >= self.bounds.max_running:
            raise ToolError(
                f"The limit of {pluralize(at_work, 'active agent')} is reached (agents.max_running); "
                "do this yourself, or start the agent when another one has finished."
            )

    def _explain_not_askable(self, name: str) -> str:
        """Return the reason why an agent with this name cannot be asked: it is still active, or unknown."""
        if any(node.name == name for node in self._tree.main.all()):
            return f"{name} is still working; the call that started it will return its answer."
        known = "; ".join(f"{each.name} ({each.task:.60})" for each in self.finished)
        names = f"the finished agents are: {known}" if known else "no agent has finished"
        return f"There is no finished agent {name!r:.80} to ask; {names}."


@dataclass(frozen=True, slots=True)
class Delegation(Delegating):
    """The interface by which the tools of one agent (``node``) start and ask other agents."""

    children: Children
    node: AgentNode

    async def start(self, kind: str, task: str, call_id: str) -> str:
        """Run a new agent with a task, and return its answer. Raise ``ToolError`` if there is no answer."""
        return await self.children.start(self.node, kind, task, call_id)

    async def ask(self, name: str, question: str, call_id: str) -> str:
        """Run a finished agent again with a question, and return the answer. Raise ``ToolError`` if there is none."""
        return await self.children.ask(self.node, name, question, call_id)


def _answer_or_raise(name: str, run: Run, outcome: Outcome) -> str:
    """Return the answer of an ended run of the agent ``name``, as the parent agent gets the answer.

    If the run has no answer, raise ``ToolError`` with the reason and the run's findings.
    """
    if outcome.status == "done":
        return outcome.result
    if outcome.status in _WITH_ANSWER:
        return f"{outcome.result}\n\n[{name} stopped: {outcome.status}]"
    if outcome.status == "interrupted":
        reason = "The user interrupted it."
    elif outcome.status.startswith("cancelled"):
        reason = "The user stopped it."
    else:
        reason = outcome.result
    found = [f"{each.tool}: {each.text}" for each in run.findings]
    earlier = [f"({pluralize(run.dropped_findings, 'earlier result')} left out)"] if run.dropped_findings else []
    partial = ["What the agent had found until then:", *earlier, *found] if found else []
    raise ToolError("\n\n".join([f"[{name} ended: {outcome.status}] {reason}", *partial]))
