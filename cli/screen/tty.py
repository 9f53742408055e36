"""The terminal's settings: raw mode before the prompt appears, restored when the program ends.

A terminal in line mode echoes typed characters at the cursor, and delivers them only in whole lines. ``enter_raw_mode``
ends line mode before the slow imports, so that keys typed ahead reach the editor one by one.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import select
import signal
import socket
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

_RESET = b"\x1b[?2004l\x1b[?25h\x1b[0m"
"""Turns bracketed paste off, shows the cursor, and resets the colour."""

_MODIFIED_KEYS, _PLAIN_KEYS = b"\x1b[>4;1m", b"\x1b[>4m"
"""Turn xterm's modifyOtherKeys on and off, in the mode that does not change keys with a code of their own, such as
Ctrl-C. kitty's protocol is not used: it changes those keys too, depending on the keyboard's layout and locks."""

_REPORTERS = ("foot", "mintty", "tmux", "xterm-ghostty")
_REPORTING_PROGRAMS = ("WezTerm", "iTerm.app", "ghostty", "mintty")

_COERCED = ("C.UTF-8", "C.utf8", "UTF-8")
"""Values to which Python itself sets LC_CTYPE in the C locale. So they say nothing about the terminal."""

WRITE_S = 1.0
"""Seconds that ``write_briefly`` may block."""

_reports_modified_keys = False
_is_lent = False
_before: list[Any] | None = None
_in_use: list[Any] | None = None
"""The settings of the terminal for the prompt; ``None`` before the prompt is shown."""
_reset = _RESET


def enter_raw_mode() -> bytes:
    """Turn echo and line editing off until ``restore``, which also runs when the program exits.

    Return the bytes that were typed before the call.
    """
    global _before, _reset
    with suppress(termios.error):
        settings = termios.tcgetattr(0)
        if _before is None:
            _before, _reset = settings, _RESET
            atexit.register(restore)
        termios.tcsetattr(0, termios.TCSANOW, _without(settings, termios.ECHO | termios.ICANON, termios.ICRNL))
    return read_typed_ahead()


def save_settings() -> None:
    """Save the terminal's current settings as the settings of the prompt."""
    global _in_use
    with suppress(termios.error):
        _in_use = termios.tcgetattr(0)


def reapply_settings() -> None:
    """Set the terminal to the saved settings of the prompt, after a shell or another program may have changed them."""
    if _before is not None and _in_use is not None:
        with suppress(termios.error):
            termios.tcsetattr(0, termios.TCSANOW, _in_use)
        if _reports_modified_keys:
            write_briefly(_MODIFIED_KEYS)


@contextmanager
def echo_off() -> Iterator[None]:
    """Turn echo off inside the block, unless the program is in the background. An exit inside the block restores it."""
    global _before, _reset
    with suppress(termios.error):
        if _before is None and not _is_in_background(0):
            _before, _reset = termios.tcgetattr(0), b""
            atexit.register(restore)
    if _before is None:
        yield
        return
    shown, hidden = _before, _without(_before, termios.ECHO)

    def restore_and_raise(number: int, frame: FrameType | None) -> None:
        """Restore the terminal, then let the signal ``number`` suspend or end the program."""
        termios.tcsetattr(0, termios.TCSANOW, shown)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
        # The program continues here, perhaps in the background.
        signal.signal(number, restore_and_raise)
        if not _is_in_background(0):
            termios.tcsetattr(0, termios.TCSANOW, hidden)

    handlers = {number: signal.signal(number, restore_and_raise) for number in (signal.SIGTSTP, signal.SIGQUIT)}
    try:
        termios.tcsetattr(0, termios.TCSANOW, hidden)
        yield
    finally:
        restore()
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def watch_suspension() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether the program was suspended since the previous call of that function.

    Only the main thread may use this context manager.
    """
    returns: list[int] = []

    def ask() -> bool:
        has_returned = bool(returns)
        returns.clear()
        return has_returned

    before = signal.signal(signal.SIGCONT, lambda number, _: returns.append(number))
    try:
        yield ask
    finally:
        signal.signal(signal.SIGCONT, before)


@contextmanager
def interruptible_input() -> Iterator[Callable[[], None]]:
    """Yield a function that waits for input, and runs signal handlers meanwhile. Only the main thread may use it.

    If a signal arrives just before a blocking read, its handler runs only after a key is pressed. The yielded function
    also waits for the interpreter's wakeup descriptor, so that the handler runs at once.
    """
    woken, wakes = socket.socketpair()
    with woken, wakes:
        wakes.setblocking(False)
        before = signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)

        def wait() -> None:
            while 0 not in select.select([0, woken.fileno()], [], [])[0]:
                woken.recv(4096)

        try:
            yield wait
        finally:
            signal.set_wakeup_fd(before)


@contextmanager
def line_mode_off() -> Iterator[Callable[[], bytes]]:
    """Turn echo and line editing off inside the block.

    Yield a function that returns the bytes typed since its previous call, also those of unfinished lines.
    """
    settings = None
    with suppress(termios.error):
        settings = termios.tcgetattr(0)
        termios.tcsetattr(0, termios.TCSANOW, _without(settings, termios.ECHO | termios.ICANON))
    try:
        yield read_typed_ahead
    finally:
        with suppress(termios.error):
            if settings is not None:
                termios.tcsetattr(0, termios.TCSANOW, settings)


def _without(settings: list[Any], local: int, input: int = 0) -> list[Any]:
    return [settings[0] & ~input, *settings[1:3], settings[3] & ~local, *settings[4:]]


def read_typed_ahead() -> bytes:
    """Return the typed bytes that were not read yet; empty if there are none. In line mode, return at most one line."""
    with suppress(OSError):
        if waiting := int.from_bytes(fcntl.ioctl(0, termios.FIONREAD, bytes(4)), sys.byteorder):
            return os.read(0, waiting).replace(b"\n", b"\r")
    return b""


def restore() -> None:
    """Restore the terminal's settings from before ``enter_raw_mode`` or ``echo_off``, if one of them was called."""
    global _before
    if _before is None:
        return
    settings, _before = _before, None
    if not _is_in_background(0):
        with suppress(termios.error):
            termios.tcsetattr(0, termios.TCSANOW, settings)
    write_briefly(_reset)


