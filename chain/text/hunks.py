"""What changes in a file: its hunks as data, and the text form that people read. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

RowKind: TypeAlias = Literal["plain", "place", "removed", "added"]
"""What a row of the text form is: a line on both sides or a remark, where a hunk stands, a line of one side."""

_KINDS: dict[str, RowKind] = {" ": "plain", "-": "removed", "+": "added"}
_NO_END = "\\ No newline at end of file"


@dataclass(frozen=True, slots=True)
class Hunk:
    """Where lines change, with those around them. ``old`` and ``new`` are the numbers, from 1, of its first lines.

    Of a side without lines it is the number of the line before. Each of the ``rows`` is a sign and a line; the sign is
    ``-`` or ``+`` for a line of one side, and a space for a line of both. ``unended`` has the signs of the sides whose
    last line ends with the file, without a line feed.
    """

    old: int
    new: int
    rows: tuple[str, ...]
    unended: str = ""

    def side(self, sign: Literal["-", "+"]) -> str:
        """Its text before or after the change."""
        text = "".join(f"{self.rows[n][1:]}\n" for n in self._rows_of(sign))
        return text[:-1] if sign in self.unended else text

    def shown(self) -> Iterator[tuple[RowKind, str]]:
        """The rows of its text form."""
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
    """What changes in a file. Its text form is a unified difference below a head such as ``notes.md +3 −1``."""

    path: str
    hunks: tuple[Hunk, ...] = ()

    @property
    def counts(self) -> str:
        """How many lines are added and removed."""
        added, removed = (sum(row[:1] == sign for hunk in self.hunks for row in hunk.rows) for sign in "+-")
        return f"+{added} −{removed}"

    @property
    def head(self) -> str:
        """The path, and how many lines are added and removed."""
        return f"{self.path} {self.counts}"

    def shown(self) -> Iterator[tuple[RowKind, str]]:
        """The rows of the text form."""
        yield "plain", self.head
        for hunk in self.hunks:
            yield from hunk.shown()

    @property
    def text(self) -> str:
        """The text form."""
        return "\n".join(row for _, row in self.shown())
