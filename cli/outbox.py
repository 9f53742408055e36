"""A queue of rows for a peer that may read slowly or not at all."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable

from chain.concurrency.wakeup import Wakeup

ROOM = 64
"""The number of waiting rows at which ``wait_for_room`` starts to block."""


class Outbox:
    """A queue of whole rows without a limit.

    A sender must limit the queue itself: it waits with ``wait_for_room``, drops rows, or closes the connection.
    """

    def __init__(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        self._write = write
        self._rows: deque[bytes] = deque()
        self._size = 0
        self._changed = Wakeup()
        self._is_closed = self._is_writing = False

    def __len__(self) -> int:
        """Return the number of rows that wait."""
        return len(self._rows)

    @property
    def excess(self) -> int:
        """The number of waiting bytes, not counting the first row, which may have any length."""
        return self._size - len(self._rows[0]) if self._rows else 0

    def put(self, row: bytes) -> None:
        """Append one row, or a piece of several rows that counts as one row."""
        if not self._is_closed:
            self._rows.append(row)
            self._size += len(row)
            self._changed.set()

    async def wait_for_room(self, limit: int = ROOM) -> None:
        """Wait until fewer than ``limit`` rows wait."""
        while len(self._rows) >= limit:
            await self._changed.wait()

    async def wait_empty(self) -> None:
        """Wait until every row is written, or the outbox is closed."""
        while (self._rows or self._is_writing) and not self._is_closed:
            await self._changed.wait()

    def close(self) -> None:
        """Drop the waiting rows, and ignore all rows from now on: the peer is gone."""
        self._is_closed = True
        self._drain()

    async def run(self) -> None:
        """Write rows until cancelled. An exception of the function ``write`` ends this method too."""
        while True:
            while not self._rows:
                await self._changed.wait()
            # One write for all rows: a write may cost a call in a thread.
            self._is_writing = True
            await self._write(self._drain())
            self._is_writing = False
            self._changed.set()

    def _drain(self) -> bytes:
        rows = b"".join(self._rows)
        self._rows.clear()
        self._size = 0
        self._changed.set()
        return rows
