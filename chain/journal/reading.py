"""Reading of a journal row by row.

A crash may leave the last row incomplete, and a full disk may leave an incomplete row in the middle. Rows that are not
a complete record, and records whose ``seq`` was read before, are skipped and reported. Records of unknown types are
returned as ``Unknown``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from chain.journal import json as record_json
from chain.journal.records import Entry

MAX_FAULTS = 5
"""The maximum number of faults that are reported."""

TORN = "the last record of the journal is incomplete, as after a crash, and was skipped."

_ABANDONED_ROW_END = b"\0\n"
"""The bytes that a writer adds to an incomplete row before its next record (``DiskFile.append``)."""


class Reading:
    """An iterable over the entries of a journal, for a single iteration.

    ``rows`` are the rows of the file, each with its end of line. ``seq`` is the number of the last entry read, and
    ``number`` the number of rows read. ``faults`` are sentences about skipped rows and missing records. ``is_torn``:
    the last row has no end of line.
    """

    def __init__(self, rows: Iterable[bytes]) -> None:
        self.seq = 0
        self.faults: list[str] = []
        self.is_torn = False
        self.number = 0
        self._rows = rows

    @property
    def complaints(self) -> tuple[str, ...]:
        """The faults found so far, as sentences with full stops."""
        return tuple(f"{fault}." for fault in self.faults) + ((TORN,) if self.is_torn else ())

    def __iter__(self) -> Iterator[Entry]:
        for row in self._rows:
            self.number += 1
            if not row.endswith(b"\n"):
                self.is_torn = True
            elif not row.endswith(_ABANDONED_ROW_END):
                entry = self._parse(row)
                if entry is not None:
                    yield entry

    def _parse(self, row: bytes) -> Entry | None:
        """Return the entry of a row. If the row has to be skipped, add a fault and return ``None``."""
        try:
            raw = json.loads(row.decode())
            if not isinstance(raw, dict):
                raise ValueError("it is not a JSON object")
            entry = record_json.from_json(raw)
        except (ValueError, RecursionError) as error:
            why = "it is not JSON" if isinstance(error, json.JSONDecodeError | UnicodeDecodeError) else error
            self._add_fault(f"row {self.number} of the journal cannot be read and was skipped: {why}")
            return None
        if entry.seq <= self.seq:
            self._add_fault(f"record {entry.seq} of the journal occurs twice; the second was skipped")
            return None
        if entry.seq > self.seq + 1:
            first, last = self.seq + 1, entry.seq - 1
            are = f"record {first} is" if first == last else f"records {first} to {last} are"
            self._add_fault(f"{are} missing from the journal")
        self.seq = entry.seq
        return entry

    def _add_fault(self, fault: str) -> None:
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(fault)
