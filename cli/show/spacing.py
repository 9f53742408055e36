"""Blank rows between the parts of the output: query, thinking, work and answer. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import dropwhile
from typing import TypeAlias

Part: TypeAlias = tuple[str, Sequence[str]]
"""A kind, and rows of this kind. A blank row separates parts of different kinds."""

START, QUERY, THINKING, WORK, ANSWER, END = "start", "query", "thinking", "work", "answer", "end"
COMMAND, BESIDE = "command", "beside"


class Spacing:
    """A tracker of the printed rows, which puts one blank row between parts of different kinds, but none at the top."""

    def __init__(self) -> None:
        self._last: str | None = None
        self._ends_blank = True

    def rows(self, parts: Iterable[Part]) -> list[str]:
        """Record parts as printed, and return their rows with the blank rows between them."""
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
        """Return the rows of unsettled parts, with blank rows between them. Do not record them as printed."""
        found: list[str] = []
        for kind, rows in parts:
            if rows and rows[0] and (found or self.is_apart(kind)):
                found.append("")
            found += rows
        return "\n".join(found)

    def is_apart(self, kind: str) -> bool:
        """Return whether a blank row would precede rows of this kind."""
        return kind != self._last and not self._ends_blank

    def join(self, kind: str, to: str) -> None:
        """If the last part is of the kind ``kind``, let a part of the kind ``to`` follow it without a blank row."""
        if self._last == kind:
            self._last = to

    def set_apart(self, kind: str) -> None:
        """If the last part is of this kind, put a blank row before the next part, whatever its kind."""
        if self._last == kind:
            self._last = ""
