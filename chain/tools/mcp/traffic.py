"""What one connection to a server may cost, whatever that server does, so that keys and other tasks go on.

Over a bound the connection ends with a sentence. A large message is parsed in a worker thread. The parser holds the
interpreter meanwhile, so the values of a message are counted first.
"""

from __future__ import annotations

import math
import re
from functools import partial
from typing import NoReturn

import trio
from mcp_types import JSONRPCMessage, JSONRPCNotification, JSONRPCRequest, jsonrpc_message_adapter

from chain.errors import ToolError
from chain.threads import Threads

MAX_ROW, MAX_HELD = 8 * 1024 * 1024, 64 * 1024 * 1024
"""Bytes of a message, as of a picture of the largest size that models take, and of all that have not arrived whole.

Parsing a message takes 20 ms, and four times its size.
"""
MAX_SMALL = 256 * 1024
"""Bytes of a message that is parsed in the trio thread, and of all messages but results."""
MAX_VALUES = 50_000
"""Commas, opening brackets and texts of a message: parsing so many takes 20 ms, and 7 MB."""
MAX_PER_S, READ_COST, VALUE_COST = 16 * 1024 * 1024, 8_192, 64
"""Bytes that are read in a second, before the rest waits; a read and a value take as long as so many bytes."""
MAX_ROWS = 2_000
"""Messages in a second: more than any that reports its progress, few enough that everything else goes on."""

_THREADS = Threads("mcp messages")
_SIGNS = (b",", b"[", b"{", b'"')
_BETWEEN = re.compile(rb'[^"\[{,]{0,65536}+(["\[{,]?)')
_IN_TEXT = re.compile(rb'(?:[^"\\]{1,512}+|\\.?){0,512}+("?)', re.DOTALL)
"""Parts of a message that are matched in some milliseconds: ``re`` holds the interpreter."""


class OverBoundError(ToolError):
    """The connection has ended, since the server went over a bound."""


class Traffic:
    """What arrives by one connection. ``gone`` is set when it has ended, and ``fault`` says why if known."""

    def __init__(self) -> None:
        self.gone = trio.Event()
        self.fault = ""
        self.received = 0
        """Bytes of whole messages."""
        self.held: dict[object, int] = {}
        """Bytes of messages that are not whole, by who has them."""
        self._since, self._cost, self._rows = -math.inf, 0, 0
        self._parsing = trio.Lock()

    def exceed(self, what: str) -> NoReturn:
        """End the connection: the server did ``what`` it may not. Raises ``OverBoundError``."""
        self.fault = self.fault or what
        self.gone.set()
        raise OverBoundError(what)

    async def spend(self, cost: int, *, rows: int = 0) -> None:
        """Count bytes that were read, or what takes as long, and messages; wait if it was too much for this second.

        Raises ``OverBoundError``.
        """
        await trio.lowlevel.checkpoint()
        if (now := trio.current_time()) >= self._since + 1:
            self._since, self._cost, self._rows = now, 0, 0
        self._cost += cost
        self._rows += rows
        if self._rows > MAX_ROWS:
            self.exceed(f"it sent more than {MAX_ROWS:,} messages in a second")
        if self._cost > MAX_PER_S:
            await trio.sleep_until(self._since + 1)

    async def hold(self, holder: object, size: int, cost: int) -> None:
        """Spend the cost of a read, and note how many bytes the reader has now. Raises ``OverBoundError``."""
        self.held[holder] = size
        if size > MAX_ROW or sum(self.held.values()) > MAX_HELD:
            self.exceed(f"it sent a message of more than {MAX_ROW:,} bytes, or {MAX_HELD:,} at once")
        await self.spend(cost)

    async def admits(self, row: bytes | bytearray) -> bool:
        """Count a message. Whether it may be parsed in the trio thread. Raises ``OverBoundError``."""
        self.received += len(row)
        is_small = len(row) <= MAX_SMALL
        await self.spend(VALUE_COST * sum(map(row.count, _SIGNS)) if is_small else 0, rows=1)
        return is_small

    async def parse(self, row: bytes) -> JSONRPCMessage:
        """Parse a message that is large. Raises ``ValueError`` for what is none, and ``OverBoundError``."""
        async with self._parsing:  # one at a time: it takes memory
            if await _THREADS.run(partial(has_too_many_values, row)):
                self.exceed(f"it sent a message of more than {MAX_VALUES:,} values")
            message = await _THREADS.run(partial(parsed, row))
        if isinstance(message, JSONRPCNotification):
            message.params = None  # none of them has much that is of use
        if isinstance(message, JSONRPCRequest):
            self.exceed(f"it sent a request of more than {MAX_SMALL:,} bytes")
        return message


def has_too_many_values(row: bytes) -> bool:
    """Whether a message has more than ``MAX_VALUES`` commas, opening brackets and texts."""
    if sum(map(row.count, _SIGNS)) <= MAX_VALUES:  # with those inside of texts
        return False
    at, values, is_text = 0, 0, False
    while at < len(row) and values <= MAX_VALUES:
        found = (_IN_TEXT if is_text else _BETWEEN).match(row, at)
        assert found is not None
        at = found.end()
        values += found[1] != b"" and not is_text
        is_text ^= found[1] == b'"'
    return values > MAX_VALUES


def parsed(row: bytes) -> JSONRPCMessage:
    """Parse a message. Raises ``ValueError``."""
    message: JSONRPCMessage = jsonrpc_message_adapter.validate_json(row, by_name=False)
    return message
