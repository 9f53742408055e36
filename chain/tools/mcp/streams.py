"""The streams between the MCP client and a server: rows of a program's input and output, or requests over HTTP.

``traffic`` limits what a server sends. A cancelled call ends only after the client has sent the cancellation to the
server, so sending never blocks: messages are queued.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import httpx2
import trio
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCResponse
from pydantic_core import from_json

from chain.config.servers import Address
from chain.network import tls_context
from chain.text.plain import escape_json
from chain.tools.mcp.traffic import (
    LARGE,
    MAX_MESSAGE_BYTES,
    MAX_MESSAGE_VALUES,
    MAX_PER_S,
    MAX_SMALL,
    READ_COST,
    OverBoundError,
    Traffic,
    parse_message,
)

if TYPE_CHECKING:
    from chain.tools.processes.guarded import GuardedProgram

MAX_WAITING = 32
"""The most queued messages to a server. They include answers to the server's requests, so requests are limited too."""
SERVER_CONNECT_S, SILENT_S = 15.0, 300.0
"""The timeouts for connecting and for the next part of a response, in seconds. A call has its own time limit."""
STREAM_COST = MAX_PER_S // 10
"""The cost in bytes (``Traffic.spend``) of opening a stream for messages that answer no request.

Without this cost, a server could make the client reopen the stream without a pause.
"""

_UNKNOWN_SESSION = (400, 404, 410)
"""Statuses for an unknown session: 404 in the protocol, 400 in examples of its SDKs."""
_END_OF_EVENT = re.compile(rb"(?>\r\n|\r|\n){2}")


class RowReader(trio.abc.ReceiveChannel[SessionMessage]):
    """A channel that receives the messages that a program writes. It skips rows that are not messages."""

    def __init__(self, program: GuardedProgram, traffic: Traffic) -> None:
        self.noise = ""
        """A sentence about the last row that was not a message; empty after a message."""
        self._program = program
        self._traffic = traffic
        self._read = bytearray()

    async def receive(self) -> SessionMessage:
        """Return the next message. Raise ``EndOfChannel`` when the connection has ended."""
        try:
            while True:
                row = await self._row()
                is_small = await self._traffic.count_message(row)
                try:
                    message = SessionMessage(parse_message(row) if is_small else await self._traffic.parse(row))
                    self.noise = ""
                    return message
                except ValueError:
                    if row.strip():
                        self.noise = f"it wrote a row that is not a JSON message: {row[:80].decode(errors='replace')!r}"
        except (trio.EndOfChannel, OverBoundError):
            self._traffic.gone.set()  # set before the calls fail, which then read it
            raise trio.EndOfChannel from None

    async def _row(self) -> bytes:
        searched = 0
        while (end := self._read.find(b"\n", searched)) < 0:
            searched = len(self._read)
            piece = await self._program.output.receive_some()
            if not piece:
                self._traffic.closed_reason = "it closed its output"
                raise trio.EndOfChannel
            self._read += piece
            await self._traffic.record_read(self, len(self._read), READ_COST + len(piece))
        row = bytes(memoryview(self._read)[:end])
        del self._read[: end + 1]
        return row

    async def aclose(self) -> None:
        """Do nothing: the guard closes the program's streams."""


