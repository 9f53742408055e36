"""What one connection to a server may cost, whatever that server does, so that keys and other tasks go on.

Everything that a server sends is counted here, on either transport. Over a bound the connection ends with a sentence.
A large message is parsed in a worker thread. The parser holds the interpreter meanwhile, so the number of values of a
message is bounded before it is parsed.
"""

from __future__ import annotations

import math
import re
from functools import partial
from typing import NoReturn

import trio
from mcp_types import (
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)

from chain.errors import ToolError
from chain.threads import Threads

MAX_ROW = 8 * 1024 * 1024
"""Bytes of a message: a picture of the largest size that models take. Parsing one takes 20 ms, and 40 MB at most."""
MAX_HELD = 64 * 1024 * 1024
"""Bytes of messages that have not arrived completely: an HTTP server can send several at once."""
MAX_SMALL = 256 * 1024
"""Bytes of a message that is parsed in the trio thread."""
MAX_MARKS = 75_000
"""Commas, opening brackets and texts of a message: parsing so many takes 30 ms, and 10 MB."""
MAX_PER_S = 16 * 1024 * 1024
"""Bytes that are read in a second. The rest waits."""
READ_COST, MARK_COST = 8_192, 64
"""What a read of any size and a mark count as, in bytes: about the same time."""
MAX_ROWS = 2_000
"""Messages in a second: more than any that reports its progress, few enough that everything else goes on."""
MAX_ERROR = 10_000
"""Characters of the error in a large message."""
MAX_OPEN = 32
"""Requests of a server that have no answer yet, or whose answer it has not read."""

_THREADS = Threads("mcp messages")
_MARK = re.compile(rb'[\[{,"]')
_IN_TEXT = re.compile(rb'[^"\\]{0,65536}+(?:\\.[^"\\]{0,512}+){0,2048}+', re.DOTALL)
"""A part of a text that is matched in some milliseconds: ``re`` holds the interpreter."""


class OverBoundError(ToolError):
    """The connection has ended, since the server went over a bound."""


class Traffic:
    """The messages of one connection, counted. ``gone`` is set when it has ended, and ``fault`` says why if known."""

    def __init__(self) -> None:
        self.gone = trio.Event()
        self.fault = ""
        self.received = 0
        """Bytes of complete messages."""
        self._held: dict[object, int] = {}
        self._open: set[str] = set()
        self._since, self._cost, self._rows = -math.inf, 0, 0
        self._parsing = trio.Lock()

    def exceed(self, what: str) -> NoReturn:
        """End the connection: the server did ``what`` it may not. Raises ``OverBoundError``."""
        self.fault = self.fault or what
        self.gone.set()
        raise OverBoundError(what)

    async def spend(self, cost: int) -> None:
        """Count bytes that were read, or what takes as long; wait if that was too much for this second."""
        await trio.lowlevel.checkpoint()
        self._renew()
        self._cost += cost
        if self._cost > MAX_PER_S:
            await trio.sleep_until(self._since + 1)

    def hold(self, holder: object, size: int) -> None:
        """Note how many bytes of an incomplete message somebody has. Raises ``OverBoundError``."""
        self._held[holder] = size
        if size > MAX_ROW:
            self.exceed(f"it sent a message of more than {MAX_ROW:,} bytes")
        if sum(self._held.values()) > MAX_HELD:
            self.exceed(f"it sent messages of more than {MAX_HELD:,} bytes at once")

    def release(self, holder: object) -> None:
        """Forget what somebody had."""
        self._held.pop(holder, None)

    def count_row(self) -> None:
        """Count a message, or what should be one. Raises ``OverBoundError``."""
        self._renew()
        self._rows += 1
        if self._rows > MAX_ROWS:
            self.exceed(f"it sent more than {MAX_ROWS:,} messages in a second")

    def count_open(self, message: JSONRPCMessage) -> None:
        """Count the requests that are open, by what arrived. Raises ``OverBoundError``."""
        if isinstance(message, JSONRPCRequest):
            if (id := str(message.id)) in self._open or len(self._open) >= MAX_OPEN:
                self.exceed(f"it has more than {MAX_OPEN} requests without an answer, or two with one id")
            self._open.add(id)
        elif isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
            self._open.discard(str((message.params or {}).get("requestId")))

    def count_answer(self, message: JSONRPCMessage) -> None:
        """Note that a message was written: a request of the server may have its answer."""
        if isinstance(message, JSONRPCResponse | JSONRPCError):
            self._open.discard(str(message.id))

    async def admits(self, row: bytes) -> bool:
        """Whether a message is small enough to be parsed in the trio thread; if so, it is counted."""
        if len(row) > MAX_SMALL or (marks := raw_marks(row)) > MAX_MARKS:
            return False
        self.received += len(row)
        await self.spend(marks * MARK_COST)
        return True

    async def parse(self, row: bytes) -> JSONRPCMessage:
        """Parse a message. Raises ``ValueError`` for what is none, and ``OverBoundError``."""
        if await self.admits(row):
            return _parsed(row)
        self.received += len(row)
        async with self._parsing:  # one at a time: it may be four times as large when it is parsed
            message = await _THREADS.run(partial(_parsed_large, row))
        if message is None:
            self.exceed(f"it sent a message of more than {MAX_MARKS:,} values")
        if isinstance(message, JSONRPCRequest):
            self.exceed(f"it sent a request of more than {MAX_SMALL:,} bytes")
        return message

    def _renew(self) -> None:
        if (now := trio.current_time()) >= self._since + 1:
            self._since, self._cost, self._rows = now, 0, 0


def _parsed_large(row: bytes) -> JSONRPCMessage | None:
    """A message, if it has not too many values. Of a large one only a result is of use."""
    if count_marks(row) > MAX_MARKS:
        return None
    message = _parsed(row)
    if isinstance(message, JSONRPCNotification):
        message.params = None
    elif isinstance(message, JSONRPCError):
        message.error = ErrorData(code=message.error.code, message=message.error.message[:MAX_ERROR])
    return message


def raw_marks(row: bytes) -> int:
    """How many marks a message has, with those inside of texts."""
    return sum(map(row.count, (b",", b"[", b"{", b'"')))


def count_marks(row: bytes) -> int:
    """How many marks a message has; those inside of texts only count where all are no more than ``MAX_MARKS``.

    It stops counting above that.
    """
    if (marks := raw_marks(row)) <= MAX_MARKS:
        return marks
    marks = at = 0
    while at < len(row) and marks <= MAX_MARKS:
        if (found := _MARK.search(row, at, at + 65_536)) is None:
            at += 65_536
            continue
        at = found.end()
        marks += 1
        if found[0] == b'"':
            while (inside := _IN_TEXT.match(row, at)) and inside[0]:
                at = inside.end()
            at += 1
    return marks


def _parsed(row: bytes) -> JSONRPCMessage:
    message: JSONRPCMessage = jsonrpc_message_adapter.validate_json(row, by_name=False)
    return message
