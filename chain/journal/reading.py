"""Reads a journal back, row by row, as far as it can be read.

A crash may leave the last row torn, a full disk one in the middle: what is no whole record is passed over, and said.
So is a record that is there twice, which its ``seq`` shows, as does one that is missing. Unknown types are kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from chain.journal import json as record_json
from chain.journal.records import Entry

MAX_FAULTS = 5
"""Faults that are told one by one. A file with more of them is broken as a whole, which these say as well."""

TORN = "the last record of the journal was torn, as by a crash, and was left out."

_TORN_ON_PURPOSE = b"\0\n"
"""How a row ends that a writer gave up (``DiskFile.append``)."""


class Reading:
    """The entries of a journal in their order. What follows from them all is known at the end.

    ``rows`` are those of the file, each with its end of line; ``seq`` is that of the last record.
    """

    def __init__(self, rows: Iterable[bytes]) -> None:
        self.seq = 0
        self.faults: list[str] = []
        """What is wrong with the file, in sentences."""
        self.is_torn = False
        """Whether the last row has no end."""
        self._rows = rows
        self.number = 0
        """How many rows were read."""

    @property
    def complaints(self) -> tuple[str, ...]:
        """What is wrong with the file as far as it was read, in sentences with their full stops."""
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
