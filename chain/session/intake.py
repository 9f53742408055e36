"""What becomes of a line in the step in which it comes: it starts a run, interrupts one, stops it, or is done at once.

Nothing here waits. Whether a run is active and what becomes of the line are decided in one step in trio's thread.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from chain.agent.handler import current_prompt
from chain.agent.run import Run
from chain.agent.spec import Shared
from chain.errors import JournalError, PlanError
from chain.events import Origin
from chain.interruption.prompt import InterruptionPrompt, by_rule
from chain.lines.inbox import Inbox
from chain.lines.parse import Line
from chain.lines.receipts import Accepted, Refused
from chain.session.runs import Session
from chain.wording import STOPPED_BY_RULE


@dataclass(frozen=True, slots=True)
class Submitted:
    """What became of a line at once.

    ``started``: it is the query of a new run. ``queued``: it waits for a safe point (its receipt follows as an event).
    ``stopping``: the run will end. ``handled``: done without a model, and ``message`` says what. ``refused``:
    ``message`` says why, and the text is still the user's. ``local``: a slash command, for the front end.
    ``returned``: it was accepted and cannot be done, ``message`` says why, and its receipt gives the text back.
    ``answered``: it answers a question. ``nothing``: a blank line, or a stop when nothing runs.
    """

    what: Literal["started", "queued", "stopping", "handled", "refused", "returned", "local", "answered", "nothing"]
    id: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Sent:
    """A line with its sender's own id for it, if there is one, and where it came from."""

    line: Line
    id: str = ""
    origin: Origin = "prompt"


class Intake:
    """Accepts lines for the main agent of a session."""

    def __init__(self, session: Session, shared: Shared, inbox: Inbox) -> None:
        self._session = session
        self._shared = shared
        self._inbox = inbox
        self._ledger = shared.ledger

    def problem(self, sent: Sent) -> str:
        """Why a line cannot be accepted, whatever room there is; empty if it can."""
        return self._ledger.problem(sent.line, sent.id)

    def refuse(self, sent: Sent, reason: str) -> Submitted:
        """Tell the sender that a line was not accepted, and why."""
        agent, waiting, iteration = self._session.spec.name, len(self._inbox), self._session.iteration
        self._ledger.refuse(sent.line, agent, waiting, reason, id=sent.id, origin=sent.origin, iteration=iteration)
        return Submitted("refused", message=reason)

    def start(self, sent: Sent) -> Submitted:
        """Start a run; none may be active."""
        try:
            accepted = self._accept_at_once(sent)
        except JournalError as error:
            return self.refuse(sent, str(error))
        self._session.begin(Run(accepted))
        return Submitted("started", accepted.id)

    def carry_out(self, sent: Sent, status: str) -> Submitted:
        """Do at once what needs no model, when no run is active; ``status`` answers who asks for it."""
        try:
            accepted = self._accept_at_once(sent)
        except JournalError as error:
            return self.refuse(sent, str(error))
        reason, command = "", sent.line.command
        try:
            message = status if command is None else self._shared.plan.carry_out(command)
        except PlanError as error:
            message = reason = str(error)
        except JournalError as error:
            # The line was accepted, so it is not refused but comes back.
            self._ledger.settle(accepted, "returned", iteration=0, reason=str(error))
            return Submitted("returned", accepted.id, str(error))
        self._ledger.settle(accepted, "handled", iteration=0, reason=reason)
        return Submitted("handled", accepted.id, message)

    def interrupt(self, run: Run, typed: Sent) -> Submitted:
        """Accept a line while a run is active: for a safe point, or to stop the run."""
        sent = replace(typed, line=self.by_rule(typed))
        line = sent.line
        if line.kind == "stop":
            return self._stop(run, sent, "" if typed.line.kind == "stop" else STOPPED_BY_RULE)
        put = self._inbox.put(line, id=sent.id, origin=sent.origin, iteration=run.iteration)
        if isinstance(put, Refused):
            return Submitted("refused", message=put.reason)
        if line.skips_tools:
            self._shared.questions.withdraw(self._inbox.agent)
        if line.urgency == "now":
            run.cut()
        return Submitted("queued", put.id)

    def by_rule(self, sent: Sent) -> Line:
        """What the handler prompt's rules, as they are now, make of a line.

        Only for an interruption: a line that starts a run is a query, which no handler prompt is asked about. A line
        that will be refused cannot be delivered, so no rule sees it; one for which there is only no room may still be
        a stop.
        """
        if not self._session.spec.prompts.is_configured or self.problem(sent):
            return sent.line
        prompt = self._prompt()
        line = by_rule(prompt, sent.line)
        if prompt.mistake is not None:
            self._prompt()  # a rule was too slow just now, which is reported at once
        return line

    def _stop(self, run: Run, sent: Sent, reason: str) -> Submitted:
        """Stop, whatever becomes of the line: neither a full disk nor a used id keeps anybody from stopping."""
        accepted, problem = None, self.problem(sent)
        if not problem:
            try:
                accepted = self._accept_at_once(sent)
            except JournalError as error:
                problem = str(error)
        if accepted is None:
            self.refuse(sent, f"{problem}; the run stops all the same")
        else:
            self._ledger.settle(accepted, "handled", iteration=run.iteration, reason=reason)
        self._shared.questions.withdraw()
        run.stop()
        return Submitted("stopping", "" if accepted is None else accepted.id)

    def _accept_at_once(self, sent: Sent) -> Accepted:
        """Accept a line that has no need to wait; the next model call still waits until it is on the disk."""
        accepted = self._ledger.accept(sent.line, self._session.spec.name, id=sent.id, origin=sent.origin)
        self._shared.journal.acknowledge(lambda: None)
        return accepted

    def _prompt(self) -> InterruptionPrompt:
        return current_prompt(self._session.spec, self._shared.emit, self._session.iteration)
