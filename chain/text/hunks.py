"""The diff of a file: hunks as data, and their text form. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

RowKind: TypeAlias = Literal["plain", "place", "removed", "added"]
"""The kind of a row in the text form of a diff.

``plain``: a context line or a note. ``place``: the head of a hunk. ``removed`` and ``added``: a changed line.
"""

_KINDS: dict[str, RowKind] = {" ": "plain", "-": "removed", "+": "added"}
_NO_END = "\\ No newline at end of file"


@dataclass(frozen=True, slots=True)
class Hunk:
    """Changed lines and their context.

    ``old`` and ``new`` are the numbers, from 1, of the hunk's first line in the old and in the new file. If the hunk
    has no lines of one file, the number for this file is that of the line before the hunk. Each of the ``rows`` is a
    sign and a line: ``-`` for a line of the old file, ``+`` for a line of the new file, a space for a line of both.
    ``unended`` contains the sign of each file whose last line is in the hunk and has no line feed.
    """

    old: int
    new: int
    rows: tuple[str, ...]
    unended: str = ""

    def side(self, sign: Literal["-", "+"]) -> str:
        """Return the hunk's text in one file: ``-`` for the old file, ``+`` for the new one."""
        text = "".join(f"{self.rows[n][1:]}\n" for n in self._rows_of(sign))
        return text[:-1] if sign in self.unended else text

    def rows_with_kinds(self) -> Iterator[tuple[RowKind, str]]:
        """Yield the rows of the text form, each with its kind."""
        counts = (len(self._rows_of(sign)) for sign in "-+")
        old, new = (str(at) if n == 1 else f"{at},{n}" for at, n in zip((self.old, self.new), counts, strict=True))
        yield "place", f"@@ -{old} +{new} @@"
        last = {n for sign in self.unended for n in self._rows_of(sign)[-1:]}
        for n, row in enumerate(self.rows):
            yield _KINDS.get(row[:1], "plain"), row
            if n in last:
                yield "plain", _NO_END

    def _rows_of(self, sign: str) -> list[int]:
        return [n for n, row in enumerate(self.rows) if row[:1] in (" ", sign)]


@dataclass(frozen=True, slots=True)
class FileDiff:
    """The diff of a file. Its text form is a unified diff below a head such as ``notes.md +3 −1``."""

    path: str
    hunks: tuple[Hunk, ...] = ()

    @property
    def counts(self) -> str:
        """The numbers of added and removed lines, such as ``+3 −1``."""
        added, removed = (sum(row[:1] == sign for hunk in self.hunks for row in hunk.rows) for sign in "+-")
        return f"+{added} −{removed}"

    @property
    def head(self) -> str:
        """The path and the numbers of added and removed lines, such as ``notes.md +3 −1``."""
        return f"{self.path} {self.counts}"

    def rows_with_kinds(self) -> Iterator[tuple[RowKind, str]]:
        """Yield the rows of the text form, each with its kind."""
        yield "plain", self.head
        for hunk in self.hunks:
            yield from hunk.rows_with_kinds()

    @property
    def text(self) -> str:
        """The text form of the diff."""
        return "\n".join(row for _, row in self.rows_with_kinds())
