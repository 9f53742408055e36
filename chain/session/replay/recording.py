"""A journal as a whole, and the parts in which it is run again. Pure.

A part is what one process wrote. One that resumed the session begins with what a crash had left out, which the program
writes again by itself from the rows before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from chain import records
from chain.errors import SessionError
from chain.records import Entry
from chain.session.reading import Reading
from chain.session.replay.script import Script
from chain.wording import PROGRAM_ENDED

_REPAIRS = (
    records.Answer,
    records.AgentEnded,
    records.Line,
    records.Message,
    records.Receipt,
    records.Result,
    records.ToolFinished,
)
"""What resuming a session writes before it is open."""


class Recording:
    """A journal that was read to be run again. ``faults`` say what of it could not be read."""

    def __init__(self, rows: Iterable[bytes]) -> None:
        """Raises ``SessionError`` for one of which too little is on record."""
        self._rows: list[bytes] = []
        self._entries: list[Entry] = []
        self._at: list[int] = []
        """Of each entry, how many rows there are before it."""
        reading = Reading(self._kept(rows))
        for entry in reading:
            if not isinstance(entry.record, records.Unknown):
                self._entries.append(entry)
                self._at.append(len(self._rows) - 1)
        self.faults = tuple(reading.faults)
        self.id = ""
        self._check()

    def _kept(self, rows: Iterable[bytes]) -> Iterator[bytes]:
        for row in rows:
            self._rows.append(row)
            yield row

    def _check(self) -> None:
        first = self._entries[0].record if self._entries else None
        if not isinstance(first, records.Session):
            raise SessionError("is no journal of a session: it does not begin with its opening")
        self.id = first.id
        found = [entry.record for entry in self._entries]
        has_replies = any(isinstance(each, records.Message) and each.message.role == "assistant" for each in found)
        if has_replies and not any(isinstance(each, records.RequestSent) for each in found):
            why = f"was written by chain {first.version}, which kept no record of its model calls"
            raise SessionError(f"{why}, so it cannot be replayed")

    @property
    def openings(self) -> Sequence[int]:
        """Which entries open or resume the session."""
        return [n for n, entry in enumerate(self._entries) if isinstance(entry.record, records.Session)]

    @property
    def length(self) -> int:
        """How many entries there are."""
        return len(self._entries)

    @property
    def counts(self) -> Counter[str]:
        """How many records there are of each type."""
        return Counter(entry.record.type for entry in self._entries)

    def script(self, begin: int, end: int) -> Script:
        """The part from an entry to before another."""
        old = {e.record.id for e in self._entries[:begin] if isinstance(e.record, records.Line)}
        return Script(tuple(self._entries[begin:end]), self._rows[: self._at[begin]] if begin else [], old)

    def begins(self, opened: int) -> Sequence[int]:
        """Where the process may have begun to write that resumed the session at an entry; empty for right there.

        What it writes before is what a crash had left out.
        """
        if not _is_of_crash(self._entries[opened - 1].record):
            return ()
        first = opened
        while isinstance(self._entries[first - 1].record, _REPAIRS):
            first -= 1
        return range(first, opened)


def _is_of_crash(record: records.Record | records.Unknown) -> bool:
    match record:
        case records.Result(result=text):
            return text == PROGRAM_ENDED
        case records.Receipt(reason=reason):
            return reason == PROGRAM_ENDED
        case _:
            return False
