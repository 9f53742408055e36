"""A JSON-RPC connection: requests, notifications and answers, in both directions.

Requests are served in the order of their rows, each in one synchronous step, so that a cancellation finds the prompt
before it. Each request is answered once, in that step or later. Only the end of the input ends a connection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import trio

from cli.acp import rpc
from cli.acp.rpc import INVALID_PARAMS, INVALID_REQUEST, Id, Response, RpcError, RpcRequest
from cli.input.splitter import RawLine
from cli.outbox import ROOM, Outbox

MAX_RPC_ROW = 16 * 1024 * 1024
"""The maximum length of a row in bytes. A prompt has at most 100,000 characters of at most twelve bytes in JSON, and
7 MB of images in base64. So a prompt that is somewhat too long can be read, and refused with its id and a reason."""

MAX_REQUESTS = 100
"""The maximum number of unanswered requests: enough for one per session, and a prompt for each waiting line."""


OnRequest: TypeAlias = Callable[["IncomingCall"], None]
"""A function that serves a request without blocking. It may raise ``RpcError``, which is then the answer."""

OnNotification: TypeAlias = Callable[[str, Mapping[str, Any]], None]
"""A function that handles a notification without blocking. It ignores unknown methods."""


@dataclass(slots=True, eq=False)
class IncomingCall:
    """A request of the peer. Also after the peer cancels it, which calls ``on_cancel``, it needs an answer."""

    wire: Wire
    id: Id
    method: str
    params: Mapping[str, Any]
    on_cancel: Callable[[], object] = lambda: None

    def answer(self, result: Mapping[str, Any] | RpcError) -> None:
        """Answer the request, unless it is answered already."""
        if self.wire.calls.get(self.id) is self:
            del self.wire.calls[self.id]
            self.wire.respond(self.id, result)


class Wire:
    """One connection. ``next_row`` returns the next row of the peer; ``None`` at the end of the input."""

    def __init__(self, next_row: Callable[[], Awaitable[RawLine | None]], outbox: Outbox) -> None:
        self.calls: dict[Id, IncomingCall] = {}
        """The requests of the peer that have no answer yet."""
        self._next_row = next_row
        self._outbox = outbox
        self._asked: dict[Id, trio.MemorySendChannel[object]] = {}
        self._last_id = 0

    async def run(self, on_request: OnRequest, on_notification: OnNotification) -> None:
        """Read and serve messages until the input ends."""
        while (raw := await self._next_row()) is not None:
            if raw.text.strip():
                await self._receive(raw, on_request, on_notification)

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Wait until the outbox has room, then send a notification."""
        await self._outbox.wait_for_room()
        self._outbox.put(rpc.message_row(method=method, params=params))

    async def request(self, method: str, params: Mapping[str, Any]) -> object:
        """Send a request, and wait for its answer. Return the result, or the ``RpcError`` of an error answer.

        If this call is cancelled, send the peer a cancellation of the request.
        """
        self._last_id += 1
        id = self._last_id
        self._asked[id], answer = trio.open_memory_channel[object](1)
        self._outbox.put(rpc.message_row(id=id, method=method, params=params))
        try:
            return await answer.receive()
        finally:
            if self._asked.pop(id, None) is not None:
                self._outbox.put(rpc.message_row(method="$/cancel_request", params={"requestId": id}))

    def respond(self, id: Id, result: Mapping[str, Any] | RpcError) -> None:
        """Send the answer to the request ``id``."""
        self._outbox.put(rpc.response_row(id, result))

    async def _receive(self, raw: RawLine, on_request: OnRequest, on_notification: OnNotification) -> None:
        try:
            message = rpc.read_message(
                raw.text, is_utf8=not raw.has_invalid_bytes, is_cut=raw.is_cut, limit=MAX_RPC_ROW
            )
        except RpcError as error:
            self.respond(error.id, error)
        else:
            if isinstance(message, Response):
                # An answer without a waiting request came too late: the request was withdrawn.
                if (asked := self._asked.pop(message.id, None)) is not None:
                    asked.send_nowait(message.result)
                return
            if message.is_notification:
                self._notify(message.method, message.params, on_notification)
                return
            self._serve(message, on_request)
        # Read no more while many answers are unread. This limit is above that of ``notify``, to read a cancellation.
        await self._outbox.wait_for_room(2 * ROOM)

    def _serve(self, request: RpcRequest, on_request: OnRequest) -> None:
        id, params = request.id, request.params
        if id in self.calls:
            refusal = RpcError(INVALID_REQUEST, f"the id {id!r} is in use; give each request its own id")
        elif len(self.calls) >= MAX_REQUESTS:
            refusal = RpcError(INVALID_REQUEST, f"{MAX_REQUESTS} requests have no answer yet; wait for answers")
        elif not isinstance(params, dict):
            refusal = RpcError(INVALID_PARAMS, "params must be an object")
        else:
            call = self.calls[id] = IncomingCall(self, id, request.method, params)
            try:
                on_request(call)
            except RpcError as error:
                call.answer(error)
            return
        self.respond(id, refusal)

    def _notify(self, method: str, params: object, on_notification: OnNotification) -> None:
        if not isinstance(params, dict):
            return
        if method != "$/cancel_request":
            on_notification(method, params)
            return
        id = params.get("requestId")
        if type(id) in (int, str) and id in self.calls:  # true is not an id, although it equals 1
            self.calls[id].on_cancel()
