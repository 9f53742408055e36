"""An HTTP/1.1 connection: h11 parses it, and a trio stream transports it."""

from __future__ import annotations

import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn, TypeAlias

import h11
import trio

MAX_BODY = 32 * 1024 * 1024
"""The longest request that the service accepts: https://docs.anthropic.com/en/api/errors."""

_CHUNK = 1 << 16


class Gone(Exception):
    """The client closed the connection before the response was complete."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request. ``body`` is ``None`` if it was too long."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes | None


Answer: TypeAlias = Callable[[HttpRequest], Callable[["Connection"], Awaitable[bool]]]
"""Takes a request, and returns the function that answers it, which returns whether the connection stays open."""


@dataclass(slots=True, eq=False)
class Connection:
    """A connection, with the methods that answer a request."""

    stream: trio.SocketStream
    _http: h11.Connection = field(default_factory=lambda: h11.Connection(h11.SERVER))

    async def serve(self, answer: Answer) -> None:
        """Answer requests until one side closes."""
        async with self.stream:
            with suppress(Gone, trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError):
                while (request := await self._next_request()) is not None:
                    if not await answer(request)(self) or self._http.our_state is not h11.DONE:
                        return
                    self._http.start_next_cycle()

    async def _next_request(self) -> HttpRequest | None:
        """Return the next request, or ``None`` if the client closes the connection."""
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
                    if size <= MAX_BODY:  # a longer one is read to its end, then refused
                        parts.append(bytes(data))
                case h11.EndOfMessage():
                    assert request is not None
                    headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in request.headers}
                    body = b"".join(parts) if size <= MAX_BODY else None
                    return HttpRequest(request.method.decode(), request.target.decode(), headers, body)
                case _:
                    return None

    async def head(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the status line and headers. Without a length, the body is sent in chunks."""
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
        """Wait. Raise ``Gone`` if the client disconnects meanwhile."""
        with trio.move_on_after(seconds):
            await self.hang()

    async def hang(self) -> NoReturn:
        """Wait until the client disconnects, then raise ``Gone``."""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await self.stream.receive_some(_CHUNK):
                self._http.receive_data(data)  # the client sent the next request early
        raise Gone
