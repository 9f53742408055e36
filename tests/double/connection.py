"""One HTTP/1.1 connection: h11 for the protocol, a trio stream for the bytes. It decides nothing."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn, TypeAlias

import h11
import trio

from .acts import Act, Data, End, Head, Hold, Pause, Wire
from .steps import Gate

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


Answer: TypeAlias = Callable[[Asked, int], tuple[Iterable[Act], Callable[[bool], None]]]
"""From a request and the connection's number to what to do, and whom to tell whether it was done to the end."""


@dataclass(slots=True, eq=False)
class Connection:
    """A connection and its number, from 1."""

    stream: trio.SocketStream
    number: int
    max_body: int
    _http: h11.Connection = field(default_factory=lambda: h11.Connection(h11.SERVER))

    async def serve(self, answer: Answer) -> None:
        """Answer requests until one side closes."""
        async with self.stream:
            try:
                while (asked := await self._ask()) is not None:
                    acts, tell = answer(asked, self.number)
                    done = False
                    try:
                        done = await self._carry_out(acts)
                    finally:
                        tell(done)
                    if not done or self._http.our_state is not h11.DONE:
                        return
                    self._http.start_next_cycle()
            except h11.RemoteProtocolError:
                await self._refuse()
            except (Gone, trio.BrokenResourceError, trio.ClosedResourceError):
                return

    async def _ask(self) -> Asked | None:
        request: h11.Request | None = None
        parts: list[bytes] = []
        size = 0
        while True:
            match self._http.next_event():
                case h11.NEED_DATA:
                    if self._http.they_are_waiting_for_100_continue:
                        await self._send(h11.InformationalResponse(status_code=100, headers=[]))
                    self._http.receive_data(await self.stream.receive_some(_CHUNK))
                case h11.Request() as head:
                    request = head
                case h11.Data(data=data):
                    size += len(data)
                    if size <= self.max_body:  # what is too long is read to its end all the same, then refused
                        parts.append(bytes(data))
                case h11.EndOfMessage():
                    assert request is not None
                    headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in request.headers}
                    body = b"".join(parts) if size <= self.max_body else None
                    return Asked(request.method.decode(), request.target.decode(), headers, body)
                case _:
                    return None

    async def _carry_out(self, acts: Iterable[Act]) -> bool:
        """Whether the response ended in order."""
        for act in acts:
            match act:
                case Head(status, headers, length):
                    sized = [] if length is None else [("content-length", str(length))]
                    await self._send(h11.Response(status_code=status, headers=[*headers, *sized]))
                case Data(data):
                    await self._send(h11.Data(data=data))
                case Wire(data):
                    await self.stream.send_all(data)
                case Hold(gate):
                    gate.reached.set()
                    await self._until_open(gate)
                case Pause(seconds):
                    with trio.move_on_after(seconds):
                        await self._watch()
                case End("done"):
                    await self._send(h11.EndOfMessage())
                case End("close"):
                    await self.stream.send_eof()
                    return False
                case End("reset"):
                    # Closing with a linger time of zero sends RST.
                    self.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.stream.socket.close()
                    return False
                case End():  # hang
                    await self._watch()
        return True

    async def _send(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if data:
            await self.stream.send_all(data)

    async def _watch(self) -> NoReturn:
        """Wait for the client to go away."""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await self.stream.receive_some(_CHUNK):
                self._http.receive_data(data)  # the next request, early
        raise Gone

    async def _until_open(self, gate: Gate) -> None:
        """Wait at the gate, and notice if the client goes away meanwhile."""

        async def wait() -> None:
            await gate.open.wait()
            watching.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            with trio.CancelScope() as watching, suppress(Gone):
                await self._watch()
            nursery.cancel_scope.cancel()
        if not watching.cancelled_caught:
            raise Gone

    async def _refuse(self) -> None:
        """Answer what is no HTTP, if an answer is still possible."""
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            headers = [("content-length", "0"), ("connection", "close")]
            await self._send(h11.Response(status_code=400, headers=headers))
            await self._send(h11.EndOfMessage())
