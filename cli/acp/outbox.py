"""Rows on their way to the other side, which may be slow to read, or may have stopped."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable

from chain.signal import Signal

ROOM = 64
"""Rows that may wait before whoever tells what happens has to wait, too; its feed joins running text meanwhile."""


class Outbox:
    """A queue of whole rows. ``send`` waits for room; ``put`` does not, for what is bounded otherwise."""

    def __init__(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        self._write = write
        self._rows: deque[bytes] = deque()
        self._news = Signal()
        self._progress = Signal()
        self._is_closed = self._is_writing = False

    def __len__(self) -> int:
        return len(self._rows)

    def put(self, row: bytes) -> None:
        """Add a row."""
        if self._is_closed:
            return
        self._rows.append(row)
        self._news.set()

    async def send(self, row: bytes) -> None:
        """Add a row, once there is room for it."""
        await self.wait_for_room()
        self.put(row)

    async def wait_for_room(self, most: int = ROOM) -> None:
        """Wait until fewer than so many rows wait."""
        while len(self._rows) >= most:
            await self._progress.wait()

    async def wait_empty(self) -> None:
        """Wait until all that was added is written."""
        while (self._rows or self._is_writing) and not self._is_closed:
            await self._progress.wait()

    def close(self) -> None:
        """Drop all rows, also those that come: nobody will read them."""
        self._is_closed = True
        self._rows.clear()
        self._progress.set()

    async def run(self) -> None:
        """Write what comes, until cancelled. Raises the ``OSError`` of the writing."""
        while True:
            await self._news.wait()
            while self._rows:
                # One write for all that wait: each costs a call in a thread.
                rows = b"".join(self._rows)
                self._rows.clear()
                self._is_writing = True
                self._progress.set()
                await self._write(rows)
            self._is_writing = False
            self._progress.set()
