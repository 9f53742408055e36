"""Lines from a pipe: bytes to text, with bounds."""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass

import trio

from chain.lines import MAX_LINE

_CHUNK = 65_536
_MAX_BYTES = 4 * MAX_LINE
"""More bytes than this are more characters than a line may have, whatever they are: the rest need not be kept."""


@dataclass(frozen=True, slots=True)
class RawLine:
    """A line as it came. ``replaced``: some bytes were not UTF-8. ``cut``: it was longer than anyone may send."""

    text: str
    number: int
    replaced: bool = False
    cut: bool = False


class Lines:
    """The lines of a file descriptor, without their ends, read in a thread as they come."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._whole: deque[bytes] = deque()
        self._rest = bytearray()
        self._number = 0
        self._at_end = False

    async def next(self) -> RawLine | None:
        """The next line; ``None`` at the end of the input. A last line without an end counts."""
        while not self._whole and not self._at_end:
            try:
                chunk = await trio.to_thread.run_sync(os.read, self._fd, _CHUNK, abandon_on_cancel=True)
            except OSError:
                chunk = b""  # a closed or broken input has no more lines
            self._take(chunk)
        if not self._whole:
            return None
        self._number += 1
        return _decoded(self._whole.popleft(), self._number)

    def _take(self, chunk: bytes) -> None:
        if not chunk:
            self._at_end = True
            if self._rest:
                self._whole.append(bytes(self._rest))
            return
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            self._keep(piece)
            self._whole.append(bytes(self._rest))
            self._rest.clear()
        self._keep(rest)

    def _keep(self, piece: bytes) -> None:
        self._rest += piece[: max(0, _MAX_BYTES + 1 - len(self._rest))]


def _decoded(raw: bytes, number: int) -> RawLine:
    raw = raw.removesuffix(b"\r")
    if number == 1:
        raw = raw.removeprefix(b"\xef\xbb\xbf")
    cut = len(raw) > _MAX_BYTES
    try:
        return RawLine(raw.decode(), number, cut=cut)
    except UnicodeDecodeError:
        # A line that was cut may end inside a character, which says nothing about the input.
        return RawLine(raw.decode(errors="replace"), number, replaced=not cut, cut=cut)
