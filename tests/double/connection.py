"""One HTTP/1.1 connection: h11 for the protocol, a trio stream for the bytes. It decides nothing."""

from __future__ import annotations

import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn, TypeAlias

import h11
import trio

from .steps import Gate

MAX_BODY = 32 * 1024 * 1024
"""The longest request that the service takes: https://docs.anthropic.com/en/api/errors."""

_CHUNK = 1 << 16


class Gone(Exception):
    """The client closed the connection before the response was complete."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it came; ``body`` is ``None`` when it was longer than allowed."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes | None


Answer: TypeAlias = Callable[[Asked], Callable[["Connection"], Awaitable[bool]]]
"""From a request to what answers it, which returns whether the connection can go on."""


@dataclass(slots=True, eq=False)
class Connection:
    """A connection, as whoever answers writes to it."""

    stream: trio.SocketStream
    _http: h11.Connection = field(default_factory=lambda: h11.Connection(h11.SERVER))

    async def serve(self, answer: Answer) -> None:
        """Answer requests until one side closes."""
        async with self.stream:
            with suppress(Gone, trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError):
                while (asked := await self._ask()) is not None:
                    if not await answer(asked)(self) or self._http.our_state is not h11.DONE:
                        return
                    self._http.start_next_cycle()

    async def _ask(self) -> Asked | None:
        request: h11.Request | None = None
        parts: list[bytes] = []
        size = 0
        while True:
            match self._http.next_event():
                case h11.NEED_DATA:
                    self._http.receive_data(await self.stream.receive_some(_CHUNK))
                case h11.Request() as head:
                    request = head
                case h11.Data(data=data):
                    size += len(data)
                    if size <= MAX_BODY:  # what is too long is read to its end all the same, then refused
                        parts.append(bytes(data))
                case h11.EndOfMessage():
                    assert request is not None
                    headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in request.headers}
                    body = b"".join(parts) if size <= MAX_BODY else None
                    return Asked(request.method.decode(), request.target.decode(), headers, body)
                case _:
                    return None

    async def head(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the status line and headers; without a length among them the body goes in chunks."""
        await self._send(h11.Response(status_code=status, headers=[*headers.items()]))

    async def data(self, data: bytes) -> None:
        """Send part of the body."""
        await self._send(h11.Data(data=data))

    async def end(self) -> None:
        """End the response in order."""
        await self._send(h11.EndOfMessage())

    async def _send(self, event: h11.Event) -> None:
        if data := self._http.send(event):
            await self.stream.send_all(data)

    def reset(self) -> None:
        """Reset the connection: closing with a linger time of zero sends RST."""
        self.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.stream.socket.close()

    async def pause(self, seconds: float) -> None:
        """Let time pass, and notice if the client goes away meanwhile."""
        with trio.move_on_after(seconds):
            await self.hang()

    async def hang(self) -> NoReturn:
        """Wait for the client to go away."""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await self.stream.receive_some(_CHUNK):
                self._http.receive_data(data)  # the next request, early
        raise Gone

    async def hold(self, gate: Gate) -> None:
        """Wait at the gate, and notice if the client goes away meanwhile."""
        gate.reached.set()

        async def wait() -> None:
            await gate.open.wait()
            watching.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            with trio.CancelScope() as watching, suppress(Gone):
                await self.hang()
            nursery.cancel_scope.cancel()
        if not watching.cancelled_caught:
            raise Gone
