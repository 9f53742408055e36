"""The terminal's own settings: quiet before the prompt is up, and as they were when the program is gone.

Until the prompt is up the terminal echoes what is typed wherever the cursor is, and keeps it until a line is whole.
``hush`` ends that before the slow imports, so that keys typed ahead come to the editor one by one.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import select
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

_SANE = b"\x1b[?2004l\x1b[?25h\x1b[0m"
"""No bracketed paste, the cursor visible, no colour."""

_COERCED = ("C.UTF-8", "C.utf8", "UTF-8")
"""What Python itself puts into LC_CTYPE when it is started in the C locale, whatever the terminal makes of it."""

SAYING_S = 1.0
"""For the last words at a terminal."""

_before: list[Any] | None = None


def hush(fd: int = 0) -> bytes:
    """Stop echo, line editing and the change of Enter into a newline, until ``restore``, which an exit calls too.

    Returns what was typed before, with Enter as it would come from now on.
    """
    global _before
    with suppress(termios.error):
        settings = termios.tcgetattr(fd)
        if _before is None:
            _before = [*settings[:6], list(settings[6])]
            atexit.register(restore, fd)
        settings[0] &= ~termios.ICRNL
        settings[3] &= ~(termios.ECHO | termios.ICANON)
        termios.tcsetattr(fd, termios.TCSANOW, settings)
    with suppress(OSError):
        waiting = int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), sys.byteorder)
        if waiting:
            return os.read(fd, waiting).replace(b"\n", b"\r")
    return b""


def restore(fd: int = 0) -> None:
    """Make the terminal what it was before ``hush``, whatever has happened to it since."""
    global _before
    if _before is None:
        return
    settings, _before = _before, None
    with suppress(termios.error):
        termios.tcsetattr(fd, termios.TCSANOW, settings)
    say(_SANE)


@contextmanager
def as_before(fd: int = 0) -> Iterator[None]:
    """The terminal as it was before ``hush`` for a while, such as for the shell when the program is suspended."""
    now = termios.tcgetattr(fd)
    if _before is not None:
        termios.tcsetattr(fd, termios.TCSANOW, _before)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSANOW, now)


def say(data: bytes, fd: int = 1) -> None:
    """Write to the terminal, for a moment only: it may not be read any more, and an exit does not wait for that."""
    deadline = time.monotonic() + SAYING_S
    left = memoryview(data)
    with suppress(OSError):
        os.set_blocking(fd, False)
        while left and time.monotonic() < deadline:
            try:
                left = left[os.write(fd, left) :]
            except BlockingIOError:
                select.select([], [fd], [], max(0.0, deadline - time.monotonic()))
    with suppress(OSError):
        os.set_blocking(fd, True)


def size(fd: int = 1) -> tuple[int, int]:
    """Columns and rows of the terminal; 80 and 24 where it does not tell them."""
    try:
        columns, rows = os.get_terminal_size(fd)
    except OSError:
        return 80, 24
    return columns or 80, rows or 24


def is_dumb(environ: Mapping[str, str]) -> bool:
    """Whether the terminal can do nothing but show rows."""
    return environ.get("TERM", "").lower() in ("", "dumb", "unknown")


def is_utf8(environ: Mapping[str, str]) -> bool:
    """Whether the terminal shows UTF-8, by the locale that it was started with; where none is named, it does."""
    locale = next((value for name in ("LC_ALL", "LC_CTYPE", "LANG") if (value := environ.get(name))), "UTF-8")
    if not environ.get("LC_ALL") and locale in _COERCED:
        locale = environ.get("LANG") or locale
    return locale.lower().replace("-", "").rpartition(".")[2].partition("@")[0] == "utf8"
