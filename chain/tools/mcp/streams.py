"""What the client of ``mcp`` reads from and writes to: a server under the guard, row by row, or one of HTTP.

What a server sends is bounded (``traffic``). Writing to it never waits, since the client does not let a cancelled call
end before it has written that the call was cancelled.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Any

import anyio
import httpx2
import trio
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCResponse,
)
from pydantic_core import from_json

from chain.servers import Address
from chain.text.plain import escape_json
from chain.tools.mcp.traffic import MAX_MARKS, MAX_ROW, MAX_SMALL, READ_COST, OverBoundError, Traffic

if TYPE_CHECKING:
    from chain.tools.processes.guarded import GuardedProgram

WRONG_ANSWER = "It gave back what is no result."
MAX_WAITING = 64
"""Messages that wait for a server to read them."""
MAX_ERRORS = 4_096
"""Bytes that are kept of what a server writes to its standard error."""

CONNECT_S, SILENT_S = 15.0, 300.0
"""Seconds for a connection, and between two pieces of a response: a call has a limit of its own."""

UNKNOWN_SESSION = -32_097
"""The code, ours, of the error for a request that a server did not carry out, as it does not know the session."""
_UNKNOWN_STATUSES = (400, 404, 410)
"""The protocol has 404, and examples of its SDKs answer 400."""
_LARGE = "chain/large"
"""The key of a result that stands for a large one, which was parsed already."""

_EVENTS = "text/event-stream"
_END_OF_EVENT = re.compile(rb"(?>\r\n|\r|\n){2}")


class _MessageStream:
    async def __aenter__(self) -> Any:  # noqa: ANN401 - as the protocol of the client has it
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Nothing of its own is to be closed."""


