"""Turns the output of a command into the text of a result, and into short reports for people. Pure."""

from __future__ import annotations

import codecs
from collections import deque

from chain.tools.processes.screen import Screen

MAX_STORED = 1_000_000
"""The most characters stored of an output's start, and of its end: far more than a result may have."""

MAX_REPORT = 4_000
"""The most characters of one report to people: several screens."""


class Tail:
    """The last ``limit`` characters of a text that arrives in pieces."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pieces: deque[str] = deque()
        self._stored = 0
        self._size = 0

    def add(self, text: str) -> None:
        """Append a piece. Drop the oldest pieces that ``text`` no longer needs."""
        if not text:
            return
        self._pieces.append(text)
        self._stored += len(text)
        self._size += len(text)
        while self._stored - len(self._pieces[0]) >= self._limit:
            self._stored -= len(self._pieces.popleft())

    def text(self) -> str:
        """Return the last characters."""
        return "".join(self._pieces)[-self._limit :]

    @property
    def left_out(self) -> int:
        """The number of characters that were added but that ``text`` does not return."""
        return max(0, self._size - self._limit)


class Output:
    """The start and the end of the output of a command, as a terminal shows it when the command has ended."""

    def __init__(self, max_stored: int = MAX_STORED, max_report: int = MAX_REPORT) -> None:
        self._screen = Screen()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._head: list[str] = []
        self._room = max_stored
        self._tail = Tail(max_stored)
        self._max_report = max_report
        self._unseen = Tail(max_report)
        self._has_begun_row = False
        """Whether the last call of ``take_unseen`` left a row without a line end."""
        self._size = 0

    def add(self, chunk: bytes, *, is_last: bool = False) -> None:
        """Append a chunk, which may end in the middle of a character. ``is_last`` marks the last chunk."""
        text = self._decoder.decode(chunk, final=is_last)
        self._unseen.add(text)
        text = self._screen.add(text) + (self._screen.end() if is_last else "")
        self._size += len(text)
        if self._room and text:
            self._head.append(text[: self._room])
            text = text[self._room :]
            self._room -= len(self._head[-1])
        self._tail.add(text)

    def end(self) -> None:
        """Mark the end of the output. An incomplete last character is replaced by U+FFFD."""
        self.add(b"", is_last=True)

    def text(self) -> str:
        """Return the output. In a long output, a row that counts the characters left out replaces the middle."""
        head, left_out = "".join(self._head), self._tail.left_out
        gap = f"\n[{left_out:,} of {self._size:,} characters left out]\n" if left_out else ""
        return f"{head}{gap}{self._tail.text()}"

    @property
    def note(self) -> str:
        """A sentence that says how many characters were not stored; empty if all were stored.

        ``text`` contains such a row too, but a truncated result may lose the row.
        """
        left_out = self._tail.left_out
        return f"The output had {self._size:,} characters; {left_out:,} of them were not stored." if left_out else ""

    @property
    def has_unseen(self) -> bool:
        """Whether there is output that ``take_unseen`` has not returned."""
        return bool(self._unseen.text())

    def take_unseen(self) -> str:
        """Return the output since the last call, up to its last line end.

        A long output is shortened to its end, below a row that says how many characters are not shown. Text after the
        last line end is kept for the next call, because many programs write a row in pieces. The next call returns it,
        with or without a line end.
        """
        text, left_out = self._unseen.text(), self._unseen.left_out
        cut = text.rfind("\n") + 1
        if not cut and (self._has_begun_row or left_out):
            cut = len(text)
        self._has_begun_row = cut < len(text)
        if not cut:
            return ""
        self._unseen = Tail(self._max_report)
        self._unseen.add(text[cut:])
        return f"[{left_out:,} characters not shown]\n{text[:cut]}" if left_out else text[:cut]
