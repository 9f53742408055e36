"""Reads a journal row by row.

A crash may leave the last row torn, and a full disk one in the middle. Rows that are no whole record, and records whose
``seq`` is not new, are skipped and reported. Records of unknown types are kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from chain.journal import json as record_json
from chain.journal.records import Entry

MAX_FAULTS = 5
"""Faults that are reported."""

TORN = "the last record of the journal was torn, as by a crash, and was left out."

_TORN_ON_PURPOSE = b"\0\n"
"""The end of a row that a writer gave up (``DiskFile.append``)."""


class Reading:
    """The entries of a journal, to be iterated over once.

    ``rows`` are those of the file, each with its end of line. ``seq`` is that of the last record so far, ``number`` the
    number of rows, ``faults`` says in sentences what is wrong. ``is_torn``: the last row has no end.
    """

    def __init__(self, rows: Iterable[bytes]) -> None:
        self.seq = 0
        self.faults: list[str] = []
        self.is_torn = False
        self.number = 0
        self._rows = rows

    @property
    def complaints(self) -> tuple[str, ...]:
        """What is wrong with the file so far, in sentences with full stops."""
        return tuple(f"{fault}." for fault in self.faults) + ((TORN,) if self.is_torn else ())

    def __iter__(self) -> Iterator[Entry]:
        for row in self._rows:
            self.number += 1
            if not row.endswith(b"\n"):
                self.is_torn = True
            elif not row.endswith(_TORN_ON_PURPOSE):
                entry = self._read(row)
                if entry is not None:
                    yield entry

    def _read(self, row: bytes) -> Entry | None:
        try:
            raw = json.loads(row.decode())
            if not isinstance(raw, dict):
                raise ValueError("it is no JSON object")
            entry = record_json.from_json(raw)
        except (ValueError, RecursionError) as error:
            why = "it is no JSON" if isinstance(error, json.JSONDecodeError | UnicodeDecodeError) else error
            self._fault(f"row {self.number} of the journal cannot be read and was left out: {why}")
            return None
        if entry.seq <= self.seq:
            self._fault(f"record {entry.seq} of the journal is there twice; the second was left out")
            return None
        if entry.seq > self.seq + 1:
            first, last = self.seq + 1, entry.seq - 1
            are = f"record {first} is" if first == last else f"records {first} to {last} are"
            self._fault(f"{are} missing from the journal")
        self.seq = entry.seq
        return entry

    def _fault(self, what: str) -> None:
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(what)
