"""The accepted lines of a session: a part of the session's state, which only records change (``session.state``). Pure.

These are the transitions between the states of a line. A delivered line is returned only if the service refuses the
request, since the message that delivered the line is then removed from the conversation::

    queued ──> delivered ──> returned
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

FOREIGN_ORIGINS: frozenset[Origin] = frozenset({"door", "acp", "job"})
"""The origins of lines that are not the process's own input. Their senders receive the receipts."""

EARLIER_SUFFIX = " (before)"
"""The suffix that renames lines of an earlier process, so that senders may use the same ids again."""

NEXT_STATES: dict[State, frozenset[State]] = {
    "queued": frozenset({"delivered", "handled", "returned", "dropped"}),
    "delivered": frozenset({"returned"}),
}
"""The allowed transitions: for each state, the states that may follow it."""

_GENERATED_ID = re.compile(r"L[0-9]+")
"""An id that chain generated."""

_ORIGINS: dict[str, Origin] = {origin: origin for origin in get_args(Origin)}
_URGENCIES: dict[str, Urgency] = {urgency: urgency for urgency in get_args(Urgency)}


@dataclass(eq=False, slots=True)
class AcceptedLine:
    """An accepted line with its state.

    ``id`` is shown to people and senders. ``on_record`` is the id in the journal, which is unique in the session; the
    two differ if an earlier process used the sender's id. ``number`` counts the lines of the session from 1.
    ``accepted_at`` and ``entered_at`` are the times of acceptance and delivery, in seconds since the epoch.
    ``delivered_at`` is the safe point and iteration of the message that delivered the line. ``withdrawn`` says why that
    message was removed from the conversation, or is empty. ``is_carried_out``: code has done what the line asks for.

    The last four fields exist only in the running process. ``accepted_monotonic`` is the time of acceptance on
    trio's clock. ``is_leaving``: the line was taken out of the inbox to be delivered or returned. ``is_used``: a
    running tool has read the line's adjustment. ``wakes``: the line reports the end of a job and may start a run.
    """

    record: records.Line
    line: Line
    number: int
    accepted_at: float
    id: str
    receipt: events.Receipt | None = None
    delivered_at: tuple[Point | None, int] | None = None
    entered_at: float | None = None
    withdrawn: str = ""
    is_carried_out: bool = False
    accepted_monotonic: float = 0.0
    is_leaving: bool = False
    is_used: bool = False
    wakes: bool = False

    @property
    def on_record(self) -> str:
        """The id of the line in the journal."""
        return self.record.id

    @property
    def agent(self) -> str:
        """The name of the agent that the line goes to, or went to."""
        return self.record.agent

    @property
    def origin(self) -> Origin:
        """The origin of the line; ``prompt`` if this version does not know it."""
        return _ORIGINS.get(self.record.origin, "prompt")

    @property
    def state(self) -> State:
        """The state in the latest receipt; ``queued`` if there is no receipt."""
        return "queued" if self.receipt is None else self.receipt.state

    @property
    def is_own(self) -> bool:
        """Whether the line came from the process's own input."""
        return self.origin not in FOREIGN_ORIGINS

    def waited_s(self, now: float) -> float:
        """Return the seconds from acceptance to delivery, or to ``now``. At least 0, since a clock may be set back."""
        return max((now if self.entered_at is None else self.entered_at) - self.accepted_at, 0.0)


