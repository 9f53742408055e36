"""Splits streaming Markdown into parts, line by line. Pure.

The caller parses each part when it is complete. A part may contain several blocks. It ends only where a block ends.
There are rare exceptions: text in a list that is indented less than its item, and HTML that contains blank lines,
headings, lists or code.
"""

from __future__ import annotations

import re

MAX_UNFINISHED = 12_000
"""The maximum length of a block other than code, in characters. Hostile text takes up to 10 us per character."""

_ITEM = re.compile(r"(?:[-+*]|\d{1,9}[.)])[ \t]+\S")
_FIRST_ITEM = re.compile(r"(?:[-+*]|1[.)])[ \t]+\S")
"""The start of a list that may interrupt a paragraph: a bullet or the number 1."""
_HOLDS_BLANK_LINES = re.compile(r" {4}| {0,3}\t| {0,3}(?:[-+*]|\d{1,9}[.)])[ \t\n]")
"""The start of a list item, or of a line of indented code. Both blocks may contain blank lines."""
INDENTED = re.compile(r" {4}| {0,3}\t")
"""The indentation of a line of an indented code block."""
_HEADING = re.compile(r"#{1,6}[ \t\n]")
_FENCE = re.compile(r"( {0,3})(?:(`{3,}+)(?!.*`)|(~{3,}))")


def is_blank(line: str) -> bool:
    """Return whether a line is blank in Markdown: only spaces and tabs. Other kinds of white space count as text."""
    return not line.strip(" \t\n")


class Blocks:
    """A splitter of one streaming text. The returned parts, joined, are the whole text.

    A part is a blank line, or one or more blocks of the top level: paragraphs, headings, tables, code blocks, quotes,
    HTML blocks and rules. Each item of a list of the top level counts as a block.
    """

    def __init__(self) -> None:
        self._lines: list[str] = []
        """The complete lines of the unfinished part. The first is not blank."""
        self._size = 0
        """The number of characters in ``_lines``."""
        self._partial = ""
        """The line that has no line end yet."""
        self._end: re.Pattern[str] | None = None
        """The pattern of the line that ends the unfinished part, if it is a fenced code block."""
        self._holds_blank_lines = False

    @property
    def is_fenced(self) -> bool:
        """Whether the unfinished block is a fenced code block."""
        return self._end is not None

    def last(self, count: int) -> str:
        """Return the end of the unfinished part: ``count`` to ``2 * count`` characters, or all of a shorter part.

        The start of the returned text moves only after every ``count`` added characters.
        """
        start = max((self._size + len(self._partial)) // count - 1, 0) * count
        begin, parts = self._size, [self._partial]
        for line in reversed(self._lines):
            if begin <= start:
                break
            begin -= len(line)
            parts.append(line)
        return "".join(reversed(parts))[start - begin :]

    @property
    def is_open(self) -> bool:
        """Whether a block has begun and is not finished."""
        return bool(self._lines) or not is_blank(self._partial)

    def add(self, piece: str) -> list[str]:
        """Append a piece, and return the parts that it completes."""
        *whole, self._partial = (self._partial + piece).split("\n")
        parts = [part for line in whole for part in self._add_line(f"{line}\n")]
        return [*parts, self._cut()] if self._partial and self._is_left_by(self._partial) else parts

    def end(self) -> str:
        """End the text, and return the unfinished part."""
        partial, self._partial = self._partial, ""
        return self._cut() + partial

    def _add_line(self, line: str) -> list[str]:
        parts = [self._cut()] if self._is_left_by(line) or self._is_followed_by(line) else []
        if not self._lines and (fence := _FENCE.match(line)) is not None:
            mark = fence[2] or fence[3]
            self._end = re.compile(rf" {{0,3}}{mark[0]}{{{len(mark)},}}[ \t]*\n")
        self._holds_blank_lines = self._holds_blank_lines or _HOLDS_BLANK_LINES.match(line) is not None
        self._lines.append(line)
        self._size += len(line)
        return [*parts, self._cut()] if self._is_ended_by(line) else parts

    def _is_left_by(self, line: str) -> bool:
        """Return whether this line ends a list or indented code: the line follows a blank line and is not indented."""
        return self._end is None and bool(self._lines) and is_blank(self._lines[-1]) and line[0] not in " \t\n"

    def _is_followed_by(self, line: str) -> bool:
        """Return whether this line begins a new block although no blank line precedes the line."""
        if not self._lines or self._end is not None:
            return False
        if INDENTED.match(self._lines[0]) is not None and not is_blank(line) and INDENTED.match(line) is None:
            return True
        opening = _FENCE.match(line)
        if opening is not None and (not opening[1] or not self._holds_blank_lines):
            return True
        is_next = _ITEM.match(self._lines[0]) is not None and _ITEM.match(line) is not None
        return is_next or _FIRST_ITEM.match(line) is not None

    def _is_ended_by(self, line: str) -> bool:
        """Return whether the unfinished block ends with this line, which is already the last line of the block."""
        if self._end is not None:
            return self._end.match(line) is not None and len(self._lines) > 1
        is_heading = _HEADING.match(line) is not None
        is_too_long = self._size > MAX_UNFINISHED and INDENTED.match(self._lines[0]) is None
        return is_heading or is_too_long or (is_blank(line) and not self._holds_blank_lines)

    def _cut(self) -> str:
        part = "".join(self._lines)
        self._lines.clear()
        self._size, self._end = 0, None
        self._holds_blank_lines = False
        return part
