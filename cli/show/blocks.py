"""Splits streaming Markdown into blocks, line by line. Pure.

A part of the text is parsed once, when it is complete. It may end late, with several blocks in it, but never where the
parser would continue a block. Exceptions are rare: text in a list that is indented less than its item, and HTML with
blank lines, headings, lists or code in it.
"""

from __future__ import annotations

import re

MAX_UNFINISHED = 12_000
"""Characters of a block other than code; longer ones are cut. Hostile text takes up to 10 us a character to parse."""

_ITEM = re.compile(r"(?:[-+*]|\d{1,9}[.)])[ \t]+\S")
_FIRST_ITEM = re.compile(r"(?:[-+*]|1[.)])[ \t]+\S")
"""The start of a list, which may interrupt a paragraph."""
_HOLDS_BLANK_LINES = re.compile(r" {4}| {0,3}\t| {0,3}(?:[-+*]|\d{1,9}[.)])[ \t\n]")
"""The start of a line of a list or of an indented code block."""
INDENTED = re.compile(r" {4}| {0,3}\t")
"""The start of each line of an indented code block."""
_HEADING = re.compile(r"#{1,6}[ \t\n]")
_FENCE = re.compile(r"( {0,3})(?:(`{3,}+)(?!.*`)|(~{3,}))")


def is_blank(line: str) -> bool:
    """Return whether the line is blank in Markdown, which treats other kinds of space as text."""
    return not line.strip(" \t\n")


class Blocks:
    """A splitter of one streaming text. The returned parts and the unfinished one make up the text.

    A part is one or more blocks: paragraphs, headings, tables, code blocks, quotes, HTML blocks and rules of the top
    level, and items of a list of the top level; or a blank line between them.
    """

    def __init__(self) -> None:
        self._lines: list[str] = []
        """The complete lines of the unfinished part. The first is not blank."""
        self._size = 0
        """The characters in them."""
        self._partial = ""
        """The unfinished line."""
        self._end: re.Pattern[str] | None = None
        """The pattern of the line that ends the unfinished part, if it is a fenced code block."""
        self._holds_blank_lines = False

    @property
    def is_fenced(self) -> bool:
        """Whether the unfinished block is a fenced code block."""
        return self._end is not None

    def last(self, count: int) -> str:
        """Return the end of the unfinished part: between ``count`` and twice as many characters, or all.

        Its start is the same until ``count`` characters are added.
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
        """Return whether the line ends a list or indented code: it follows a blank line, and is not indented."""
        return self._end is None and bool(self._lines) and is_blank(self._lines[-1]) and line[0] not in " \t\n"

    def _is_followed_by(self, line: str) -> bool:
        """Return whether the line begins the next block, although it does not follow a blank one."""
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
        """Return whether no further line can belong to the unfinished block."""
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
