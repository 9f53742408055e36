"""What changes in a file: its hunks as data, and the one text form that they are shown and kept in. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

RowKind: TypeAlias = Literal["plain", "place", "removed", "added"]
"""What a row of the text form is: a line on both sides or a remark, where a hunk stands, a line of one side."""

_KINDS: dict[str, RowKind] = {" ": "plain", "-": "removed", "+": "added"}
_NO_END = "\\ No newline at end of file"
_HEAD = re.compile(r"(.*) \+(\d+) −(\d+)", re.ASCII)
_PLACE = re.compile(r"@@ -(\d{1,9})(?:,\d+)? \+(\d{1,9})(?:,\d+)? @@", re.ASCII)


class HunkRow(NamedTuple):
    """A line of the old side (``-``), of the new one (``+``) or of both; ``ends`` with a line feed or with the file."""

    sign: Literal[" ", "-", "+"]
    text: str
    ends: bool = True


@dataclass(frozen=True, slots=True)
class Hunk:
    """Where lines change, with those around them. ``old`` and ``new`` are the numbers, from 1, of its first lines.

    Of a side without lines it is the number of the line before.
    """

    old: int
    new: int
    rows: tuple[HunkRow, ...]

    def side(self, sign: Literal["-", "+"]) -> str:
        """Its text before or after the change."""
        return "".join(f"{row.text}\n" if row.ends else row.text for row in self.rows if row.sign in (" ", sign))

    def shown(self) -> Iterator[tuple[RowKind, str]]:
        """The rows of its text form."""
        counts = (sum(row.sign in (" ", side) for row in self.rows) for side in "-+")
        old, new = (str(at) if n == 1 else f"{at},{n}" for at, n in zip((self.old, self.new), counts, strict=True))
        yield "place", f"@@ -{old} +{new} @@"
        for row in self.rows:
            yield _KINDS[row.sign], row.sign + row.text
            if not row.ends:
                yield "plain", _NO_END


@dataclass(frozen=True, slots=True)
class FileDiff:
    """What changes in a file. Its text form is a unified difference below a head such as ``notes.md +3 −1``."""

    path: str
    hunks: tuple[Hunk, ...] = ()

    @property
    def head(self) -> str:
        """The path, and how many lines are added and removed."""
        added, removed = (sum(row.sign == sign for hunk in self.hunks for row in hunk.rows) for sign in "+-")
        return f"{self.path} +{added} −{removed}"

    def shown(self) -> Iterator[tuple[RowKind, str]]:
        """The rows of the text form."""
        yield "plain", self.head
        for hunk in self.hunks:
            yield from hunk.shown()

    @property
    def text(self) -> str:
        """The text form."""
        return "\n".join(row for _, row in self.shown())


def read_diff(text: str) -> FileDiff | None:
    """What a text form shows; ``None`` for a text that is not exactly one."""
    first, *rows = text.split("\n")
    head = _HEAD.fullmatch(first)
    if head is None:
        return None
    found: list[tuple[int, int, list[HunkRow]]] = []
    for row in rows:
        if place := _PLACE.fullmatch(row):
            found.append((int(place[1]), int(place[2]), []))
            continue
        lines = found[-1][2] if found else []
        if row == _NO_END and lines:
            lines[-1] = lines[-1]._replace(ends=False)
        elif row[:1] in _KINDS:
            lines.append(HunkRow(row[:1], row[1:]))  # type: ignore[arg-type]
        else:
            return None
    diff = FileDiff(head[1], tuple(Hunk(old, new, tuple(lines)) for old, new, lines in found))
    return diff if diff.text == text else None
