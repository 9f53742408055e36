"""Holds back a line of which the records do not show yet what it did, and what came after it. Pure.

A line that comes when no run is active is done at once, or it starts a run, which its first message shows. If the
program ended before that, it waits like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from chain import records
from chain.records import Entry, PlanChange

_MAY_COME_FIRST = records.Line | records.Receipt | records.Interrupted | records.Model | PlanChange | records.Unknown
"""What may come between such a line and the record that shows what it did."""


@dataclass(frozen=True, slots=True)
class Began:
    """A line started a run whose first message could not be written."""

    line: records.Line
    time: float


Told: TypeAlias = Entry | Began
"""What can be told now."""


@dataclass(slots=True)
class Undecided:
    """A line that did something yet unknown, and the entries after it, if there is such a line."""

    held: list[Entry] = field(default_factory=list)

    def hold(self, line: Entry) -> None:
        """Wait for what shows what this line did."""
        self.held = [line]

    def add(self, entry: Entry) -> Sequence[Told]:
        """What the next entry decides, in the order in which it happened; nothing as long as it decides nothing."""
        if not self.held:
            return [entry]
        first, *others = self.held
        line = first.record
        assert isinstance(line, records.Line)
        match entry.record:
            case records.Message(point="start", line_ids=ids) if line.id in ids:
                self.held = []
                return [entry, *others]
            case records.Result():
                self.held = []
                return [Began(line, first.time), *others, entry]
            case records.Receipt(id=id) if id == line.id and _is_done_at_once(line):
                self.held = []
                return [*others, entry]
            case records.Line() if _is_done_at_once(line):  # and was not, or that is not on record
                waits, self.held = self.held, [entry]
                return waits
            case record if isinstance(record, _MAY_COME_FIRST):
                self.held.append(entry)
                return []
            case _:
                return [*self.rest(), entry]

    def rest(self) -> Sequence[Entry]:
        """What is held back, now that no more comes: the line waits."""
        held, self.held = self.held, []
        return held


def _is_done_at_once(line: records.Line) -> bool:
    return line.kind == "todo" or (line.kind == "question" and "?" not in line.text)
