"""The ledger of a session: what became of each line.

What may become of a line is one table. All final states but one stay as they are: the service may refuse a request
whose messages then have to leave the conversation again, and the lines in them go back to the user::

    queued ──> delivered ──> returned (only by a refusal)
       ├─────> handled
       ├─────> returned
       └─────> dropped
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import get_args

import trio

from chain import events
from chain.errors import JournalError
from chain.events import AdjustmentView, Origin, Point, Receipt, State
from chain.journal import records
from chain.journal.journal import Emit, Journal, Projected
from chain.journal.records import Effect
from chain.lines.parse import Line, parse_line, problem_of

OTHERS: frozenset[Origin] = frozenset({"door", "acp"})
"""Where lines come from that are not of the process's own input: their senders have the receipts."""

MAX_REFUSED = 1_000
"""Characters that are kept of a line that was refused: enough to know it by. Its text is still its sender's."""

BEFORE = " (before)"
"""What is added to a sender's id of a line that an earlier process accepted."""

_OWN = re.compile(r"L[0-9]+")
"""An id that the ledger gave."""

_NEXT: dict[State, frozenset[State]] = {
    "queued": frozenset({"delivered", "handled", "returned", "dropped"}),
    "delivered": frozenset({"returned"}),
}


@dataclass(eq=False, slots=True)
class Accepted:
    """A line that has an id and a place to wait.

    ``number`` counts the accepted lines of the session; ``accepted_at`` is on trio's clock, in seconds; ``origin`` is
    where the line came from; ``on_record`` is its id in the journal, where ids count for the session and not for one
    process. ``id`` is what it is told by, which changes when another line takes it. ``is_carried_out``: code has done
    what it says. ``was_used``: a running tool has read its adjustment.
    """

    id: str
    line: Line
    agent: str
    number: int
    accepted_at: float
    origin: Origin = "prompt"
    on_record: str = ""
    is_carried_out: bool = False
    was_used: bool = False

    @property
    def is_own(self) -> bool:
        """Whether the line came from the input of the process that runs the session."""
        return self.origin not in OTHERS


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of lines in a part of a session, each line once.

    ``receipts`` are final ones and those of refused lines; ``unsent`` are those that a script or pipe never sent.
    """

    receipts: tuple[Receipt, ...] = ()
    unsent: tuple[str, ...] = ()


class Ledger:
    """What became of every line, for the journal and for whoever listens.

    ``returned``, ``refused`` and ``unsent`` count such lines of the process's own input.
    """

    def __init__(self, journal: Journal, emit: Emit) -> None:
        self._journal = journal
        self._emit = emit
        self.returned = self.refused = self.unsent = 0
        self._receipts: dict[str, Receipt] = {}
        self.ids: dict[str, str] = {}
        """Of the lines that are told by other ids than those that they have on record, by the latter."""
        self._before: dict[str, Accepted] = {}
        """Lines of an earlier process that are told by the ids that they have on record, until others take these."""
        self._refused: list[Receipt] = []
        self._number = 0
        self._settled: dict[str | int, Receipt] = {}
        """By ids on record, of lines that the service may give back once more, and by numbers for refused ones."""
        self._unsent: list[str] = []
        self._done: list[Accepted] = []
        """What was done at once, until that is on the disk."""
        journal.when_failed(self._return_done)

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        """A receipt for each accepted line as things are now, in the order of acceptance, then the refused ones."""
        return (*self._receipts.values(), *self._refused)

    def settled(self) -> Settled:
        """What was settled since this was last called."""
        settled = Settled(tuple(self._settled.values()), tuple(self._unsent))
        self._settled.clear()
        self._unsent.clear()
        return settled

    def problem(self, line: Line, id: str) -> str:
        """Why a line cannot be accepted whatever the room, or an empty string."""
        if problem := problem_of(line):
            return problem
        if id in self._receipts and id not in self._before:
            return f"the id {id} was used before; give each line its own"
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
    ) -> Accepted:
        """Give the line an id and record it. Raises ``JournalError``, and the line was then never accepted.

        ``iteration`` is that of the agent's run; ``by_rule``: a rule made of the line what it is; ``waiting`` is its
        place in the queue.
        """
        number, on_record = self._number, id
        while not on_record or on_record in self.ids or on_record in self._receipts:
            number += 1
            on_record = f"L{number}"
        place, now = len(self._receipts) + 1, trio.current_time()
        accepted = Accepted(id or on_record, line, agent, place, now, origin, on_record)
        id = accepted.id
        if on_record != id:
            self.ids[on_record] = id
        try:
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
            )
            self._journal.acknowledge(self._journal.record(record).emit)
        except JournalError:
            self.ids.pop(on_record, None)
            raise
        self._number = number
        if id in self._before:
            self._make_way(self._before.pop(id))
        self._receipts[id] = Receipt(agent=agent, id=id, text=line.text, state="queued", kind=line.kind, origin=origin)
        return accepted

    def restore(self, record: records.Line, last: records.Receipt | None, number: int, *, waited_s: float) -> Accepted:
        """Know a line again that an earlier process accepted as its ``number``-th, with its last receipt.

        What its sender called it, senders may call another line now, so that this one is ``c1 (before)``; where they
        take an id that the ledger may have given it, it becomes so then.
        ``waited_s``: how long it has waited, or had until it was delivered, in seconds by the clocks of both processes.
        """
        origin = origin_of(record)
        id = record.id if _OWN.fullmatch(record.id) else f"{record.id}{BEFORE}"
        last = last or records.Receipt(record.id, "queued", record.agent, 0)
        self._receipts[id] = Receipt(
            agent=last.agent,
            iteration=last.iteration,
            id=id,
            text=record.text,
            state=last.state,
            point=last.point,
            waited_s=last.waited_s,
            reason=last.reason,
            kind=record.kind,
            origin=origin,
        )
        at = trio.current_time() - waited_s
        accepted = Accepted(id, line_of(record), record.agent, number, at, origin, record.id)
        if record.id == id:
            self._before[id] = accepted
        else:
            self.ids[record.id] = id
        return accepted

    def _make_way(self, before: Accepted) -> None:
        """Tell a line of an earlier process by another id from now on."""
        taken = before.id
        while before.id in self._receipts:
            before.id += BEFORE
        self.ids[taken] = before.id
        receipts = (replace(each, id=before.id) if each.id == taken else each for each in self._receipts.values())
        self._receipts = {each.id: each for each in receipts}

    def begin_anew(self) -> None:
        """Count and list the lines alone that are settled from now on."""
        self.returned = 0
        self._settled.clear()

    def readdress(self, accepted: Accepted, agent: str, *, waiting: int, iteration: int = 0) -> Accepted:
        """The line as one that waits for another agent, whose own did not live to read it, as its ``waiting``-th."""
        line, id = accepted.line, accepted.on_record
        # A full disk must not keep an agent from ending. The line is on record as one that waits, wherever.
        same = (id, line.text, line.kind, line.urgency, agent, accepted.origin)
        record = records.Line(*same, iteration=iteration, waiting=waiting, images=line.images)
        self._journal.acknowledge(self._journal.record_if_possible(record).emit)
        self._receipts[accepted.id] = replace(self._receipts[accepted.id], agent=agent)
        accepted.agent = agent
        return accepted

    def settle(
        self, accepted: Accepted, state: State, *, iteration: int, point: Point | None = None, reason: str = ""
    ) -> None:
        """Write the line's receipt. Raises ``ValueError`` for a step that the table does not have."""
        self._journal.in_order(self._settle(accepted, state, iteration, point, reason).emit)

    def settle_done(self, accepted: Accepted, reason: str) -> None:
        """Write that the line was done at once. It comes back if the disk fails before that is known to be kept."""
        projected = self._settle(accepted, "handled", 0, None, reason)
        self._done.append(accepted)

        def tell() -> None:
            self._done.remove(accepted)
            projected.emit()

        self._journal.acknowledge(tell)

    def _return_done(self, error: JournalError) -> None:
        while self._done:
            accepted = self._done.pop(0)
            # Nobody was told that it is done, nor will be.
            self._receipts[accepted.id] = replace(self._receipts[accepted.id], state="queued")
            self.settle(accepted, "returned", iteration=0, reason=str(error))

    def _settle(self, accepted: Accepted, state: State, iteration: int, point: Point | None, reason: str) -> Projected:
        old = self._receipts[accepted.id]
        if state not in _NEXT.get(old.state, frozenset()):
            raise ValueError(f"line {accepted.id} cannot go from {old.state} to {state}")
        waited = None if point is None else trio.current_time() - accepted.accepted_at
        record = records.Receipt(accepted.on_record, state, accepted.agent, iteration, point, waited, reason)
        # A full disk must not keep a run from ending. The line itself is on record, so a session that is read back
        # treats it as one that still waits: shown again rather than lost.
        projected = self._journal.record_if_possible(record)
        (receipt,) = projected.events
        assert isinstance(receipt, Receipt)
        self._receipts[accepted.id] = receipt
        self._settled.pop(accepted.on_record, None)  # the latest of a line comes last
        self._settled[accepted.on_record] = receipt
        self.returned += state == "returned" and accepted.is_own
        return projected

    def refuse(
        self, line: Line, agent: str, waiting: int, reason: str, *, id: str, origin: Origin, iteration: int
    ) -> str:
        """Emits that a line was not accepted; returns why. It is listed, unless it is of others, whose senders know."""
        text = line.text[:MAX_REFUSED]
        self._emit(
            events.LineRefused(
                agent=agent,
                iteration=iteration,
                id=id,
                text=text,
                kind=line.kind,
                urgency=line.urgency,
                target_agent=agent,
                waiting=waiting,
                origin=origin,
                reason=reason,
                adjustment=adjustment_view(line),
            )
        )
        receipt = Receipt(
            agent=agent,
            iteration=iteration,
            id=id,
            text=text,
            state="refused",
            reason=reason,
            kind=line.kind,
            origin=origin,
        )
        if origin not in OTHERS:  # whoever sends without end must not make it grow
            self.refused += 1
            self._refused.append(receipt)
            self._settled[self.refused] = receipt
        self._emit(receipt)
        return reason

    def never_sent(self, written: str, reason: str, agent: str, *, id: str, iteration: int) -> None:
        """Emits that a line will not be sent any more; ``written`` is the line with its moment."""
        self.unsent += 1
        self._unsent.append(written)
        self._emit(Receipt(agent=agent, iteration=iteration, id=id, text=written, state="unsent", reason=reason))


def line_of(record: records.Line) -> Line:
    """The line that a record tells of, as it was read when it was accepted; its urgency is spent."""
    line = parse_line(record.text, local=False)
    if line.kind != record.kind:  # a query, which is not parsed
        line = Line(record.text, "verbatim", record.text.strip() or record.text)
    return replace(line, urgency="next", images=record.images)


def origin_of(record: records.Line) -> Origin:
    """Where a line on record came from; the prompt, if this version does not know that."""
    known: dict[str, Origin] = {origin: origin for origin in get_args(Origin)}
    return known.get(record.origin, "prompt")


def adjustment_view(line: Line) -> AdjustmentView | None:
    """The line's adjustment as events show it."""
    found = line.adjustment
    return None if found is None else AdjustmentView(found.type, found.value)