class Lines:
    """All lines of a session. ``waiting`` are the lines in the inboxes of agents, in the order of acceptance."""

    def __init__(self) -> None:
        self.on_record: dict[str, AcceptedLine] = {}
        self.by_id: dict[str, AcceptedLine] = {}
        self.waiting: list[AcceptedLine] = []
        self._maybe_unsettled: list[AcceptedLine] = []
        """All lines that are still queued, and other lines that ``_unsettled`` has not removed yet."""
        self._renamed: list[AcceptedLine] = []
        """Lines of earlier processes whose ids this process has given to other lines."""
        self._earlier_count = 0
        """The number of lines of earlier processes."""

    def unfinished(self) -> list[AcceptedLine]:
        """Return the lines that are still queued but wait in no inbox.

        Such lines were to start a run or to act at once, but have not done so.
        """
        return [a for a in self._unsettled() if self._can_wait(a)]

    def may_reuse(self, id: str) -> bool:
        """Return whether a sender may use this id: it is unused, or an earlier process of chain generated it."""
        known = self.by_id.get(id)
        return known is None or (known.number <= self._earlier_count and id == known.on_record)

    def add(self, record: records.Line, at: float) -> AcceptedLine:
        """Add a line and return it. If a line with this id is known, move that line to another agent instead."""
        known = self.on_record.get(record.id)
        if known is not None:
            known.record, known.line = record, _restore_line(record)
            self.add_waiting(known)
            return known
        id = record.sent_as or record.id
        if (other := self.by_id.get(id)) is not None:
            self._rename(other)
        accepted = AcceptedLine(record, _restore_line(record), len(self.on_record) + 1, at, id)
        self.on_record[record.id] = self.by_id[id] = accepted
        self._maybe_unsettled.append(accepted)
        if record.effect == "waits":
            self.waiting.append(accepted)
        return accepted

    def add_waiting(self, accepted: AcceptedLine) -> None:
        """Add a line to ``waiting``, in the order of acceptance.

        Do nothing if the line is delivered or settled, is a stop, or waits already.
        """
        if self._can_wait(accepted):
            insort(self.waiting, accepted, key=attrgetter("number"))

    def remove_waiting(self, ids: Iterable[str]) -> list[AcceptedLine]:
        """Remove the lines with these journal ids from ``waiting``. Return the lines; unknown ids are ignored."""
        found = [self.on_record[id] for id in ids if id in self.on_record]
        self.waiting = [a for a in self.waiting if a not in found] if found else self.waiting
        return found

    def reopen(self) -> None:
        """Prepare the lines for another process: all lines that are still queued wait, with urgency ``next``."""
        changed = [*self._renamed, *islice(self.on_record.values(), self._earlier_count, None)]
        self._earlier_count = len(self.on_record)
        self._renamed.clear()
        for accepted in changed:
            del self.by_id[accepted.id]
        for accepted in changed:
            suffix = "" if _GENERATED_ID.fullmatch(accepted.on_record) else EARLIER_SUFFIX
            accepted.id = f"{accepted.on_record}{suffix}"
            self.by_id[accepted.id] = accepted
        for accepted in self._unsettled():
            accepted.line = replace(accepted.line, urgency="next")
            self.add_waiting(accepted)

    def _unsettled(self) -> list[AcceptedLine]:
        """Return the lines that are still queued, which means neither delivered nor settled."""
        self._maybe_unsettled = [a for a in self._maybe_unsettled if a.state == "queued" and a.delivered_at is None]
        return self._maybe_unsettled

    def _can_wait(self, accepted: AcceptedLine) -> bool:
        """Return whether a line is still queued, is not a stop, and is not in ``waiting`` yet."""
        is_open = accepted.state == "queued" and accepted.delivered_at is None and accepted.record.kind != "stop"
        return is_open and accepted not in self.waiting

    def _rename(self, accepted: AcceptedLine) -> None:
        """Append ``EARLIER_SUFFIX`` to the id of a line of an earlier process, until the id is unique."""
        self._renamed.append(accepted)
        while accepted.id in self.by_id:
            accepted.id += EARLIER_SUFFIX
        self.by_id[accepted.id] = accepted


def _restore_line(record: records.Line) -> Line:
    """Parse the text of a record again, and return the line as it was accepted."""
    if record.kind == "job":
        return job_line(record.text)
    line = parse_line(record.text, local=False)
    if record.by_rule and record.kind == "stop":
        line = replace(line, kind="stop")
    elif line.kind != record.kind:  # a query that was not parsed
        line = Line(record.text, "verbatim", record.text.strip() or record.text)
    urgency = _URGENCIES.get(record.urgency, "next")
    return replace(line, urgency=urgency, images=record.images, names_files=not record.is_plain)


def job_line(text: str) -> Line:
    """Return the line that reports the end of a background job. Its text is not parsed."""
    return Line(text, "job", text, names_files=False)


def adjustment_view(line: Line) -> AdjustmentView | None:
    """Return the line's adjustment as events show it; ``None`` if the line has none."""
    found = line.adjustment
    return None if found is None else AdjustmentView(found.type, found.value)
