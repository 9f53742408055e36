"""What many points came to, scenario by scenario, and the table that shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from .workers import Row

_LISTS = ("lost", "invalid", "unopened", "left", "wrong")
_HEADS = {
    "points": "points",
    "kills": "killed",
    "resumed": "resumed",
    "empty": "empty",
    "acknowledged": "acknowledged",
    "lost": "lost",
    "invalid": "invalid requests",
    "unopened": "not opened",
    "left": "processes left",
    "wrong": "wrong",
}


@dataclass(slots=True)
class Tally:
    """The counts of one scenario, or of all."""

    points: int = 0
    kills: int = 0
    resumed: int = 0
    empty: int = 0
    acknowledged: int = 0
    lost: int = 0
    invalid: int = 0
    unopened: int = 0
    left: int = 0
    wrong: int = 0

    def add(self, outcome: Row) -> None:
        """Count a point."""
        self.points += bool(outcome["point"])
        self.empty += outcome["was_empty"]
        for name in ("kills", "resumed", "acknowledged"):
            setattr(self, name, getattr(self, name) + outcome[name])
        for name in _LISTS:
            setattr(self, name, getattr(self, name) + len(outcome[name]))


@dataclass(slots=True)
class Report:
    """All outcomes."""

    of: dict[str, Tally] = field(default_factory=dict)
    all: Tally = field(default_factory=Tally)
    failed: list[Row] = field(default_factory=list)

    def add(self, outcome: Row) -> None:
        """Count a point."""
        self.of.setdefault(outcome["scenario"], Tally()).add(outcome)
        self.all.add(outcome)
        if complaints(outcome):
            self.failed.append(outcome)

    def table(self) -> list[str]:
        """The counts as rows."""
        cells = [["scenario", *_HEADS.values()]]
        for name, tally in [*self.of.items(), ("all", self.all)]:
            cells.append([name, *(f"{getattr(tally, f.name):,}" for f in fields(Tally))])
        widths = [max(len(row[n]) for row in cells) for n in range(len(cells[0]))]
        return ["  ".join(_padded(row, widths)) for row in cells]


def _padded(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]


def complaints(outcome: Row) -> Sequence[str]:
    """What is wrong with a point, each complaint with what it is about."""
    return [f"{name}: {text}" for name in _LISTS for text in outcome[name]]


def told(outcome: Row) -> str:
    """A point that failed: what is wrong, and how to play it again."""
    again = f"python -m tests.crash --point '{outcome['point']}'" if outcome["point"] else "(nobody was killed)"
    return "\n".join([outcome["scenario"], *(f"  {each}" for each in complaints(outcome)), f"  again: {again}"])
