"""A journal as a whole, and the parts in which it is run again. Pure.

A part is what one process wrote. One that resumed the session begins with what a crash had left out, which the program
writes again by itself from the rows before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from chain.errors import SessionError
from chain.journal import records
from chain.journal.reading import Reading
from chain.journal.records import Entry
from chain.replay.script import Script


class Recording:
    """A journal that was read to be run again. ``complaints`` say what of it could not be read.

    ``is_damaged``: a record is missing from the middle, as no crash does it.
    """

    def __init__(self, rows: Iterable[bytes]) -> None:
        """Raises ``SessionError`` for one that is no journal."""
        self._rows: list[bytes] = []
        self._entries: list[Entry] = []
        self._at: list[int] = []
        """Of each entry, how many rows there are before it."""
        reading = Reading(self._kept(rows))
        for entry in reading:
            if not isinstance(entry.record, records.Unknown):
                self._entries.append(entry)
                self._at.append(len(self._rows) - 1)
        self.complaints = reading.complaints
        self.is_damaged = bool(reading.faults)
        if not self._entries or not isinstance(self._entries[0].record, records.Session):
            raise SessionError("is no journal of a session: it does not begin with its opening")

    def _kept(self, rows: Iterable[bytes]) -> Iterator[bytes]:
        for row in rows:
            self._rows.append(row)
            yield row

    @property
    def counts(self) -> Counter[str]:
        """How many records there are of each type, without the ends of model calls: one that was cut has none."""
        return Counter(e.record.type for e in self._entries if not isinstance(e.record, records.RequestEnded))

    def scripts(self) -> Iterator[Script]:
        """The parts in their order."""
        begins = [
            n - entry.record.repaired
            for n, entry in enumerate(self._entries)
            if isinstance(entry.record, records.Session)
        ]
        for begin, end in zip(begins, [*begins[1:], len(self._entries)], strict=True):
            old = {e.record.id for e in self._entries[:begin] if isinstance(e.record, records.Line)}
            yield Script(self._entries[begin:end], self._rows[: self._at[begin]] if begin else [], old)
