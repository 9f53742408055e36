"""JSON-RPC on a wire: requests, notifications and answers, in both directions.

Requests are served in the order of their rows, in one synchronous step each, so that a cancel behind a prompt finds it.
An answer is given once, at any time later. Nothing that comes in ends the wire but the end of the input.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, assert_never

import trio

from cli.acp import rpc
from cli.acp.outbox import ROOM, Outbox
from cli.acp.rpc import INVALID_PARAMS, INVALID_REQUEST, BadMessage, Id, Notification, Response, RpcError, RpcRequest
from cli.input.splitter import RawLine

MAX_ROW = 4 * 1024 * 1024
"""Bytes of a row. A prompt has at most 100,000 characters, each in JSON at most twelve bytes; so a text that is several
times too long is still read, and is refused with its id and the reason."""

MAX_REQUESTS = 100
"""Requests of the other side that may be in work: one for each session, and a prompt for each line that can wait."""


class Rows(Protocol):
    """Where the rows of the other side come from."""

    async def next(self) -> RawLine | None:
        """The next row; ``None`` at the end."""


class Server(Protocol):
    """Who serves the other side. Neither method may wait; both may start tasks that do."""

    def on_request(self, call: IncomingCall) -> None:
        """Serve a request, now or later. Raises ``RpcError``, which is the answer then."""

    def on_notification(self, method: str, params: Mapping[str, Any]) -> None:
        """Hear a notification, if it is one that is known."""

    def on_cancel(self, call: IncomingCall) -> None:
        """Hear that a request which is in work need not be answered any more; it is answered all the same."""


class IncomingCall:
    """A request of the other side that is in work, until it is answered."""

    def __init__(self, wire: Wire, request: RpcRequest, params: Mapping[str, Any]) -> None:
        self.id = request.id
        self.method = request.method
        self.params = params
        self._wire = wire
        self.is_answered = False

    def answer(self, result: Mapping[str, Any]) -> None:
        """Answer it, unless that was done."""
        self._settle(rpc.result_row(self.id, result))

    def fail(self, error: RpcError) -> None:
        """Answer it with an error, unless it is answered."""
        self._settle(rpc.error_response_row(self.id, error))

    def _settle(self, row: bytes) -> None:
        if not self.is_answered:
            self.is_answered = True
            self._wire._settle(self, row)


class Wire:
    """One connection. ``run`` reads rows and tells them to the ``server`` until they end."""

    def __init__(self, rows: Rows, outbox: Outbox) -> None:
        self._rows = rows
        self._outbox = outbox
        self._calls: dict[tuple[type, Id], IncomingCall] = {}
        self._asked: dict[Id, _PendingRequest] = {}
        self._last_id = 0

    @property
    def in_work(self) -> int:
        """How many requests of the other side are in work."""
        return len(self._calls)

    @property
    def asked(self) -> int:
        """How many requests of ours have no answer yet."""
        return len(self._asked)

    async def run(self, server: Server) -> None:
        """Read rows until there are no more."""
        while (raw := await self._rows.next()) is not None:
            if raw.text.strip():
                await self._read(raw, server)

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Say something, once there is room for it."""
        await self._outbox.send(rpc.notification_row(method, params))

    async def request(self, method: str, params: Mapping[str, Any]) -> object:
        """Ask for something and wait for the result; being cancelled withdraws it. Raises ``RpcError``."""
        self._last_id += 1
        id, asked = self._last_id, _PendingRequest()
        self._asked[id] = asked
        self._outbox.put(rpc.request_row(id, method, params))
        try:
            await asked.done.wait()
        finally:
            if self._asked.pop(id, None) is not None:
                self._outbox.put(rpc.notification_row("$/cancel_request", {"requestId": id}))
        assert asked.response is not None
        if asked.response.error is not None:
            raise asked.response.error
        return asked.response.result

    async def _read(self, raw: RawLine, server: Server) -> None:
        incoming = rpc.read_message(raw.text, is_utf8=not raw.replaced, is_cut=raw.cut, most=MAX_ROW)
        match incoming:
            case Notification(method, params):
                self._hear(method, params, server)
                return
            case Response() as response:
                self._on_response(response)
                return
            case RpcRequest() as request:
                self._begin(request, server)
            case BadMessage(error, id):
                self._outbox.put(rpc.error_response_row(id, error))
            case _:
                assert_never(incoming)
        # Who reads no answers is not read either. There is room for some, so that a cancel behind them is heard.
        await self._outbox.wait_for_room(2 * ROOM)

    def _begin(self, request: RpcRequest, server: Server) -> None:
        key = _key(request.id)
        refusal = self._refusal(request)
        if refusal is not None:
            self._outbox.put(rpc.error_response_row(request.id, refusal))
            return
        assert isinstance(request.params, dict)
        call = self._calls[key] = IncomingCall(self, request, request.params)
        try:
            server.on_request(call)
        except RpcError as error:
            call.fail(error)

    def _refusal(self, request: RpcRequest) -> RpcError | None:
        if _key(request.id) in self._calls:
            return RpcError(INVALID_REQUEST, f"the id {request.id!r} is in work already; give each request its own")
        if len(self._calls) >= MAX_REQUESTS:
            return RpcError(INVALID_REQUEST, f"{MAX_REQUESTS} requests are in work; wait for answers")
        if not isinstance(request.params, dict):
            return RpcError(INVALID_PARAMS, "params must be an object")
        return None

    def _hear(self, method: str, params: object, server: Server) -> None:
        if not isinstance(params, dict):
            return
        if method == "$/cancel_request":
            id = params.get("requestId")
            if isinstance(id, int | str) and (call := self._calls.get(_key(id))) is not None:
                server.on_cancel(call)
            return
        server.on_notification(method, params)

    def _on_response(self, response: Response) -> None:
        # One that nobody waits for comes too late: what was asked was withdrawn.
        asked = self._asked.pop(response.id, None)
        if asked is not None:
            asked.response = response
            asked.done.set()

    def _settle(self, call: IncomingCall, row: bytes) -> None:
        self._calls.pop(_key(call.id), None)
        self._outbox.put(row)


class _PendingRequest:
    """A request of ours that waits for its answer."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.response: Response | None = None


def _key(id: Id) -> tuple[type, Id]:
    """What an id is known by: 1 and "1" are two."""
    return type(id), id
