"""One connection at the side door. The chain never waits for a client.

A client is disconnected if too many bytes wait for it, or if it reads nothing for too long.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import trio

from chain import events
from chain.chain import Answerer
from chain.concurrency.nurseries import background_task
from cli.event_rows import json_row
from cli.input.json_rows import JsonRow, read_row
from cli.input.splitter import JSON_BYTES, Splitter
from cli.outbox import Outbox

MAX_BEHIND = 8 * 1024 * 1024
"""Maximum bytes that may wait for a client, not counting the first waiting row."""
STALL_S = 10.0
"""Seconds after which a client that reads none of its waiting rows is disconnected."""
LINGER_S = 0.2
"""Seconds to wait for a client to close its end after the last row was sent."""
_CHUNK = 65_536


class Connection:
    """The connection of one client. ``on_row`` is called with the connection and each row that the client sends."""

    def __init__(self, stream: trio.SocketStream, on_row: Callable[[Connection, JsonRow], None]) -> None:
        self.answerer: Answerer | None = None
        """The client's offer to answer questions; ``None`` if it has made none."""
        self._stream = stream
        self._on_row = on_row
        self._outbox = Outbox(self._write)
        self._scope = trio.CancelScope()
        self._is_closing = False
        self._leaving = trio.Event()
        """Set to end the connection as soon as the queue is written."""
        self._has_ended = trio.Event()
        """Set when the client has closed its end."""

    async def serve(self) -> None:
        """Read and write rows until the client leaves or is disconnected."""
        try:
            with self._scope, suppress(trio.TooSlowError):
                async with background_task(self._read):
                    async with background_task(self._outbox.run):  # ends before the stream, which may get another row
                        await self._leaving.wait()
                        await self._outbox.wait_empty()
                    with suppress(trio.BrokenResourceError):
                        await self._stream.send_eof()
                    # Closing with unread input would reset the connection, and the client would lose the last rows.
                    with trio.move_on_after(LINGER_S):
                        await self._has_ended.wait()
        finally:
            if self.answerer is not None:
                self.answerer.close()
            # Closes the descriptor alone, without waiting.
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(self._stream)

    def send_event(self, event: events.Event) -> None:
        """Queue the row of an event."""
        self.put(json_row(event).encode())

    def send_error(self, message: str, id: str = "") -> None:
        """Queue the row of an error. ``id`` is the id in the client's row that caused the error, if any."""
        self.put(error_row(message, id).encode())

    def put(self, data: bytes) -> None:
        """Queue encoded rows. Disconnect the client if more than ``MAX_BEHIND`` bytes wait."""
        self._outbox.put(data)
        if self._outbox.excess > MAX_BEHIND:
            self._scope.cancel()

    def close_when_flushed(self) -> None:
        """Ignore further rows of the client, and close the connection when the queue is written."""
        self._is_closing = True
        self._leaving.set()

    async def _read(self) -> None:
        splitter = Splitter(JSON_BYTES)
        with suppress(trio.BrokenResourceError):
            while chunk := await self._stream.receive_some(_CHUNK):
                for raw in splitter.add(bytes(chunk)):
                    row = read_row(raw, at_door=True)
                    if row is not None and not self._is_closing:
                        if raw.notice:
                            self.send_event(events.Notice(message=raw.notice))
                        self._on_row(self, row)
                    # Many rows may come at once, and other tasks have to run.
                    await trio.lowlevel.checkpoint()
        # A last row without its end is ignored: the client left while it sent it.
        self.close_when_flushed()
        self._has_ended.set()

    async def _write(self, rows: bytes) -> None:
        data = memoryview(rows)
        try:
            for start in range(0, len(data), _CHUNK):
                with trio.fail_after(STALL_S):
                    await self._stream.send_all(data[start : start + _CHUNK])
        except trio.BrokenResourceError:  # it has left; its earlier rows are still read
            self._outbox.close()
            self._leaving.set()


def error_row(message: str, id: str = "") -> str:
    """Return the row of an error. ``id`` is the id in the client's row that caused the error, if any."""
    return json_row(events.Error(message=message, kind="door"), id=id)
