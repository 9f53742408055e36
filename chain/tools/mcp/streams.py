"""What the client of ``mcp`` reads from and writes to: a server under the guard, row by row, or one of HTTP.

What a server sends is bounded (``traffic``). Writing to it never waits, since the client does not let a cancelled call
end before it has written that the call was cancelled.
"""

from __future__ import annotations

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
from chain.tools.mcp.traffic import MAX_ROW, MAX_SMALL, MAX_VALUES, READ_COST, OverBoundError, Traffic, parsed

if TYPE_CHECKING:
    from chain.tools.processes.guarded import GuardedProgram

UNEXPLAINED = ("Session terminated", "Server returned an error response")
"""What the client says where an answer of HTTP says nothing but its status."""
WRONG_ANSWER = "It gave back what is no result."
MAX_WAITING = 32
"""Messages that wait for a server to read them. Among them are the answers to its requests, which bounds these."""
MAX_ERRORS = 4_096
"""Bytes that are kept of what a server writes to its standard error."""

CONNECT_S, SILENT_S = 15.0, 300.0
"""Seconds for a connection, and between two pieces of a response: a call has a limit of its own."""

_UNKNOWN_SESSION = (400, 404, 410)
"""What a server answers that does not know the session: the protocol has 404, and examples of its SDKs say 400."""
_OF_A_REQUEST = (METHOD_NOT_FOUND, INVALID_PARAMS)
"""The errors that have these statuses for another reason."""
LARGE = "chain/large"
"""The key of a result that stands for a large one, which was parsed already."""
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


class RowReader(_MessageStream):
    """The messages of a program. Rows that are none are passed over."""

    def __init__(self, program: GuardedProgram, traffic: Traffic) -> None:
        self.noise = ""
        """What it wrote before its first message: it may say why there was none."""
        self.is_closed = False
        """Whether it writes no more."""
        self._has_spoken = False
        self._program = program
        self._traffic = traffic
        self._read = bytearray()

    def __aiter__(self) -> RowReader:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self._message()
        except (StopAsyncIteration, OverBoundError):
            # Before anybody who waits for an answer hears that there will be none.
            self._traffic.gone.set()
            raise StopAsyncIteration from None

    async def _message(self) -> SessionMessage:
        while True:
            row = await self._row()
            is_small = await self._traffic.admits(row)
            if row.strip():
                try:
                    message = SessionMessage(parsed(row) if is_small else await self._traffic.parse(row))
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
            piece = await self._program.output.receive_some()
            if not piece:
                self.is_closed = True
                raise StopAsyncIteration
            self._read += piece
            await self._traffic.hold(self, len(self._read), READ_COST + len(piece))
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


class HttpNotes:
    """What the client does not tell of the responses of a server, and the large results that it does not parse."""

    def __init__(self, traffic: Traffic) -> None:
        self.traffic = traffic
        self.fault = ""
        """What was wrong with the latest response to a request."""
        self.refused: dict[int | str, tuple[str, bool]] = {}
        """For requests by their ids: what was wrong, and whether the server may not know the session."""
        self.large: dict[str, dict[str, Any]] = {}

    def why(self, id: int | str, error: ErrorData) -> tuple[str, bool]:
        """Why a request failed, and whether it was not carried out since the server does not know the session."""
        why, is_unknown = self.refused.pop(id, ("", False))
        has_said = error.message not in UNEXPLAINED
        return error.message if has_said else why or error.message, is_unknown and error.code not in _OF_A_REQUEST

    async def note(self, response: httpx2.Response) -> None:
        """Note one, and bound what is read of it."""
        headers, status = response.headers, response.status_code
        # Without its charset: some are decoded in quadratic time.
        headers["content-type"] = kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        response.stream = _Body(response.stream, self, is_events=kind == "text/event-stream")
        if (coding := headers.get("content-encoding", "identity").strip().lower()) != "identity":
            self.traffic.exceed(f"it encoded its answer as {coding:.40}, which it was not asked for")
        if response.request.method != "POST":
            return  # for what the server says unasked, which not every one has
        self.fault = ""
        if status in (401, 403):
            self.fault = f"it wants a login ({status}): OAuth is not supported; give a token in its headers"
        elif status >= 400:
            self.fault = f"it answered {status} {response.reason_phrase}".rstrip()
        elif kind == "text/html":
            self.fault = "it answered with a page of HTML, so this is not its address"
        if self.fault and (id := from_json(response.request.content).get("id")) is not None:
            is_unknown = status in _UNKNOWN_SESSION and "mcp-session-id" in response.request.headers
            self.refused[id] = self.fault, is_unknown


class _Body(httpx2.AsyncByteStream):
    """The body of a response: one message, or events with a message each, whole and not too many at once.

    The client would parse a large message in the trio thread. It gets one in which a name stands for the result.
    """

    _names = count()

    def __init__(self, stream: Any, notes: HttpNotes, *, is_events: bool) -> None:  # noqa: ANN401 - one of httpx2
        self._stream = stream
        self._notes = notes
        self._is_events = is_events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read, searched, traffic = bytearray(), 0, self._notes.traffic
        try:
            async for piece in self._stream:
                read += piece
                await traffic.hold(self, len(read), READ_COST + len(piece))
                while self._is_events and (end := _END_OF_EVENT.search(read, searched)):
                    event = bytes(memoryview(read)[: end.end()])
                    del read[: end.end()]
                    searched = 0
                    yield event if await traffic.admits(event) else await self._without_result(event)
                searched = max(len(read) - 3, 0)
            yield bytes(read) if await traffic.admits(read) else await self._without_result(bytes(read))
        finally:
            traffic.held.pop(self, None)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def _without_result(self, part: bytes) -> bytes:
        """A large message or event, with a name in place of its result. Raises ``OverBoundError``."""
        row, traffic = part, self._notes.traffic
        if self._is_events:
            if part.count(b"\n") + part.count(b"\r") > MAX_VALUES:
                traffic.exceed(f"it sent an event of more than {MAX_VALUES:,} lines")
            row = b"\n".join(line[5:].removeprefix(b" ") for line in part.splitlines() if line.startswith(b"data:"))
        try:
            message = await traffic.parse(row)
            if isinstance(message, JSONRPCResponse):
                self._notes.large[name := str(next(self._names))] = message.result
                message.result = {LARGE: name}
            row = message.model_dump_json(by_alias=True, exclude_unset=True).encode()
        except ValueError:
            row = b"{}"  # whoever waits for it is told by the client
        if len(row) > MAX_SMALL:
            traffic.exceed(f"it sent a message of more than {MAX_SMALL:,} bytes beside its result")
        return b"data: " + row + b"\n\n" if self._is_events else row


@asynccontextmanager
async def http_streams(address: Address, notes: HttpNotes) -> AsyncIterator[tuple[Any, Any]]:
    """The two streams of a server of HTTP."""
    client = httpx2.AsyncClient(
        # Compressed, a small response could be a large one.
        headers={"accept-encoding": "identity", **address.headers},
        timeout=httpx2.Timeout(SILENT_S, connect=CONNECT_S),
        event_hooks={"response": [notes.note]},
    )
    async with (
        client,
        # Not told that a session ends, one that does not answer holds up nothing.
        streamable_http_client(
            address.url, http_client=client, max_sse_event_size=MAX_ROW, terminate_on_close=False
        ) as (read, write),
        trio.open_nursery() as nursery,
    ):
        outgoing = Outgoing(write.send, notes.traffic)
        nursery.start_soon(outgoing.run)
        yield read, outgoing
        nursery.cancel_scope.cancel()