class Incoming(_MessageStream):
    """The messages of a server, as far as its ``traffic`` allows. A subclass reads them."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic

    def __aiter__(self) -> Incoming:
        return self

    async def receive(self) -> SessionMessage | Exception:
        """The next message. Raises ``StopAsyncIteration``."""
        return await anext(self)

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            item = await self._next()
            if isinstance(item, SessionMessage):
                self._traffic.count_open(item.message)
            return item
        except (StopAsyncIteration, OverBoundError):
            # Before anybody who waits for an answer hears that there will be none.
            self._traffic.gone.set()
            raise StopAsyncIteration from None

    async def _next(self) -> SessionMessage | Exception:
        raise NotImplementedError


class RowReader(Incoming):
    """The messages of a program. Rows that are none are passed over."""

    def __init__(self, program: GuardedProgram, traffic: Traffic) -> None:
        super().__init__(traffic)
        self.noise = ""
        """What it wrote before its first message: it may say why there was none."""
        self.is_closed = False
        """Whether it writes no more."""
        self._has_spoken = False
        self._program = program
        self._read = bytearray()

    async def _next(self) -> SessionMessage:
        while True:
            row = await self._row()
            self._traffic.count_row()
            if row.strip():
                try:
                    message = SessionMessage(await self._traffic.parse(row))
                    self._has_spoken, self.noise = True, ""
                    return message
                except ValueError:
                    if not self._has_spoken:
                        self.noise = f"it wrote what is no message: {row[:80].decode(errors='replace')!r}"
                    if (asked := _asked(row)) is not None:
                        # Whoever waits for that answer would wait until the time limit.
                        error = ErrorData(code=PARSE_ERROR, message=WRONG_ANSWER)
                        return SessionMessage(JSONRPCError(jsonrpc="2.0", id=asked, error=error))

    async def _row(self) -> bytes:
        searched = 0
        while (end := self._read.find(b"\n", searched)) < 0:
            searched = len(self._read)
            self._traffic.hold(self, searched)
            piece = await self._program.output.receive_some()
            if not piece:
                self.is_closed = True
                raise StopAsyncIteration
            await self._traffic.spend(READ_COST + len(piece))
            self._read += piece
        row = bytes(memoryview(self._read)[:end])
        del self._read[: end + 1]
        return row


class Outgoing(_MessageStream):
    """Messages to a server. A task of its own writes them: one that is cut off would spoil all after it."""

    def __init__(self, write: Callable[[SessionMessage], Awaitable[None]], traffic: Traffic) -> None:
        self.is_broken = False
        """Whether the server reads no more."""
        self._write = write
        self._traffic = traffic
        self._sender, self._waiting = trio.open_memory_channel[SessionMessage](MAX_WAITING)

    async def send(self, item: SessionMessage, /) -> None:
        """Have a message written, without waiting for that. If too many wait the connection ends."""
        await trio.lowlevel.checkpoint()
        try:
            self._sender.send_nowait(item)
        except trio.WouldBlock:
            with suppress(OverBoundError):
                self._traffic.exceed(f"it reads nothing, and {MAX_WAITING} messages wait for it")

    async def run(self) -> None:
        """Write what is sent. If the server reads no more, the connection ends: there would be no answer."""
        try:
            async for item in self._waiting:
                await self._write(item)
                self._traffic.count_answer(item.message)
        except (trio.BrokenResourceError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            self.is_broken = True
            self._traffic.gone.set()


def row_of(item: SessionMessage) -> bytes:
    """A message as a row."""
    return escape_json(item.message.model_dump_json(by_alias=True, exclude_unset=True)).encode() + b"\n"


def _asked(row: bytes) -> int | str | None:
    """The id of the request that a malformed row answers; ``None`` if it answers none."""
    try:
        match from_json(row):
            case {"id": int() | str() as id, **rest} if "method" not in rest:
                return id
            case _:
                return None
    except ValueError:
        return None


class ErrorTail:
    """The end of what a program writes to its standard error."""

    def __init__(self, program: GuardedProgram, traffic: Traffic) -> None:
        self._program = program
        self._traffic = traffic
        self._read = b""

    async def run(self) -> None:
        """Read it, or the program would wait."""
        while piece := await self._program.errors.receive_some():
            self._read = (self._read + piece)[-MAX_ERRORS:]
            await self._traffic.spend(READ_COST + len(piece))

    @property
    def last_row(self) -> str:
        """The last row that is not blank."""
        rows = [row for row in self._read.decode(errors="replace").splitlines() if row.strip()]
        return rows[-1].strip() if rows else ""


class _HttpReader(Incoming):
    """The messages that the client of ``mcp`` has read, with the large results that it did not have to parse."""

    def __init__(self, messages: Any, traffic: Traffic, large: dict[str, Any]) -> None:  # noqa: ANN401
        super().__init__(traffic)
        self._messages = messages
        self._large = large

    async def _next(self) -> SessionMessage | Exception:
        item: SessionMessage | Exception = await anext(self._messages)
        self._traffic.count_row()
        if isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCResponse):
            result = item.message.result
            item.message.result = self._large.pop(str(result.get(_LARGE)), result)
        return item


class HttpResponses:
    """Checks the responses of a server before the client of ``mcp`` reads them.

    What is wrong with one becomes an error that says so.
    """

    def __init__(self, traffic: Traffic) -> None:
        self.large: dict[str, Any] = {}
        """The large results, by the names that stand for them."""
        self._traffic = traffic

    async def check(self, response: httpx2.Response) -> None:
        """Bound what is read of a response, and replace one that is no good."""
        headers, status = response.headers, response.status_code
        # Without its charset: some are decoded in quadratic time.
        headers["content-type"] = kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        coding = headers.pop("content-encoding", "identity").strip().lower()
        response.stream = body = _Body(response.stream, self._traffic, self.large, is_events=kind == _EVENTS)
        code, why = INTERNAL_ERROR, ""
        if coding != "identity":
            why = f"it encoded its answer as {coding:.40}, which it was not asked for"
        elif response.request.method != "POST":
            return  # for what the server says unasked, which not every one has
        elif status in (401, 403):
            why = f"it wants a login ({status}): OAuth is not supported; give a token in its headers"
        elif status >= 400:
            code, why = _refusal(await body.beginning(MAX_SMALL))
            why = why or f"it answered {status} {response.reason_phrase}".rstrip()
            is_new = "mcp-session-id" not in response.request.headers
            if status in _UNKNOWN_STATUSES and not is_new and code not in (METHOD_NOT_FOUND, INVALID_PARAMS):
                code = UNKNOWN_SESSION
        elif kind == "text/html":
            why = "it answered with a page of HTML, so this is not its address"
        if why:
            error = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": why}}
            response.status_code, body.instead = 400, json.dumps(error).encode()
            headers["content-type"] = "application/json"


def _refusal(body: bytes) -> tuple[int, str]:
    """The code and message of an error in the body of a response, as far as there is one."""
    try:
        match from_json(body):
            case {"error": {"code": int(code), "message": str(message)}}:
                return code, message
            case _:
                return INTERNAL_ERROR, ""
    except ValueError:
        return INTERNAL_ERROR, ""


class _Body(httpx2.AsyncByteStream):
    """The body of a response: one message, or events with a message each, whole and not too many at once.

    The client of ``mcp`` would parse a large message in the trio thread. It gets one in which a name stands for the
    large result, and ``_HttpReader`` puts the result in its place.
    """

    _names = count()

    def __init__(self, stream: Any, traffic: Traffic, large: dict[str, Any], *, is_events: bool) -> None:  # noqa: ANN401
        self.instead: bytes | None = None
        """What the client is to read."""
        self._stream = stream
        self._traffic = traffic
        self._large = large
        self._is_events = is_events

    async def beginning(self, most: int) -> bytes:
        """The body, if it has no more bytes than that, else a part of it."""
        read = b""
        async for piece in self._stream:
            await self._traffic.spend(READ_COST + len(piece))
            read += piece
            if len(read) > most:
                break
        return read

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self.instead is not None:
            yield self.instead
            return
        read, searched = bytearray(), 0
        try:
            async for piece in self._stream:
                await self._traffic.spend(READ_COST + len(piece))
                read += piece
                while self._is_events and (end := _END_OF_EVENT.search(read, searched)):
                    event = bytes(memoryview(read)[: end.end()])
                    del read[: end.end()]
                    searched = 0
                    yield await self._without_large(event)
                searched = max(len(read) - 3, 0)
                self._traffic.hold(self, len(read))
            yield await self._without_large(bytes(read))
        finally:
            self._traffic.release(self)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def _without_large(self, part: bytes) -> bytes:
        """A message or event, with a name in place of a large result. Raises ``OverBoundError``."""
        if await self._traffic.admits(part):
            return part
        row, others = part, list[bytes]()
        if self._is_events:
            if part.count(b"\n") + part.count(b"\r") > MAX_MARKS:
                self._traffic.exceed(f"it sent an event of more than {MAX_MARKS:,} lines")
            lines = part.splitlines()
            others = [line for line in lines if not line.startswith(b"data")]
            row = b"\n".join(line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:"))
            if any(line.startswith(b"event") and not line.endswith(b"message") for line in others):
                return b""  # the client passes it over
        try:
            message = await self._traffic.parse(row)
            if isinstance(message, JSONRPCResponse):
                self._large[name := str(next(self._names))] = message.result
                message.result = {_LARGE: name}
            row = message.model_dump_json(by_alias=True, exclude_unset=True).encode()
        except ValueError:
            row = b"{}"  # whoever waits for it is told by the client
        if self._is_events:
            row = b"\n".join([*others, b"data: " + row, b"", b""])
        if len(row) > MAX_SMALL:
            self._traffic.exceed(f"it sent a message with more than {MAX_SMALL:,} bytes beside its result")
        return row


@asynccontextmanager
async def http_streams(address: Address, traffic: Traffic) -> AsyncIterator[tuple[Incoming, Outgoing]]:
    """The two streams of a server of HTTP."""
    responses = HttpResponses(traffic)
    client = httpx2.AsyncClient(
        # Compressed, a small response could be a large one.
        headers={"accept-encoding": "identity", **address.headers},
        timeout=httpx2.Timeout(SILENT_S, connect=CONNECT_S),
        event_hooks={"response": [responses.check]},
    )
    async with (
        client,
        # It would wait for a server that does not answer: none is told that a session ends.
        streamable_http_client(
            address.url, http_client=client, max_sse_event_size=MAX_ROW, terminate_on_close=False
        ) as (read, write),
        trio.open_nursery() as nursery,
    ):
        outgoing = Outgoing(write.send, traffic)
        nursery.start_soon(outgoing.run)
        yield _HttpReader(read, traffic, responses.large), outgoing
        nursery.cancel_scope.cancel()
