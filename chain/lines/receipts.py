"""The ledger of a session: accepts, refuses and settles lines, and lists their receipts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import trio

from chain import events
from chain.concurrency.wakeup import Wakeup
from chain.errors import JournalError
from chain.events import Origin, Point, Receipt, State
from chain.journal import records
from chain.journal.journal import Emit, Journal, RecordedEvents
from chain.journal.records import Effect
from chain.lines.accepted import FOREIGN_ORIGINS, NEXT_STATES, AcceptedLine, Lines, adjustment_view
from chain.lines.parse import Line, Urgency, problem_of

MAX_REFUSED = 1_000
"""The limit, in characters, of a refused line in its events: enough to recognise it. The sender has the text."""


@dataclass(frozen=True, slots=True)
class LineOutcomes:
    """The outcomes of lines since the previous call of ``Ledger.settled``.

    ``receipts`` are the last receipts of settled lines. ``unsent`` are the lines that a script or a pipe never sent, as
    they are written there.
    """

    receipts: tuple[Receipt, ...] = ()
    unsent: tuple[str, ...] = ()


class Ledger:
    """The component that accepts, refuses and settles lines, and records and emits this.

    ``room`` is set when lines have left an inbox, and when another reason for senders to wait has ended. ``returned``,
    ``refused`` and ``unsent`` are numbers of lines from the process's own input.
    """

    def __init__(self, journal: Journal, lines: Lines, emit: Emit) -> None:
        self.lines = lines
        self.room = Wakeup()
        self.returned = self.refused = self.unsent = 0
        self._journal = journal
        self._emit = emit
        self._refused: list[Receipt] = []
        self._last_number = 0
        self._unreported: dict[str | int, Receipt] = {}
        """The receipts since the last call of ``settled``, by ids on record, and by numbers for refused lines."""
        self._unsent: list[str] = []
        self._unsynced_done: list[AcceptedLine] = []
        """Lines that were carried out at once and whose receipts are not synced yet."""
        journal.on_failure(self._return_unsynced)

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        """The latest receipts of accepted lines in the order of acceptance, then those of refused lines."""
        return (*map(_latest_receipt, self.lines.on_record.values()), *self._refused)

    def settled(self) -> LineOutcomes:
        """Return and clear the outcomes of lines since the last call of this method."""
        settled = LineOutcomes(tuple(self._unreported.values()), tuple(self._unsent))
        self._unreported.clear()
        self._unsent.clear()
        return settled

    def problem(self, line: Line, id: str) -> str:
        """Return why a line cannot be accepted even if the inbox has room, or an empty string."""
        if problem := problem_of(line):
            return problem
        if id and not self.lines.may_reuse(id):
            return f"the id {id} was used before; give each line its own id"
        return ""

    def accept(
        self,
        line: Line,
        agent: str,
        *,
        id: str = "",
        origin: Origin = "prompt",
        effect: Effect = "waits",
        iteration: int = 0,
        by_rule: bool = False,
        waiting: int = 0,
        job: str = "",
    ) -> AcceptedLine:
        """Give the line an id, record the line and return it. Raise ``JournalError`` if the line cannot be recorded.

        ``by_rule``: a rule changed the kind or urgency of the line. ``waiting`` is the line's position in the queue.
        ``job`` is the background job whose end the line reports.
        """
        number, on_record = self._last_number, id
        while not on_record or on_record in self.lines.on_record:
            number += 1
            on_record = f"L{number}"
        record = records.Line(
            on_record,
            line.text,
            line.kind,
            line.urgency,
            agent,
            origin,
            effect,
            iteration,
            by_rule,
            waiting,
            line.images,
            not line.names_files,
            id if id != on_record else "",
            job,
        )
        self._journal.acknowledge(self._journal.record(record).emit)
        self._last_number = number
        accepted = self.lines.on_record[on_record]
        accepted.accepted_monotonic = trio.current_time()
        return accepted

    def reset_outcomes(self) -> None:
        """Set ``returned`` to 0, and discard the receipts that ``settled`` has not returned yet."""
        self.returned = 0
        self._unreported.clear()

    def readdress(
        self, accepted: AcceptedLine, agent: str, *, waiting: int, iteration: int = 0, urgency: Urgency | None = None
    ) -> None:
        """Move a waiting line to another agent. ``waiting`` is its position in that agent's queue.

        Without ``urgency``, the line keeps its urgency.
        """
        urgency = urgency or accepted.line.urgency
        record = replace(accepted.record, agent=agent, effect="waits", iteration=iteration, waiting=waiting)
        record = replace(record, urgency=urgency)
        # A full disk must not prevent an agent from ending. A resumed session moves the line itself.
        self._journal.acknowledge(self._journal.record_if_possible(record).emit)
        accepted.is_leaving = False

    def settle(
        self, accepted: AcceptedLine, state: State, *, iteration: int, point: Point | None = None, reason: str = ""
    ) -> None:
        """Record a receipt with the new ``state`` of a line, and emit it after the queued acknowledgements.

        Raise ``ValueError`` for a transition that is not in ``NEXT_STATES``.
        """
        if state not in NEXT_STATES.get(accepted.state, frozenset()):
            raise ValueError(f"line {accepted.id} cannot go from {accepted.state} to {state}")
        self._journal.emit_after_acks(self._settle(accepted, state, iteration, point, reason).emit)

    def settle_done(self, accepted: AcceptedLine, reason: str) -> None:
        """Settle as ``handled`` a line that was carried out at once. Emit the receipt once it is on disk.

        If the disk fails before the receipt is on disk, settle the line as ``returned`` instead.
        """
        recorded = self._settle(accepted, "handled", 0, None, reason)
        self._unsynced_done.append(accepted)

        def emit() -> None:
            self._unsynced_done.remove(accepted)
            recorded.emit()

        self._journal.acknowledge(emit)

    def _return_unsynced(self, error: JournalError) -> None:
        """After a failure of the disk, settle as ``returned`` the lines whose ``handled`` receipts were not synced."""
        while self._unsynced_done:
            accepted = self._unsynced_done.pop(0)
            # Not by ``settle``: the line is ``handled`` already, but that receipt was never emitted.
            self._journal.emit_after_acks(self._settle(accepted, "returned", 0, None, str(error)).emit)

    def _settle(
        self, accepted: AcceptedLine, state: State, iteration: int, point: Point | None, reason: str
    ) -> RecordedEvents:
        """Record a receipt with the new ``state`` of a line, and return the events of the record."""
        waited = None if point is None else trio.current_time() - accepted.accepted_monotonic
        record = records.Receipt(accepted.on_record, state, accepted.agent, iteration, point, waited, reason)
        was_waiting = accepted in self.lines.waiting
        # A full disk must not prevent a run from ending. A resumed session then shows the line as waiting.
        recorded = self._journal.record_if_possible(record)
        (receipt,) = recorded.events
        assert isinstance(receipt, Receipt)
        self._unreported.pop(accepted.on_record, None)  # so that the new receipt is last
        self._unreported[accepted.on_record] = receipt
        self.returned += state == "returned" and accepted.is_own
        if was_waiting:
            self.room.set()
        return recorded

    def refuse(
        self, line: Line, agent: str, waiting: int, reason: str, *, id: str, origin: Origin, iteration: int
    ) -> str:
        """Emit the events of a refused line, and return the reason.

        ``receipts`` lists only lines from the process's own input, so that other senders cannot grow it without limit.
        """
        common: dict[str, Any] = {"agent": agent, "iteration": iteration, "id": id, "origin": origin, "reason": reason}
        common |= {"text": line.text[:MAX_REFUSED], "kind": line.kind}
        view = adjustment_view(line)
        refused = events.LineRefused(
            **common, urgency=line.urgency, target_agent=agent, waiting=waiting, adjustment=view
        )
        self._emit(refused)
        receipt = Receipt(**common, state="refused")
        if origin not in FOREIGN_ORIGINS:
            self.refused += 1
            self._refused.append(receipt)
            self._unreported[self.refused] = receipt
        self._emit(receipt)
        return reason

    def mark_unsent(self, written: str, reason: str, agent: str, *, id: str, iteration: int) -> None:
        """Emit a receipt of a line that a script or a pipe will never send.

        ``written`` is the line as it is written in the script, with the time at which it was to be sent.
        """
        self.unsent += 1
        self._unsent.append(written)
        self._emit(Receipt(agent=agent, iteration=iteration, id=id, text=written, state="unsent", reason=reason))


def _latest_receipt(accepted: AcceptedLine) -> Receipt:
    if accepted.receipt is not None:
        is_same = accepted.receipt.id == accepted.id
        return accepted.receipt if is_same else replace(accepted.receipt, id=accepted.id)
    return Receipt(
        agent=accepted.agent, id=accepted.id, text=accepted.record.text, state="queued", origin=accepted.origin
    )
