"""JSON-RPC on a wire: requests, notifications and answers, in both directions.

Requests are served in the order of their rows, in one synchronous step each, so that a cancel behind a prompt finds it.
An answer is given once, at any time later. Nothing that comes in ends the wire but the end of the input. The other side
may be slow to read, or may have stopped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, assert_never

import trio

from chain.concurrency.signal import Signal
from cli.acp import rpc
from cli.acp.rpc import INVALID_PARAMS, INVALID_REQUEST, BadMessage, Id, Notification, Response, RpcError, RpcRequest
from cli.input.splitter import RawLine

MAX_ROW = 16 * 1024 * 1024
"""Bytes of a row. A prompt has at most 100,000 characters, each in JSON at most twelve bytes, and images of at most
5 MB, which base64 makes 7 MB; so one that is too long is still read, and is refused with its id and the reason."""

MAX_REQUESTS = 100
"""Requests of the other side that may be in work: one for each session, and a prompt for each line that can wait."""

ROOM = 64
"""Rows that may wait before whoever tells what happens has to wait, too; its feed joins running text meanwhile."""


class Server(Protocol):
    """Serves the requests of the other side. No method may block; all may start tasks that do."""

    def on_request(self, call: IncomingCall) -> None:
        """Serve a request, now or later. Raises ``RpcError``, which is the answer then."""

    def on_notification(self, method: str, params: Mapping[str, Any]) -> None:
        """Handle a notification; one that is not known is ignored."""

    def on_cancel(self, call: IncomingCall) -> None:
        """The other side has cancelled a request that is in work; it is answered all the same."""


class Outbox:
    """A queue of whole rows to write. Senders whose rows nothing else bounds wait for room first."""

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
        if not self._is_closed:
            self._rows.append(row)
            self._news.set()

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


@dataclass(frozen=True, slots=True, eq=False)
class IncomingCall:
    """A request of the other side that is in work, until it is answered."""

    wire: Wire
    id: Id
    method: str
    params: Mapping[str, Any]

    def answer(self, result: Mapping[str, Any]) -> None:
        """Answer it, unless it is answered."""
        self.wire.settle(self, rpc.message_row(id=self.id, result=result))

    def fail(self, error: RpcError) -> None:
        """Answer it with an error, unless it is answered."""
        self.wire.settle(self, rpc.error_response_row(self.id, error))


class Wire:
    """One connection. ``run`` gives the messages to a ``server`` until ``next_row`` returns ``None``."""

    def __init__(self, next_row: Callable[[], Awaitable[RawLine | None]], outbox: Outbox) -> None:
        self._next_row = next_row
        self._outbox = outbox
        self._calls: dict[Id, IncomingCall] = {}
        self._asked: dict[Id, trio.MemorySendChannel[Response]] = {}
        self._last_id = 0

    async def run(self, server: Server) -> None:
        """Read rows until there are no more."""
        while (raw := await self._next_row()) is not None:
            if raw.text.strip():
                await self._read(raw, server)

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification, once there is room for it."""
        await self._outbox.wait_for_room()
        self._outbox.put(rpc.message_row(method=method, params=params))

    async def request(self, method: str, params: Mapping[str, Any]) -> object:
        """Send a request and wait for its result; a cancellation withdraws it. Raises ``RpcError``."""
        self._last_id += 1
        id = self._last_id
        self._asked[id], answer = trio.open_memory_channel[Response](1)
        self._outbox.put(rpc.message_row(id=id, method=method, params=params))
        try:
            response = await answer.receive()
        finally:
            if self._asked.pop(id, None) is not None:
                self._outbox.put(rpc.message_row(method="$/cancel_request", params={"requestId": id}))
        if response.error is not None:
            raise response.error
        return response.result

    def settle(self, call: IncomingCall, row: bytes) -> None:
        """Answer a request with a row, unless it is answered."""
        if self._calls.get(call.id) is call:
            del self._calls[call.id]
            self._outbox.put(row)

    async def _read(self, raw: RawLine, server: Server) -> None:
        incoming = rpc.read_message(raw.text, is_utf8=not raw.replaced, is_cut=raw.cut, most=MAX_ROW)
        match incoming:
            case Notification(method, params):
                self._hear(method, params, server)
                return
            case Response(id):
                # One that nobody waits for comes too late: what was asked was withdrawn.
                if (asked := self._asked.pop(id, None)) is not None:
                    asked.send_nowait(incoming)
                return
            case RpcRequest():
                self._begin(incoming, server)
            case BadMessage(error, id):
                self._outbox.put(rpc.error_response_row(id, error))
            case _:
                assert_never(incoming)
        # Who reads no answers is not read either. There is room for some, so that a cancel behind them is heard.
        await self._outbox.wait_for_room(2 * ROOM)

    def _begin(self, request: RpcRequest, server: Server) -> None:
        id, params = request.id, request.params
        if id in self._calls:
            refusal = RpcError(INVALID_REQUEST, f"the id {id!r} is in work already; give each request its own")
        elif len(self._calls) >= MAX_REQUESTS:
            refusal = RpcError(INVALID_REQUEST, f"{MAX_REQUESTS} requests are in work; wait for answers")
        elif not isinstance(params, dict):
            refusal = RpcError(INVALID_PARAMS, "params must be an object")
        else:
            call = self._calls[id] = IncomingCall(self, id, request.method, params)
            try:
                server.on_request(call)
            except RpcError as error:
                call.fail(error)
            return
        self._outbox.put(rpc.error_response_row(id, refusal))

    def _hear(self, method: str, params: object, server: Server) -> None:
        if not isinstance(params, dict):
            return
        if method != "$/cancel_request":
            server.on_notification(method, params)
            return
        id = params.get("requestId")
        if type(id) in (int, str) and (call := self._calls.get(id)) is not None:  # true is no id, though it equals 1
            server.on_cancel(call)
