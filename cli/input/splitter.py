"""Splits bytes into lines of bounded length. Pure."""

from __future__ import annotations

import codecs
from dataclasses import dataclass

from chain.lines.parse import MAX_LINE

TEXT_BYTES = 4 * (MAX_LINE + 2)
"""Maximum bytes of a line of text, at four bytes a character. Two characters above ``MAX_LINE`` leave room for a byte
order mark, a carriage return, and a character that shows that the line is too long."""
JSON_BYTES = 12 * MAX_LINE + 4_096
"""Maximum bytes of a JSON object with a line. A character may be written as two escapes of six bytes."""


@dataclass(frozen=True, slots=True)
class RawLine:
    """A line of the input. ``number`` counts from 1."""

    text: str
    number: int
    has_invalid_bytes: bool = False
    """Whether the line had bytes that were not UTF-8; they were replaced."""
    is_cut: bool = False
    """Whether the line was too long, so that ``text`` is only its start."""

    @property
    def notice(self) -> str:
        """A message that bytes of the line were replaced; empty if none were replaced."""
        return (
            f"line {self.number} of the input is not UTF-8; its invalid bytes were replaced"
            if self.has_invalid_bytes
            else ""
        )


class Splitter:
    """An incremental splitter of bytes into lines. Lines are cut after ``max_bytes`` bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rest = bytearray()
        self._is_cut = False
        self._number = 0

    def add(self, chunk: bytes) -> list[RawLine]:
        """Add the next bytes of the input. Return the lines that are now complete."""
        *ended, rest = chunk.split(b"\n")
        lines = []
        for piece in ended:
            self._append(piece)
            lines.append(self._end_line())
        self._append(rest)
        return lines

    def end(self) -> list[RawLine]:
        """End the input. Return the last line if it has no line end."""
        return [self._end_line()] if self._rest else []

    def _append(self, piece: bytes) -> None:
        room = self._max_bytes - len(self._rest)
        self._rest += piece[:room]
        self._is_cut = self._is_cut or len(piece) > room

    def _end_line(self) -> RawLine:
        self._number += 1
        raw, is_cut = bytes(self._rest), self._is_cut
        self._rest.clear()
        self._is_cut = False
        if not is_cut:
            raw = raw.removesuffix(b"\r")
        text, has_invalid_bytes = utf8_text(raw, at_start=self._number == 1, is_cut=is_cut)
        return RawLine(text, self._number, has_invalid_bytes, is_cut)


def utf8_text(raw: bytes, *, at_start: bool = True, is_cut: bool = False) -> tuple[str, bool]:
    """Decode UTF-8. Return the text, and whether invalid bytes were replaced.

    Remove a byte order mark if ``at_start``, and an incomplete last character if ``is_cut``.
    """
    if at_start:
        raw = raw.removeprefix(codecs.BOM_UTF8)
    decoder = codecs.getincrementaldecoder("utf-8")
    # A character that is split by the cut is not invalid input.
    try:
        return decoder("strict").decode(raw, final=not is_cut), False
    except UnicodeDecodeError:
        return decoder("replace").decode(raw, final=not is_cut), True