def save_title() -> str:
    """Return the sequence that makes a terminal save its window's title. ``restore`` then restores the title."""
    global _reset
    _reset += b"\x1b[23;2t"
    return "\x1b[22;2t"


def _is_in_background(fd: int) -> bool:
    """Return whether the program is in the background, so that the shell controls the terminal's settings."""
    try:
        return os.tcgetpgrp(fd) != os.getpgrp()
    except OSError:
        return False  # it controls no session, so no shell has it


def is_shell_in_control(fd: int) -> bool:
    """Return whether a shell controls the terminal, or whether echo was turned on again since ``echo_off``."""
    if _is_in_background(fd):
        return True
    try:
        return _before is not None and bool(termios.tcgetattr(fd)[3] & termios.ECHO)
    except termios.error:
        return False


@contextmanager
def signal_on_ctrl_c() -> Iterator[None]:
    """Let Ctrl-C send SIGINT inside the block, in which the thread that reads keys is blocked.

    The other signal keys stay off, and keys typed ahead are not lost.
    """
    if _before is None or _in_use is None or _is_lent:
        yield
        return
    settings = [*_in_use[:3], _in_use[3] | termios.ISIG | termios.NOFLSH, *_in_use[4:6], [*_in_use[6]]]
    settings[6][termios.VQUIT] = settings[6][termios.VSUSP] = b"\0"
    with suppress(termios.error):
        termios.tcsetattr(0, termios.TCSANOW, settings)
    try:
        yield
    finally:
        if _before is not None:
            with suppress(termios.error):
                termios.tcsetattr(0, termios.TCSANOW, _in_use)


def stop_job() -> None:
    """Suspend the whole job, as Ctrl-Z does, and return when the job continues.

    Only the main thread, which receives the signal, may call this function.
    """
    os.kill(0, signal.SIGTSTP)


@contextmanager
def lend_terminal(settle: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Restore the terminal's original settings inside the block, in which another program uses the terminal.

    ``settle`` is called at the end. If the caller is not the main thread, ``settle`` must wait until the main thread
    has handled all signals that have arrived.
    """
    global _is_lent
    _is_lent = True
    if _reports_modified_keys:
        write_briefly(_PLAIN_KEYS)
    if _before is not None:
        termios.tcsetattr(0, termios.TCSANOW, _before)
    try:
        yield
    finally:
        reapply_settings()
        settle()
        _is_lent = False


def is_lent() -> bool:
    """Return whether the terminal is lent to another program. Ctrl-C is then meant for that program."""
    return _is_lent


def ask_for_modified_keys(environ: Mapping[str, str]) -> None:
    """Turn on reports of Shift-Enter until ``restore``, if the terminal is known to support them."""
    global _reports_modified_keys, _reset
    term, program = environ.get("TERM", ""), environ.get("TERM_PROGRAM", "")
    is_known = "XTERM_VERSION" in environ or term.startswith(_REPORTERS) or program in _REPORTING_PROGRAMS
    if _before is not None and is_known and not _reports_modified_keys:
        _reports_modified_keys, _reset = True, _PLAIN_KEYS + _reset
        write_briefly(_MODIFIED_KEYS)


def write_briefly(data: bytes) -> None:
    """Write to the terminal for at most ``WRITE_S``, then drop the rest: an exit must not wait for the terminal."""
    deadline = time.monotonic() + WRITE_S
    left = memoryview(data)
    with suppress(OSError):
        os.set_blocking(1, False)
        while left and time.monotonic() < deadline:
            try:
                left = left[os.write(1, left) :]
            except BlockingIOError:
                select.select([], [1], [], max(0.0, deadline - time.monotonic()))
    with suppress(OSError):
        os.set_blocking(1, True)


def size(fd: int = 1) -> tuple[int, int]:
    """Return the columns and rows of the terminal, or 80 and 24 if its size is unknown."""
    try:
        columns, rows = os.get_terminal_size(fd)
    except OSError:
        return 80, 24
    return columns or 80, rows or 24


def is_one_terminal(one: int, other: int) -> bool:
    """Return whether two descriptors refer to the same terminal."""
    return os.isatty(one) and os.isatty(other) and os.path.samestat(os.fstat(one), os.fstat(other))


def is_dumb(environ: Mapping[str, str]) -> bool:
    """Return whether ``$TERM`` says that the terminal can only show rows."""
    return environ.get("TERM", "").lower() in ("", "dumb", "unknown")


def is_utf8(environ: Mapping[str, str]) -> bool:
    """Return whether the locale says that the terminal shows UTF-8; true without a locale."""
    locale = next((value for name in ("LC_ALL", "LC_CTYPE", "LANG") if (value := environ.get(name))), "UTF-8")
    if not environ.get("LC_ALL") and locale in _COERCED:
        locale = environ.get("LANG") or locale
    return locale.lower().replace("-", "").rpartition(".")[2].partition("@")[0] == "utf8"
