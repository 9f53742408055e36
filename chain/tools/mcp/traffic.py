"""Limits on the messages of one server, so that they do not delay key presses and other tasks.

A connection whose server exceeds a limit is ended, and a sentence says which limit. A large message is parsed in a
worker thread. The parser does not release the interpreter lock, so the values of a message are counted first.
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

MAX_MESSAGE_BYTES, MAX_INCOMPLETE_BYTES = 8 * 1024 * 1024, 64 * 1024 * 1024
"""The most bytes of one message, and of all incomplete messages of a connection.

A message can contain the largest image that models accept. Parsing a message takes 20 ms, and four times its size in
memory.
"""
MAX_SMALL = 256 * 1024
"""The most bytes of a message that is parsed in the trio thread, and of any message without its result."""
MAX_MESSAGE_VALUES = 50_000
"""The most commas, opening brackets and strings in a message. Parsing this many takes 20 ms and 7 MB."""
MAX_PER_S, READ_COST, VALUE_COST = 16 * 1024 * 1024, 8_192, 64
"""The bytes that a server may send in a second, and the bytes that one read and one value count as."""
MAX_MESSAGES_PER_S = 2_000
"""The most messages in a second: more than any server needs to report its progress."""
LARGE = "chain/large"
"""The key of the object that replaces a large result in a message to the client."""
WRONG_ANSWER = "The server's answer is not a valid result."

_THREADS = Threads("mcp messages")
_SIGNS = (b",", b"[", b"{")


class OverBoundError(ToolError):
    """An error that ends a connection, because the server exceeded a limit."""


@dataclass(slots=True)
class OpenRequest:
    """A request that waits for its answer, with facts about the answer that the client does not report.

    ``fault`` says what is wrong with the HTTP response; empty if nothing is.
    """

    fault: str = ""
    is_session_unknown: bool = False
    """Whether the server may no longer know the session."""
    large: dict[str, Any] | None = None
    """The result, if it was too large to be parsed in the trio thread. The client gets ``{LARGE: True}`` instead."""


class Traffic:
    """The state of one connection to a server, and its budget of received bytes per second."""

    def __init__(self) -> None:
        self.gone = trio.Event()
        self.fault = self.closed_reason = self.http_fault = ""
        """Sentences on the exceeded limit, the closed stream and the latest fault over HTTP; empty if there is none."""
        self.open_requests: dict[Any, OpenRequest] = {}
        """The requests that wait for an answer, by id."""
        self.received = 0
        """The total bytes of the complete messages that the server has sent."""
        self.incomplete_bytes: dict[object, int] = {}
        """For each reader, the bytes of its incomplete message."""
        self._since, self._cost, self._rows = -math.inf, 0, 0
        self._parsing = trio.Lock()

    def fail_limit(self, sentence: str) -> NoReturn:
        """End the connection because of an exceeded limit. Raise ``OverBoundError`` with ``sentence``."""
        self.fault = self.fault or sentence
        self.gone.set()
        raise OverBoundError(sentence)

    async def spend(self, cost: int) -> None:
        """Count a cost in bytes. If the budget of the current second is used up, wait for the next second."""
        await trio.lowlevel.checkpoint()
        if (now := trio.current_time()) >= self._since + 1:
            self._since, self._cost, self._rows = now, 0, 0
        self._cost += cost
        if self._cost > MAX_PER_S:
            await trio.sleep_until(self._since + 1)

    async def record_read(self, holder: object, size: int, cost: int) -> None:
        """Count the cost of a read, and record that ``holder``, its reader, now stores ``size`` bytes.

        Raise ``OverBoundError`` if the stored bytes exceed a limit.
        """
        self.incomplete_bytes[holder] = size
        if size > MAX_MESSAGE_BYTES or sum(self.incomplete_bytes.values()) > MAX_INCOMPLETE_BYTES:
            self.fail_limit(
                f"it sent a message of more than {MAX_MESSAGE_BYTES:,} bytes, or {MAX_INCOMPLETE_BYTES:,} at once"
            )
        await self.spend(cost)

    async def count_message(self, row: bytes | bytearray) -> bool:
        """Count a message. Return whether it is small enough to be parsed in the trio thread.

        Raise ``OverBoundError`` if there are too many messages in a second.
        """
        self.received += len(row)
        is_small = len(row) <= MAX_SMALL
        await self.spend(VALUE_COST * sum(map(row.count, (*_SIGNS, b'"'))) if is_small else 0)
        self._rows += 1
        if self._rows > MAX_MESSAGES_PER_S:
            self.fail_limit(f"it sent more than {MAX_MESSAGES_PER_S:,} messages in a second")
        return is_small

    async def parse(self, row: bytes, id: object = None) -> JSONRPCMessage:
        """Parse a large message in a thread. A result is moved to the open request that it answers.

        ``id`` is the id of that request; ``None`` if the message contains it. Raise ``ValueError`` if the message is
        malformed, and ``OverBoundError`` if it has too many values or is a request.
        """
        async with self._parsing:  # one at a time, because of the memory
            if await _THREADS.run(partial(has_too_many_values, row)):
                self.fail_limit(f"it sent a message of more than {MAX_MESSAGE_VALUES:,} values")
            message = await _THREADS.run(partial(parse_message, row))
        if isinstance(message, JSONRPCResponse) and (request := self.open_requests.get(id or message.id)):
            request.large, message.result = message.result, {LARGE: True}
        if isinstance(message, JSONRPCNotification):
            message.params = None  # large parameters are of no use
        if isinstance(message, JSONRPCRequest):
            self.fail_limit(f"it sent a request of more than {MAX_SMALL:,} bytes")
        return message


def has_too_many_values(row: bytes) -> bool:
    """Return whether a message has more than ``MAX_MESSAGE_VALUES`` commas, opening brackets and strings."""
    plain = row.replace(b"\\\\", b"").replace(b'\\"', b"")
    if (quotes := plain.count(b'"')) > 2 * MAX_MESSAGE_VALUES:
        return True
    between = plain.split(b'"')[::2]  # the parts outside of strings
    return quotes // 2 + sum(part.count(sign) for part in between for sign in _SIGNS) > MAX_MESSAGE_VALUES


def parse_message(row: bytes) -> JSONRPCMessage:
    """Parse a message. Raise ``ValueError`` if it is malformed.

    A malformed answer to a request becomes an error message instead, so that the request does not wait for its time
    limit. In a small message, lone surrogates and bytes that are not UTF-8 are replaced.
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
