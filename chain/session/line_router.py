"""Routing of lines: a line starts a run, waits for a safe point, stops a run, or is carried out at once.

All functions are synchronous, so that a line is routed in one step.

A line goes to the agent that it is addressed to. Without an address, todo lines and follow-ups go to the main agent,
since the plan and the next run belong to the session. Other lines go to the agent whose question is open, otherwise to
the agent that the tree selects (``AgentTree.target``).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from chain.agent.spec import Shared
from chain.agent.tree import AgentNode
from chain.errors import JournalError, PlanError, UserError
from chain.events import Origin
from chain.interruption.prompt import apply_rule
from chain.journal.records import Effect
from chain.lines.accepted import AcceptedLine
from chain.lines.parse import Line
from chain.session.runs import SessionRuns
from chain.text.wording import STOPPED_BY_RULE


@dataclass(frozen=True, slots=True)
class SubmitResult:
    """The immediate result of submitting a line. ``what`` names the result.

    ``started``: the line is the query of a new run. ``queued``: the line waits for a safe point (a receipt follows as
    an event). ``stopping``: the run will end. ``handled``: code carried out the line, and ``message`` is the outcome.
    ``refused``: the line was not accepted, and ``message`` is the reason. ``local``: the line is a slash command, for
    the front end. ``returned``: the line was accepted but cannot be carried out; ``message`` is the reason, and the
    receipt returns the text. ``answered``: the line answers a question. ``nothing``: a blank line, or a stop when
    no run is active.
    """

    what: Literal["started", "queued", "stopping", "handled", "refused", "returned", "local", "answered", "nothing"]
    id: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class IncomingLine:
    """A submitted line.

    ``id`` is the id that its sender gave it, ``to`` the name of the agent that it is addressed to. Both may be empty.
    """

    line: Line
    id: str = ""
    origin: Origin = "prompt"
    to: str = ""


class LineRouter:
    """The router of submitted lines to the agents of a session."""

    def __init__(self, session: SessionRuns, shared: Shared) -> None:
        self._session = session
        self._shared = shared
        self._tree = session.tree
        self._ledger = shared.ledger

    def target(self, sent: IncomingLine) -> AgentNode:
        """Return the agent that a line would go to now.

        Raise ``UserError`` if the line is addressed to an agent that is not at work.
        """
        if sent.to:
            return self._tree.find_agent(sent.to)
        if sent.line.kind in ("todo", "follow-up"):
            return self._tree.main
        asked = self._shared.questions.open
        if asked is not None:
            return self._tree.find_agent(asked.question.agent)
        return self._tree.target()

    def has_room(self, sent: IncomingLine) -> bool:
        """Return whether a line can be submitted now: its agent's inbox has room, and the agent's run is not stopping.

        Return ``True`` also if no run is active, or if the line will be refused because of its address.
        """
        if self._session.active is None:
            return True
        try:
            node = self.target(sent)
        except UserError:
            return True  # a line that will be refused needs no room
        return not (node.inbox.is_full or (node.run is not None and node.run.is_stop_requested))

    def needs_no_room(self, sent: IncomingLine) -> Literal["stop", "now"] | None:
        """Return how the active run would accept a line although the inbox is full: as a ``stop`` or as a ``now`` line.

        Return ``None`` if the line would be refused, or if no run is active.
        """
        if self._session.active is None:
            return None
        line, is_overfull = sent.line, False
        with suppress(UserError):  # a line to an agent that is not at work keeps its own kind and urgency
            node = self.target(sent)
            line, is_overfull = self._apply_rules(sent, node), node.inbox.is_overfull
        if line.kind == "stop":
            return "stop"
        return "now" if line.urgency == "now" and not is_overfull else None

    def refuse(self, sent: IncomingLine, reason: str) -> SubmitResult:
        """Refuse a line, and emit the reason as an event."""
        try:
            node = self.target(sent)
        except UserError:
            node = self._tree.main
        agent, waiting, iteration = node.name, len(node.inbox), node.iteration
        self._ledger.refuse(sent.line, agent, waiting, reason, id=sent.id, origin=sent.origin, iteration=iteration)
        return SubmitResult("refused", message=reason)

    def start(self, sent: IncomingLine) -> SubmitResult:
        """Start a run with a line as its query. No run may be active."""
        try:
            accepted = self._accept_at_once(sent, self.target(sent), effect="starts")
        except (JournalError, UserError) as error:
            return self.refuse(sent, str(error))
        self._session.start(accepted)
        return SubmitResult("started", accepted.id)

    def carry_out(self, sent: IncomingLine, status: str) -> SubmitResult:
        """Carry out a line without the model, while no run is active. A status query is answered with ``status``."""
        try:
            accepted = self._accept_at_once(sent, self.target(sent))
        except (JournalError, UserError) as error:
            return self.refuse(sent, str(error))
        reason, command = "", sent.line.command
        try:
            message = status if command is None else self._shared.plan.carry_out(command, line_id=accepted.on_record)
        except PlanError as error:
            message = reason = str(error)
        except JournalError as error:
            # The line was accepted, so it can no longer be refused.
            self._ledger.settle(accepted, "returned", iteration=0, reason=str(error))
            return SubmitResult("returned", accepted.id, str(error))
        self._ledger.settle_done(accepted, reason)
        return SubmitResult("handled", accepted.id, message)

    def interrupt(self, typed: IncomingLine) -> SubmitResult:
        """Route a line while a run is active: queue it for a safe point, or stop the run."""
        try:
            node = self.target(typed)
        except UserError as error:
            return self.refuse(typed, str(error))
        sent = replace(typed, line=self._apply_rules(typed, node))
        line = sent.line
        if line.kind == "stop":
            # Without an address, the whole run is stopped.
            return self._stop(node if typed.to else self._tree.main, sent, by_rule=typed.line.kind != "stop")
        by_rule = line.urgency != typed.line.urgency
        accepted = node.inbox.put(line, id=sent.id, origin=sent.origin, iteration=node.iteration, by_rule=by_rule)
        if isinstance(accepted, str):
            return SubmitResult("refused", message=accepted)
        node.apply_urgency([accepted])
        return SubmitResult("queued", accepted.id)

    def _apply_rules(self, sent: IncomingLine, node: AgentNode) -> Line:
        """Apply the current rules of an agent's handler prompt to a line, and return the resulting line.

        Return the line unchanged if it will be refused because of its text or its id. A full inbox is no reason to skip
        the rules, since they may turn the line into a stop, which needs no room.
        """
        if node.agent.spec.prompts.path is None or self._ledger.problem(sent.line, sent.id):
            return sent.line
        prompt = node.agent.current_prompt(node.iteration)
        line = apply_rule(prompt, sent.line)
        if prompt.mistake is not None:
            node.agent.current_prompt(node.iteration)  # reports a rule that was too slow
        return line

    def _stop(self, node: AgentNode, sent: IncomingLine, *, by_rule: bool) -> SubmitResult:
        """Stop the run of an agent, even if the line is refused because of a full disk or a used id."""
        accepted, problem = None, self._ledger.problem(sent.line, sent.id)
        if not problem:
            try:
                accepted = self._accept_at_once(sent, node, by_rule=by_rule)
            except JournalError as error:
                problem = str(error)
        if accepted is None:
            self.refuse(sent, f"{problem}; the run stops nevertheless")
        else:
            why = STOPPED_BY_RULE if by_rule else ""
            self._ledger.settle(accepted, "handled", iteration=node.iteration, reason=why)
        self._shared.questions.withdraw({each.name for each in node.all()})
        node.stop()
        return SubmitResult("stopping", "" if accepted is None else accepted.id)

    def _accept_at_once(
        self, sent: IncomingLine, node: AgentNode, *, effect: Effect = "acts", by_rule: bool = False
    ) -> AcceptedLine:
        """Accept a line that does not wait for a safe point. Raise ``JournalError`` if the line cannot be recorded."""
        at = node.iteration
        return self._ledger.accept(
            sent.line, node.name, id=sent.id, origin=sent.origin, effect=effect, iteration=at, by_rule=by_rule
        )
