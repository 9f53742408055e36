"""Reads standard input, either line by line or as a whole. The whole input becomes a part of the query."""

from __future__ import annotations

import math
import os
import select
import stat
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import trio

from chain.concurrency.threads import Threads
from chain.errors import UserError
from chain.lines.parse import MAX_LINE
from chain.text.wording import STDIN_BEGIN, STDIN_END
from cli.input.splitter import TEXT_BYTES, RawLine, Splitter, utf8_text

_THREADS = Threads("input")

_CHUNK = 65_536

FIRST_BYTE_S = 3.0
"""Seconds to wait for the first byte: the parent process may have left a pipe open without ever writing to it."""

NO_INPUT_YET = (
    f"nothing came on standard input within {FIRST_BYTE_S:.0f} s, so the run starts without it; --stdin waits for it, "
    "--no-stdin ignores it"
)
STILL_OPEN = "waiting for the end of standard input before the run starts; --no-stdin ignores it"
NOT_UTF_8 = "standard input is not UTF-8; its invalid bytes were replaced"


class Lines:
    """The lines of a file descriptor, read in a thread. A line is cut after ``max_bytes`` bytes.

    ``read_before`` is the start of the input, if it was read already.
    """

    def __init__(self, fd: int, max_bytes: int = TEXT_BYTES, *, read_before: bytes = b"") -> None:
        self._fd = fd
        self._splitter = Splitter(max_bytes)
        self._lines = deque(self._splitter.add(read_before))
        self._at_end = False

    async def next(self) -> RawLine | None:
        """Return the next line; ``None`` at the end of the input. The last line may have no line end."""
        while not self._lines and not self._at_end:
            chunk = b""
            with suppress(OSError):  # a closed or broken input counts as ended
                chunk = await _THREADS.run(partial(_read_chunk, self._fd), abandon_on_cancel=True)
            self._lines.extend(self._splitter.add(chunk) if chunk else self._splitter.end())
            self._at_end = not chunk
        return self._lines.popleft() if self._lines else None

    def unread(self) -> list[RawLine]:
        """Return the lines that were read from the descriptor but not yet returned by ``next``. Omit blank lines."""
        return [line for line in self._lines if line.text.strip()]


def _read_chunk(fd: int) -> bytes:
    """Wait for the next bytes and return them; empty at the end of the input. Raise ``OSError`` on failure."""
    while True:
        try:
            return os.read(fd, _CHUNK)
        except BlockingIOError:
            select.select([fd], [], [])


@dataclass(frozen=True, slots=True)
class PipedInput:
    """Piped input: its text without trailing line ends, and whether it had bytes that were not UTF-8."""

    text: str
    has_invalid_bytes: bool = False


def is_piped(fd: int) -> bool:
    """Return whether a descriptor may have piped input: it is a pipe, socket or file, not a device."""
    try:
        return not stat.S_ISCHR(os.fstat(fd).st_mode)
    except OSError:
        return False


async def read_piped(fd: int, *, first_byte_s: float, on_wait: Callable[[], None]) -> PipedInput | None:
    """Return the whole input; ``None`` if no byte comes within ``first_byte_s`` seconds.

    Call ``on_wait`` once if no byte comes for ``FIRST_BYTE_S`` seconds, also amid the input. Raise ``UserError`` if the
    input cannot be read or is too long.
    """
    if first_byte_s < math.inf and not await _is_readable_within(fd, first_byte_s):
        return None
    read = bytearray()
    has_warned = False
    while True:
        if not has_warned and not await _is_readable_within(fd, FIRST_BYTE_S):
            on_wait()
            has_warned = True
        # In a thread, since files can be slow, and another process may read the bytes first.
        try:
            chunk = await _THREADS.run(partial(_read_chunk, fd), abandon_on_cancel=True)
        except OSError as error:
            raise UserError(f"standard input cannot be read: {error.strerror}; --no-stdin ignores it") from None
        if not chunk:
            text, has_invalid_bytes = utf8_text(bytes(read))
            return PipedInput(text.rstrip("\r\n"), has_invalid_bytes)
        read += chunk
        if len(read) > TEXT_BYTES:
            raise UserError(
                f"standard input has more than the {MAX_LINE:,} characters that a query may have; put it in a file "
                "and name that file in the query, or ignore it with --no-stdin"
            )


def append_piped(query: str | None, piped: PipedInput) -> str:
    """Return the query with the piped input as a block, or the input alone if there is no query.

    Raise ``UserError`` if the result is too long.
    """
    if query is None:
        whole = piped.text
    elif piped.text.strip():
        whole = f"{query}{STDIN_BEGIN}{piped.text}{STDIN_END}"
    else:
        return query
    if len(whole) > MAX_LINE:
        raise UserError(
            f"the query has {len(whole):,} characters with standard input, and the limit is {MAX_LINE:,}; "
            "put the input in a file and name that file in the query"
        )
    return whole


async def _is_readable_within(fd: int, seconds: float) -> bool:
    # ``wait_readable`` fails for files, which can be read immediately.
    with trio.move_on_after(seconds) as waiting, suppress(OSError):
        await trio.lowlevel.wait_readable(fd)
    return not waiting.cancelled_caught
