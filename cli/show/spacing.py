"""Blank rows between the parts of what a terminal shows: query, thinking, work and answer. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import dropwhile
from typing import TypeAlias

Part: TypeAlias = tuple[str, Sequence[str]]
"""What some rows are, and the rows. A blank row stands between parts of different kinds."""

START, QUERY, THINKING, WORK, ANSWER, END = "start", "query", "thinking", "work", "answer", "end"
COMMAND, BESIDE = "command", "beside"


class Spacing:
    """Puts one blank row between parts of different kinds: never two, and none at the top."""

    def __init__(self) -> None:
        self._last: str | None = None
        self._ends_blank = True

    def rows(self, parts: Iterable[Part]) -> list[str]:
        """Return the rows of parts, with the blank ones between them."""
        found: list[str] = []
        for kind, rows in parts:
            if not rows:
                continue
            if self.is_apart(kind):
                found.append("")
            found += rows if kind == self._last else dropwhile(lambda row: not row, rows)
            self._last, self._ends_blank = kind, not rows[-1]
        return found

    def preview(self, parts: Iterable[Part]) -> str:
        """Return the rows of parts that are not settled, with a blank one wherever one will stand when they are."""
        found: list[str] = []
        for kind, rows in parts:
            if rows and rows[0] and (found or self.is_apart(kind)):
                found.append("")
            found += rows
        return "\n".join(found)

    def is_apart(self, kind: str) -> bool:
        """Return whether a blank row would stand before rows of this kind."""
        return kind != self._last and not self._ends_blank

    def join(self, kind: str, to: str) -> None:
        """Let no blank row stand between the last part, if it is of this kind, and one of the kind that follows."""
        if self._last == kind:
            self._last = to

    def set_apart(self, kind: str) -> None:
        """Let a blank row stand also between the last part, if it is of this kind, and another of its kind."""
        if self._last == kind:
            self._last = ""