class Outgoing(trio.abc.SendChannel[SessionMessage]):
    """A channel that sends messages to a server. ``send`` queues a message, and ``run`` writes it.

    So a cancelled ``send`` leaves no message half written, which would corrupt all following messages.
    """

    def __init__(self, write: Callable[[SessionMessage], Awaitable[None]], traffic: Traffic) -> None:
        self._write = write
        self._traffic = traffic
        self._sender, self._waiting = trio.open_memory_channel[SessionMessage](MAX_WAITING)

    async def send(self, value: SessionMessage) -> None:
        """Queue a message. If too many are waiting, end the connection."""
        await trio.lowlevel.checkpoint()
        try:
            self._sender.send_nowait(value)
        except trio.WouldBlock:
            with suppress(OverBoundError):
                self._traffic.fail_limit(f"it does not read its input: {MAX_WAITING} messages are waiting")

    async def run(self) -> None:
        """Write the queued messages. End the connection if the server closes its input, since no answer would come."""
        try:
            async for item in self._waiting:
                await self._write(item)
        except (trio.BrokenResourceError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            self._traffic.closed_reason = "it closed its input"
            self._traffic.gone.set()

    async def aclose(self) -> None:
        """Do nothing: ``run`` ends when its nursery is cancelled."""


def row_of(item: SessionMessage) -> bytes:
    """Return a message as a row of JSON in UTF-8."""
    return escape_json(item.message.model_dump_json(by_alias=True, exclude_unset=True)).encode() + b"\n"


async def inspect(traffic: Traffic, response: httpx2.Response) -> None:
    """Check an HTTP response and limit its body. Raise ``OverBoundError`` if the body is compressed."""
    headers, status = response.headers, response.status_code
    is_post = response.request.method == "POST"
    id = from_json(response.request.content).get("id") if is_post else None
    # Without the charset, because some charsets are decoded in quadratic time.
    headers["content-type"] = kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    response.stream = _Body(response.stream, traffic, id, is_events=kind == "text/event-stream")
    if (coding := headers.get("content-encoding", "identity").strip().lower()) != "identity":
        traffic.fail_limit(f"it encoded its answer as {coding:.40}, which was not requested")
    if not is_post:  # the optional stream for messages that answer no request
        await traffic.spend(STREAM_COST)
        return
    traffic.http_fault = ""
    if status in (401, 403):
        traffic.http_fault = f"it requires a login ({status}): OAuth is not supported; give a token in its headers"
    elif status >= 400:
        traffic.http_fault = f"it answered {status} {response.reason_phrase}".rstrip()
    elif kind == "text/html":
        traffic.http_fault = "it answered with an HTML page; check the address"
    if request := traffic.open_requests.get(id):
        request.fault = traffic.http_fault
        request.is_session_unknown = status in _UNKNOWN_SESSION and "mcp-session-id" in response.request.headers


class _Body(httpx2.AsyncByteStream):
    """The body of a response: one message, or a stream of server-sent events.

    A message or an event is passed to the client only when it is complete. The result of a large message is taken out
    and stored in the ``OpenRequest``, because the MCP client would parse it in the trio thread.
    """

    def __init__(self, stream: Any, traffic: Traffic, id: object, *, is_events: bool) -> None:  # noqa: ANN401
        self._stream = stream
        self._traffic = traffic
        self._id = id
        self._is_events = is_events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read, searched, traffic = bytearray(), 0, self._traffic
        try:
            async for piece in self._stream:
                read += piece
                await traffic.record_read(self, len(read), READ_COST + len(piece))
                while self._is_events and (end := _END_OF_EVENT.search(read, searched)):
                    event = bytes(memoryview(read)[: end.end()])
                    del read[: end.end()]
                    searched = 0
                    yield event if await traffic.count_message(event) else await self._without_result(event)
                searched = max(len(read) - 3, 0)
            yield bytes(read) if await traffic.count_message(read) else await self._without_result(bytes(read))
        finally:
            traffic.incomplete_bytes.pop(self, None)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def _without_result(self, part: bytes) -> bytes:
        """Store the result of a large message or event. Return the message or event without the result.

        Raise ``OverBoundError`` if the message has too many values, or is too large without the result.
        """
        row, traffic, others = part, self._traffic, list[bytes]()
        if self._is_events:
            if part.count(b"\n") + part.count(b"\r") > MAX_MESSAGE_VALUES:
                traffic.fail_limit(f"it sent an event of more than {MAX_MESSAGE_VALUES:,} lines")
            lines = [line for line in part.splitlines() if line]
            row = b"\n".join(line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:"))
            others = [line for line in lines if not line.startswith(b"data:")]  # the event's name and id
        try:
            message = await traffic.parse(row, self._id)
            if isinstance(message, JSONRPCResponse):
                message.result = {LARGE: True}  # also if no request waits for this message
            row = message.model_dump_json(by_alias=True, exclude_unset=True).encode()
        except ValueError:
            row = b"{}"  # the client reports it
        if len(row) > MAX_SMALL:
            traffic.fail_limit(f"it sent a message of more than {MAX_SMALL:,} bytes besides its result")
        return b"\n".join([*others, b"data: " + row, b"", b""]) if self._is_events else row


@asynccontextmanager
async def http_streams(address: Address, traffic: Traffic) -> AsyncIterator[tuple[Any, Any]]:
    """Connect to a server over HTTP, and yield the stream to read from and the stream to write to."""
    client = httpx2.AsyncClient(
        verify=tls_context(httpx2.URL(address.url)),
        # A small response could be large when it is decompressed.
        headers={"accept-encoding": "identity", **address.headers},
        timeout=httpx2.Timeout(SILENT_S, connect=SERVER_CONNECT_S),
        event_hooks={"response": [partial(inspect, traffic)]},
    )
    async with (
        client,
        # The session is not terminated at the server: waiting for the answer could delay the end.
        streamable_http_client(
            address.url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES, terminate_on_close=False
        ) as (read, write),
        trio.open_nursery() as nursery,
    ):
        outgoing = Outgoing(write.send, traffic)
        nursery.start_soon(outgoing.run)
        yield read, outgoing
        nursery.cancel_scope.cancel()
