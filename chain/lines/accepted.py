"""The lines on record: what each says, which of them wait, and what became of the others. Pure.

This is a part of the state of a session: only records change it (``session.state``). What may become of a line is one
table. All final states but one stay as they are: the service may refuse a request whose messages then have to leave the
conversation again, and the lines in them go back to the user::

    queued ──> delivered ──> returned (only by a refusal)
       ├─────> handled
       ├─────> returned
       └─────> dropped
"""

from __future__ import annotations

import re
from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from operator import attrgetter
from typing import get_args

from chain import events
from chain.events import AdjustmentView, Origin, Point, State
from chain.journal import records
from chain.lines.parse import Line, Urgency, parse_line

OTHERS: frozenset[Origin] = frozenset({"door", "acp"})
"""Where lines come from that are not of the process's own input: their senders have the receipts."""

BEFORE = " (before)"
"""The suffix of the id of a line that an earlier process accepted, if its sender may use the id again."""

NEXT: dict[State, frozenset[State]] = {
    "queued": frozenset({"delivered", "handled", "returned", "dropped"}),
    "delivered": frozenset({"returned"}),
}

_OWN = re.compile(r"L[0-9]+")
"""An id that chain gave."""

_ORIGINS: dict[str, Origin] = {origin: origin for origin in get_args(Origin)}
_URGENCIES: dict[str, Urgency] = {urgency: urgency for urgency in get_args(Urgency)}


@dataclass(eq=False, slots=True)
class Accepted:
    """A line on record.

    ``id`` is the id that people and senders see. It differs from the one on record (``on_record``, unique in the
    session) if another process of the session had used the sender's id before. ``number`` counts the lines of the
    session from 1. ``accepted_at`` and ``entered_at`` are the times, in seconds since the epoch, when the line was
    accepted and when a message delivered it; ``entered`` is the safe point and iteration of that message.
    ``withdrawn`` says why that message has left the conversation. ``is_carried_out``: code has done what it says.

    The last three are known to the running process alone. ``since`` is when it was accepted on trio's clock.
    ``is_leaving``: it was taken for delivery, or to be returned. ``was_used``: a running tool has read its adjustment.
    """

    record: records.Line
    line: Line
    number: int
    accepted_at: float
    id: str
    receipt: events.Receipt | None = None
    entered: tuple[Point | None, int] | None = None
    entered_at: float | None = None
    withdrawn: str = ""
    is_carried_out: bool = False
    since: float = 0.0
    is_leaving: bool = False
    was_used: bool = False

    @property
    def on_record(self) -> str:
        """Its id in the journal."""
        return self.record.id

    @property
    def agent(self) -> str:
        """The agent that it waits for, or waited for."""
        return self.record.agent

    @property
    def origin(self) -> Origin:
        """Where it came from; the prompt, if this version does not know that."""
        return _ORIGINS.get(self.record.origin, "prompt")

    @property
    def state(self) -> State:
        """Its state by its last receipt."""
        return "queued" if self.receipt is None else self.receipt.state

    @property
    def is_own(self) -> bool:
        """Whether the line came from the input of the process that runs the session."""
        return self.origin not in OTHERS

    def waited_s(self, now: float) -> float:
        """Return the seconds until it was delivered, or until now. A clock may have been set back meanwhile."""
        return max((now if self.entered_at is None else self.entered_at) - self.accepted_at, 0.0)


class Lines:
    """All lines of a session. ``waiting`` are those in the inboxes of agents, in the order of acceptance."""

    def __init__(self) -> None:
        self.on_record: dict[str, Accepted] = {}
        self.by_id: dict[str, Accepted] = {}
        self.waiting: list[Accepted] = []
        self._queued: list[Accepted] = []
        """Those that were neither delivered nor settled when this was looked up last."""
        self._renamed: list[Accepted] = []
        """Those of earlier processes whose ids this process has given to other lines."""
        self._before = 0
        """How many lines were accepted by earlier processes."""

    def undone(self) -> list[Accepted]:
        """Return the lines that were to start a run or to act at once and have done neither."""
        return [a for a in self._unsettled() if self._can_wait(a)]

    def may_reuse(self, id: str) -> bool:
        """Return whether a sender may use this id: it is new, or chain gave it in an earlier process."""
        known = self.by_id.get(id)
        return known is None or (known.number <= self._before and id == known.on_record)

    def add(self, record: records.Line, at: float) -> Accepted:
        """Add a line, or let a known one wait for another agent."""
        known = self.on_record.get(record.id)
        if known is not None:
            known.record, known.line = record, _line_of(record)
            self.wait(known)
            return known
        id = record.sent_as or record.id
        if (other := self.by_id.get(id)) is not None:
            self._rename(other)
        accepted = Accepted(record, _line_of(record), len(self.on_record) + 1, at, id)
        self.on_record[record.id] = self.by_id[id] = accepted
        self._queued.append(accepted)
        if record.effect == "waits":
            self.waiting.append(accepted)
        return accepted

    def wait(self, accepted: Accepted) -> None:
        """Let a line wait in its place, if it is queued and does not wait yet."""
        if self._can_wait(accepted):
            insort(self.waiting, accepted, key=attrgetter("number"))

    def leave(self, ids: Iterable[str]) -> list[Accepted]:
        """Take these lines, by their ids on record, out of their inboxes. Return those that are known."""
        found = [self.on_record[id] for id in ids if id in self.on_record]
        self.waiting = [a for a in self.waiting if a not in found] if found else self.waiting
        return found

    def reopen(self) -> None:
        """Follow the opening of the session by another process: all that is queued waits, with its urgency spent."""
        changed = [*self._renamed, *islice(self.on_record.values(), self._before, None)]
        self._before = len(self.on_record)
        self._renamed.clear()
        for accepted in changed:
            del self.by_id[accepted.id]
        for accepted in changed:
            accepted.id = accepted.on_record if _OWN.fullmatch(accepted.on_record) else f"{accepted.on_record}{BEFORE}"
            self.by_id[accepted.id] = accepted
        for accepted in self._unsettled():
            accepted.line = replace(accepted.line, urgency="next")
            self.wait(accepted)

    def _unsettled(self) -> list[Accepted]:
        self._queued = [a for a in self._queued if a.state == "queued" and a.entered is None]
        return self._queued

    def _can_wait(self, accepted: Accepted) -> bool:
        is_open = accepted.state == "queued" and accepted.entered is None and accepted.record.kind != "stop"
        return is_open and accepted not in self.waiting

    def _rename(self, accepted: Accepted) -> None:
        """Give another id to a line of an earlier process."""
        self._renamed.append(accepted)
        while accepted.id in self.by_id:
            accepted.id += BEFORE
        self.by_id[accepted.id] = accepted


def _line_of(record: records.Line) -> Line:
    """Return the line of a record as it was read when it was accepted."""
    line = parse_line(record.text, local=False)
    if record.by_rule and record.kind == "stop":
        line = replace(line, kind="stop")
    elif line.kind != record.kind:  # a query, which is not parsed
        line = Line(record.text, "verbatim", record.text.strip() or record.text)
    urgency = _URGENCIES.get(record.urgency, "next")
    return replace(line, urgency=urgency, images=record.images, names_files=not record.is_plain)


def adjustment_view(line: Line) -> AdjustmentView | None:
    """Return the line's adjustment as events show it."""
    found = line.adjustment
    return None if found is None else AdjustmentView(found.type, found.value)
