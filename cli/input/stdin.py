"""Lines from a pipe, as they come."""

from __future__ import annotations

import os
import select
from functools import partial

from chain.threads import Threads
from cli.input.splitter import TEXT_BYTES, RawLine, Splitter

_THREADS = Threads("input")

_CHUNK = 65_536


class Lines:
    """The lines of a descriptor after those ``begun``, read in a thread; of a longer one the first ``most`` bytes."""

    def __init__(self, fd: int, most: int = TEXT_BYTES, *, begun: bytes = b"") -> None:
        self._fd = fd
        self._splitter = Splitter(most)
        self._splitter.add(begun)
        self._at_end = False

    async def next(self) -> RawLine | None:
        """The next line; ``None`` at the end of the input. A last line without an end counts."""
        while not self._splitter.has_line and not self._at_end:
            chunk = await _THREADS.run(partial(_read, self._fd), abandon_on_cancel=True)
            if chunk:
                self._splitter.add(chunk)
            else:
                self._at_end = True
                self._splitter.end()
        return self._splitter.next() if self._splitter.has_line else None

    def unread(self) -> list[RawLine]:
        """The lines that were read and not returned yet, without the blank ones."""
        left = []
        while self._splitter.has_line:
            left.append(self._splitter.next())
        return [line for line in left if line.text.strip()]


def read_chunk(fd: int) -> bytes:
    """The next bytes, however long they take; none at the end of the input. Raises ``OSError``."""
    while True:
        try:
            return os.read(fd, _CHUNK)
        except BlockingIOError:
            select.select([fd], [], [])


def _read(fd: int) -> bytes:
    """The same for lines: an input that is closed or broken has ended."""
    try:
        return read_chunk(fd)
    except OSError:
        return b""
