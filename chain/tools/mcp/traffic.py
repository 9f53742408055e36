"""Limits on the messages of one server, so that they do not delay keys and other tasks.

A connection that exceeds a limit ends with a sentence. A large message is parsed in a worker thread. The parser holds
the interpreter lock, so the values of a message are counted first.
"""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import trio
from mcp_types import (
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)
from pydantic_core import from_json

from chain.concurrency.threads import Threads
from chain.errors import ToolError

MAX_MESSAGE_BYTES, MAX_HELD = 8 * 1024 * 1024, 64 * 1024 * 1024
"""Bytes of a message (room for the largest image that models accept), and of all incomplete messages.

Parsing a message takes 20 ms, and memory of four times its size.
"""
MAX_SMALL = 256 * 1024
"""Bytes of a message that is parsed in the trio thread, and of every message that is not a result."""
MAX_MESSAGE_VALUES = 50_000
"""Commas, opening brackets and strings of a message: parsing this many takes 20 ms and 7 MB."""
MAX_PER_S, READ_COST, VALUE_COST = 16 * 1024 * 1024, 8_192, 64
"""The budget of bytes read in a second, and the cost of one read and of one value, in bytes."""
MAX_MESSAGES_PER_S = 2_000
"""Messages in a second: more than any server needs for its progress."""
LARGE = "chain/large"
"""The key of a placeholder for a large result."""
WRONG_ANSWER = "The server's answer is not a valid result."

_THREADS = Threads("mcp messages")
_SIGNS = (b",", b"[", b"{")


class OverBoundError(ToolError):
    """The end of a connection whose server exceeded a limit."""


@dataclass(slots=True)
class OpenRequest:
    """A request that waits for its answer, with the state that the client does not report."""

    fault: str = ""
    is_unknown: bool = False
    """Whether the server may have forgotten the session."""
    large: dict[str, Any] | None = None
    """The result, if it was too large for the trio thread. The client gets ``{LARGE: True}`` in its place."""


class Traffic:
    """The traffic of one connection: budget, open requests and faults. ``gone`` is set when it has ended."""

    def __init__(self) -> None:
        self.gone = trio.Event()
        self.fault = self.closed = self.http_fault = ""
        """The limit that was exceeded, the stream that was closed, and the fault of the latest response over HTTP."""
        self.open: dict[Any, OpenRequest] = {}
        """The requests that wait for an answer, by id."""
        self.received = 0
        """Bytes of complete messages."""
        self.incomplete_bytes: dict[object, int] = {}
        """Bytes of incomplete messages, by their readers."""
        self._since, self._cost, self._rows = -math.inf, 0, 0
        self._parsing = trio.Lock()

    def exceed(self, what: str) -> NoReturn:
        """End the connection with this sentence. Raise ``OverBoundError``."""
        self.fault = self.fault or what
        self.gone.set()
        raise OverBoundError(what)

    async def spend(self, cost: int) -> None:
        """Count bytes read, or their equivalent. Wait for the next second if this one's budget is used up."""
        await trio.lowlevel.checkpoint()
        if (now := trio.current_time()) >= self._since + 1:
            self._since, self._cost, self._rows = now, 0, 0
        self._cost += cost
        if self._cost > MAX_PER_S:
            await trio.sleep_until(self._since + 1)

    async def record_read(self, holder: object, size: int, cost: int) -> None:
        """Spend the cost of a read, and record how many bytes its reader stores. Raise ``OverBoundError``."""
        self.incomplete_bytes[holder] = size
        if size > MAX_MESSAGE_BYTES or sum(self.incomplete_bytes.values()) > MAX_HELD:
            self.exceed(f"it sent a message of more than {MAX_MESSAGE_BYTES:,} bytes, or {MAX_HELD:,} at once")
        await self.spend(cost)

    async def count_message(self, row: bytes | bytearray) -> bool:
        """Count a message. Return whether it is small enough for the trio thread. Raise ``OverBoundError``."""
        self.received += len(row)
        is_small = len(row) <= MAX_SMALL
        await self.spend(VALUE_COST * sum(map(row.count, (*_SIGNS, b'"'))) if is_small else 0)
        self._rows += 1
        if self._rows > MAX_MESSAGES_PER_S:
            self.exceed(f"it sent more than {MAX_MESSAGES_PER_S:,} messages in a second")
        return is_small

    async def parse(self, row: bytes, id: object = None) -> JSONRPCMessage:
        """Parse a large message in a thread. The open request with this id, or the message's own, stores its result.

        Raise ``ValueError`` and ``OverBoundError``.
        """
        async with self._parsing:  # one at a time, because of the memory
            if await _THREADS.run(partial(has_too_many_values, row)):
                self.exceed(f"it sent a message of more than {MAX_MESSAGE_VALUES:,} values")
            message = await _THREADS.run(partial(parse_message, row))
        if isinstance(message, JSONRPCResponse) and (request := self.open.get(id or message.id)):
            request.large, message.result = message.result, {LARGE: True}
        if isinstance(message, JSONRPCNotification):
            message.params = None  # large parameters are of no use
        if isinstance(message, JSONRPCRequest):
            self.exceed(f"it sent a request of more than {MAX_SMALL:,} bytes")
        return message


def has_too_many_values(row: bytes) -> bool:
    """Return whether a message has more than ``MAX_MESSAGE_VALUES`` commas, opening brackets and strings."""
    plain = row.replace(b"\\\\", b"").replace(b'\\"', b"")
    if (quotes := plain.count(b'"')) > 2 * MAX_MESSAGE_VALUES:
        return True
    between = plain.split(b'"')[::2]  # the parts outside of strings
    return quotes // 2 + sum(part.count(sign) for part in between for sign in _SIGNS) > MAX_MESSAGE_VALUES


def parse_message(row: bytes) -> JSONRPCMessage:
    """Parse a message; a malformed answer becomes an error, so that its request does not wait for the time limit.

    Half a surrogate pair and bytes that are not UTF-8 are replaced if the message is small. Raise ``ValueError``.
    """
    is_small = len(row) <= MAX_SMALL
    try:
        return _validate(row)
    except ValueError:
        pass
    try:
        value = json.loads(row.decode(errors="replace")) if is_small else from_json(row)
        if is_small:  # a large one would block the interpreter for too long
            with suppress(ValueError):
                return _validate(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    match value:
        case {"id": int() | str() as id, **rest} if "method" not in rest:
            return JSONRPCError(jsonrpc="2.0", id=id, error=ErrorData(code=PARSE_ERROR, message=WRONG_ANSWER))
    raise ValueError("not a message")


def _validate(row: bytes) -> JSONRPCMessage:
    message: JSONRPCMessage = jsonrpc_message_adapter.validate_json(row, by_name=False)
    return message
