"""What the client of ``mcp`` reads from and writes to: a server under the guard, row by row, or one of HTTP.

What a server sends is bounded: a row, a response, and how many rows come in a second.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

import httpx2
import trio
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter

from chain.servers import Address
from chain.text.plain import escape_json

if TYPE_CHECKING:
    from chain.tools.processes.guarded import GuardedProgram

MAX_ROW = 16 * 1024 * 1024
"""Bytes of a message: a picture of the largest size that models take, three times over."""
MAX_ROWS = 2_000
"""Messages in a second: more than any that reports its progress, few enough that everything else goes on."""
WRONG_ANSWER = "It gave back what is no result."
MAX_WAITING = 64
"""Messages that wait for a server to read them."""
MAX_ERRORS = 4_096
"""Bytes that are kept of what a server writes to its standard error."""

CONNECT_S, SILENT_S = 15.0, 300.0
"""Seconds for a connection, and between two pieces of a response: a call has a limit of its own."""


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

    def __init__(self, program: GuardedProgram) -> None:
        self.gone = trio.Event()
        """Set when there is no more to read, before anybody who waits for an answer hears that there will be none."""
        self.fault = ""
        """Why it was read no further, though there was more."""
        self.noise = ""
        """What it wrote before its first message: it may say why there was none."""
        self.is_closed = False
        """Whether it writes no more."""
        self._has_spoken = False
        self._program = program
        self._read = bytearray()
        self._count, self._since = 0, -math.inf

    def __aiter__(self) -> RowReader:
        return self

    async def receive(self) -> SessionMessage | Exception:
        """The next message. Raises ``StopAsyncIteration``."""
        return await anext(self)

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self._message()
        except StopAsyncIteration:
            self.gone.set()
            raise

    async def _message(self) -> SessionMessage:
        while True:
            await trio.lowlevel.checkpoint()
            row = await self._row()
            if (now := trio.current_time()) > self._since + 1:
                self._count, self._since = 0, now
            self._count += 1
            if self._count > MAX_ROWS:
                self.fault = f"it sent more than {MAX_ROWS:,} messages in a second"
                raise StopAsyncIteration
            if row.strip():
                try:
                    message = SessionMessage(jsonrpc_message_adapter.validate_json(row, by_name=False))
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
            if searched > MAX_ROW:
                self.fault = f"it sent a message of more than {MAX_ROW:,} bytes"
                raise StopAsyncIteration
            piece = await self._program.output.receive_some()
            if not piece:
                self.is_closed = True
                raise StopAsyncIteration
            self._read += piece
        row = bytes(self._read[:end])
        del self._read[: end + 1]
        return row


class RowWriter(_MessageStream):
    """Messages to a program. One that is cut off would spoil all after it, so a task of its own writes them."""

    def __init__(self, program: GuardedProgram, gone: trio.Event) -> None:
        self.is_broken = False
        """Whether it reads no more."""
        self._program = program
        self._gone = gone
        self._sender, self._waiting = trio.open_memory_channel[SessionMessage](MAX_WAITING)

    async def send(self, item: SessionMessage, /) -> None:
        """Have a message written, without waiting for that unless many wait."""
        await self._sender.send(item)

    async def run(self) -> None:
        """Write what is sent. Sets ``gone`` if it reads no more: there would be no answer."""
        try:
            async for item in self._waiting:
                row = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                await self._program.input.send_all(escape_json(row).encode() + b"\n")
        except trio.BrokenResourceError:
            self.is_broken = True
            self._gone.set()


def _asked(row: bytes) -> int | str | None:
    """The id of the request that a malformed row answers; ``None`` if it answers none."""
    try:
        match json.loads(row):
            case {"id": int() | str() as id, **rest} if "method" not in rest:
                return id
            case _:
                return None
    except (ValueError, RecursionError):
        return None


class ErrorTail:
    """The end of what a program writes to its standard error."""

    def __init__(self, program: GuardedProgram) -> None:
        self._program = program
        self._read = b""

    async def run(self) -> None:
        """Read it, or the program would wait."""
        while piece := await self._program.errors.receive_some():
            self._read = (self._read + piece)[-MAX_ERRORS:]

    @property
    def last_row(self) -> str:
        """The last row that is not blank."""
        rows = [row for row in self._read.decode(errors="replace").splitlines() if row.strip()]
        return rows[-1].strip() if rows else ""


class HttpNotes:
    """What the client does not tell of the responses of a server."""

    def __init__(self) -> None:
        self.fault = ""
        self.is_unknown = False
        """Whether it answered that there is no such session, as one does that was started again."""

    async def note(self, response: httpx2.Response) -> None:
        """Note one, and bound what is read of it."""
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "text/event-stream":
            response.stream = _Bounded(response.stream, self)
        if response.request.method != "POST":
            return  # for what the server says unasked, which not every one has
        self.fault = ""
        self.is_unknown = response.status_code == 404 and "mcp-session-id" in response.request.headers
        if response.status_code in (401, 403):
            self.fault = (
                f"it wants a login ({response.status_code}): OAuth is not supported; give a token in its headers"
            )
        elif response.status_code >= 400:
            self.fault = f"it answered {response.status_code} {response.reason_phrase}".rstrip()
        elif kind == "text/html":
            self.fault = "it answered with a page of HTML, so this is not its address"


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: Any, notes: HttpNotes) -> None:  # noqa: ANN401 - one that httpx2 reads
        self._stream = stream
        self._notes = notes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for piece in self._stream:
            size += len(piece)
            if size > MAX_ROW:
                self._notes.fault = f"it sent a message of more than {MAX_ROW:,} bytes"
                raise httpx2.ReadError(self._notes.fault)
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


@asynccontextmanager
async def http_streams(address: Address, notes: HttpNotes) -> AsyncIterator[Any]:
    """The two streams of a server of HTTP."""
    client = httpx2.AsyncClient(
        # Compressed, a small response could be a large one.
        headers={"accept-encoding": "identity", **address.headers},
        timeout=httpx2.Timeout(SILENT_S, connect=CONNECT_S),
        event_hooks={"response": [notes.note]},
    )
    async with (
        client,
        streamable_http_client(address.url, http_client=client, max_sse_event_size=MAX_ROW) as streams,
    ):
        yield streams
