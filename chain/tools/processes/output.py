"""What a command writes: decoded, kept as a terminal shows it in the end, and reported in bounded portions. Pure."""

from __future__ import annotations

import codecs
from collections import deque

from chain.tools.processes.screen import Screen

KEPT_OUTPUT = 1_000_000
"""Characters that are kept of the beginning, and of the end: far more than any result has, far less than the memory."""

MAX_REPORT = 4_000
"""Characters of one report to people: several screens, of which nobody reads more while more comes."""


class Tail:
    """The last characters of a text that comes in pieces, and how many there were before them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pieces: deque[str] = deque()
        self._held = 0
        self._size = 0

    def add(self, text: str) -> None:
        """Accept more of the text; what is no longer among the last characters is dropped, a piece at a time."""
        if not text:
            return
        self._pieces.append(text)
        self._held += len(text)
        self._size += len(text)
        while self._held - len(self._pieces[0]) >= self._limit:
            self._held -= len(self._pieces.popleft())

    def text(self) -> str:
        """The last characters."""
        return "".join(self._pieces)[-self._limit :]

    @property
    def left_out(self) -> int:
        """How many characters were before them."""
        return max(0, self._size - self._limit)


class Output:
    """The output of one command: bytes in, the text of the result and what people have not seen yet out."""

    def __init__(self, kept: int = KEPT_OUTPUT, shown: int = MAX_REPORT) -> None:
        self._screen = Screen()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._head: list[str] = []
        self._room = kept
        self._tail = Tail(kept)
        self._shown = shown
        self._unseen = Tail(shown)
        self._is_held = False
        """Whether the row that has begun was there already when people were shown something last."""
        self._size = 0

    def add(self, chunk: bytes, *, is_last: bool = False) -> None:
        """Accept what the command wrote next, of any size, cut anywhere."""
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
        """Say that nothing follows: half a character at the end counts as a broken one."""
        self.add(b"", is_last=True)

    def text(self) -> str:
        """All of it or, of a long one, its beginning and its end, with a row between that counts what is missing."""
        head, left_out = "".join(self._head), self._tail.left_out
        gap = f"\n[{left_out:,} of {self._size:,} characters left out]\n" if left_out else ""
        return f"{head}{gap}{self._tail.text()}"

    @property
    def note(self) -> str:
        """A sentence about what was not kept, for the end of a result whose middle is cut once more; else empty."""
        left_out = self._tail.left_out
        return f"The output had {self._size:,} characters; {left_out:,} of them were not kept." if left_out else ""

    @property
    def has_unseen(self) -> bool:
        """Whether there is something that people have not seen."""
        return bool(self._unseen.text())

    def unseen(self) -> str:
        """What people have not seen: whole rows while there are any. Of a flood it is the end, and says so.

        A row that has begun is shown only when it is looked at again, since many programs write one in pieces.
        """
        text, left_out = self._unseen.text(), self._unseen.left_out
        cut = text.rfind("\n") + 1
        if not cut and (self._is_held or left_out):
            cut = len(text)
        self._is_held = cut < len(text)
        if not cut:
            return ""
        self._unseen = Tail(self._shown)
        self._unseen.add(text[cut:])
        return f"[{left_out:,} characters not shown]\n{text[:cut]}" if left_out else text[:cut]
