"""One connection at the side door: its rows in, and what it is told out.

What it is told waits in a queue of its own, so that nobody waits for who does not read. One that is too far behind, or
reads nothing for too long, is cut off.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress

import trio

from chain import events
from chain.chain import Answerer
from chain.concurrency.signal import Signal
from chain.concurrency.tasks import during
from cli.event_rows import json_row
from cli.input.json_rows import JsonRow, read_row
from cli.input.splitter import JSON_BYTES, Splitter

MAX_BEHIND = 8 * 1024 * 1024
"""Bytes that may wait behind what waits first: a single row may be as long as it is."""
STALL_S = 10.0
"""How long a client may read nothing while something waits for it."""
LINGER_S = 0.2
"""How long a client may take to close its end when it was told the last."""
_CHUNK = 65_536


class Connection:
    """A client. ``do`` is called with each of its rows."""

    def __init__(self, stream: trio.SocketStream, do: Callable[[Connection, JsonRow], None]) -> None:
        self.answerer: Answerer | None = None
        """What promises its answers, if it said that it gives them."""
        self._stream = stream
        self._do = do
        self._behind: deque[bytes] = deque()
        self._size = 0
        self._news = Signal()
        self._scope = trio.CancelScope()
        self._is_closing = False
        self._has_ended = trio.Event()
        """Set when the client has closed its end."""

    async def serve(self) -> None:
        """Read its rows and write its queue, until it is gone or does not read."""
        try:
            with self._scope:
                async with during(self._read):
                    with suppress(trio.TooSlowError):
                        with suppress(trio.BrokenResourceError):  # it is gone
                            await self._write()
                            await self._stream.send_eof()
                        # What it has sent and nobody has read would be lost, and make its end fail before it has read
                        # the rest.
                        with trio.move_on_after(LINGER_S):
                            await self._has_ended.wait()
        finally:
            if self.answerer is not None:
                self.answerer.close()
            # Closes the descriptor alone, which waits for nobody.
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(self._stream)

    def tell(self, event: events.Event) -> None:
        """Queue an event."""
        self.put(json_row(event).encode())

    def tell_error(self, why: str, id: str = "") -> None:
        """Queue an error."""
        self.put(error_row(why, id).encode())

    def put(self, data: bytes) -> None:
        """Queue whole rows; a client that is too far behind is cut off."""
        self._behind.append(data)
        self._size += len(data)
        self._news.set()
        if self._size - len(self._behind[0]) > MAX_BEHIND:
            self._scope.cancel()

    def close_when_told(self) -> None:
        """Close when the queue is written, and ignore what it still asks for."""
        self._is_closing = True
        self._news.set()

    async def _read(self) -> None:
        splitter = Splitter(JSON_BYTES)
        with suppress(trio.BrokenResourceError):
            while chunk := await self._stream.receive_some(_CHUNK):
                for raw in splitter.add(bytes(chunk)):
                    row = read_row(raw, at_door=True)
                    if row is not None and not self._is_closing:
                        if raw.notice:
                            self.tell(events.Notice(message=raw.notice))
                        self._do(self, row)
                    # Many rows may come at once, and others want their turn.
                    await trio.lowlevel.checkpoint()
        # A row without its end was not sent: who leaves in the middle of it takes it along.
        self.close_when_told()
        self._has_ended.set()

    async def _write(self) -> None:
        while True:
            while self._behind:
                data = memoryview(b"".join(self._behind))
                self._behind.clear()
                self._size = 0
                for start in range(0, len(data), _CHUNK):
                    with trio.fail_after(STALL_S):
                        await self._stream.send_all(data[start : start + _CHUNK])
            if self._is_closing:
                return
            await self._news.wait()


def error_row(why: str, id: str = "") -> str:
    """The row of an error."""
    return json_row(events.Error(message=why, kind="door"), id=id)
