"""What the runs of a session have come to: how each one's end is settled, and what they add up to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from chain import events, exit_codes
from chain.agent.run import Outcome, Run
from chain.errors import JournalError
from chain.lines.inbox import Inbox
from chain.lines.receipts import Accepted, Emit, Ledger, Record
from chain.messages import Usage


class Account:
    """The endings of a session's runs, and what they have used."""

    def __init__(
        self,
        *,
        inbox: Inbox,
        ledger: Ledger,
        journal: Record,
        emit: Emit,
        trace_path: Callable[[], str | None],
        interactive: bool,
    ) -> None:
        """``interactive``: a person who types lines; one that is refused is still in their editor, and no failure."""
        self._inbox = inbox
        self._ledger = ledger
        self._journal = journal
        self._emit = emit
        self._trace_path = trace_path
        self._interactive = interactive
        self._codes: set[int] = set()
        self.last_status: events.Status | None = None
        self.usage = Usage()

    def exit_code(self, *, interrupted: bool = False, terminated: bool = False) -> int:
        """The exit code of the process as things stand."""
        ledger = self._ledger
        left = ledger.returned + ledger.unsent + (0 if self._interactive else ledger.refused)
        codes = {
            exit_codes.LINES_LEFT: left,
            exit_codes.INTERRUPTED_CODE: interrupted,
            exit_codes.SIGTERM_CODE: terminated,
        }
        return exit_codes.exit_code([*self._codes, *(code for code, holds in codes.items() if holds)])

    def settle(self, run: Run, outcome: Outcome, left: Sequence[Accepted]) -> None:
        """Give back the lines that are left, add up the run, record its result and tell of it; all in one step."""
        for accepted in sorted(left, key=lambda accepted: accepted.number):
            was_done = accepted.id in run.carried_out or self._inbox.was_used(accepted)
            state: events.State = "handled" if was_done else "returned"
            reason = "" if was_done else outcome.status
            self._ledger.settle(accepted, state, iteration=run.iteration, reason=reason)
        self.usage += run.usage
        self.last_status = outcome.status
        self._codes.add(exit_codes.EXIT_CODES[outcome.status])
        result = self._result(run, outcome)
        # A disk that takes no more must not keep the run from ending.
        with suppress(JournalError):
            fields = {"status": result.status, "result": result.result, "iterations": result.iterations}
            self._journal.record("result", {**fields, "usage": events.to_json(result)["usage"]})
        self._journal.in_order(lambda: self._emit(result))

    def _result(self, run: Run, outcome: Outcome) -> events.Result:
        settled = self._ledger.settled()
        return events.Result(
            iteration=run.iteration,
            status=outcome.status,
            result=outcome.result,
            replies=tuple(run.replies),
            iterations=run.iteration,
            usage=run.usage,
            partial=outcome.partial,
            phase_reached=outcome.phase_reached,
            partial_results=outcome.partial_results,
            termination_reason=outcome.termination_reason,
            trace_path=self._trace_path(),
            exit_code=self.exit_code(),
            receipts=settled.receipts,
            unsent=settled.unsent,
        )
