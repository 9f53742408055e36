"""A program in a pseudo-terminal, seen through a terminal emulator.

Tests type, and wait for a text or a condition of the screen. The test's deadline ends a wait. The failure then shows
the screen.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import select
import signal
import struct
import termios
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

import pyte

from .emulator import Emulator
from .program import gates, make_environ, start_program

XTERM = {"XTERM_VERSION": "XTerm(379)"}
"""The environment of a terminal that cuts its rows when it becomes narrower."""

TICK_S = 0.02
"""Seconds after which a condition is evaluated again without new output, since it may concern a file."""

_NOT_OF_PYTE = re.compile(
    # Sequences that pyte misreads: those with an unknown private mark, and control strings.
    rb"\x1b\[[<=>][0-?]*[ -/]*[@-~]|\x1b\[\?[0-9;]*m|\x1b[PX^_][^\x1b]*\x1b\\"
)
_UNFINISHED = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|[PX^_][^\x1b]*\x1b?)?\Z")
_MODES = {
    **{1: "cursor keys", 1000: "mouse", 1002: "mouse", 1003: "mouse", 1006: "mouse"},
    **{47: "alternate screen", 1049: "alternate screen", 2004: "bracketed paste"},
}
_CURSOR_SHOWN = 25
_PROMPT = re.compile(r"((?:[a-z][\w-]*-\d+ )?>|Q\d+\?) ")
_MENU_ROW = re.compile(r" {3,}/[a-z]+ ")

Condition: TypeAlias = "Callable[[Screen], object] | str"


class Screen:
    """A program in a terminal of its own, killed at the end of the block.

    ``env`` is added to the environment of ``environ``; the value ``None`` removes a variable.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        home: Path,
        rows: int = 30,
        columns: int = 100,
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
        reflows: bool = False,
    ) -> None:
        self.home = home
        self.raw = bytearray()
        self._emulator = Emulator(columns, rows, self.type, reflows=reflows)
        self._stream = pyte.ByteStream(self._emulator)
        self._rest = b""
        self._seen: list[str] | None = None
        self._is_over = False
        self._terminal, slave = os.openpty()
        try:
            self._set_size(rows, columns)
            self._before = termios.tcgetattr(slave)
            self.process = start_program(
                argv,
                terminal=os.ttyname(slave),
                stdin=slave,
                stdout=slave,
                stderr=slave,
                env=make_environ(home, {**({} if reflows else XTERM), **(env or {})}),
                cwd=cwd or home,
            )
        except BaseException:
            os.close(self._terminal)
            raise
        finally:
            os.close(slave)
        self._ended = os.pidfd_open(self.process.pid)
        os.set_blocking(self._terminal, False)

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    @property
    def display(self) -> list[str]:
        """The visible rows without trailing spaces."""
        if self._seen is None:
            self._seen = self._emulator.rows
        return self._seen

    @property
    def rows(self) -> list[str]:
        """The scrollback and the visible rows, without blank rows at the end."""
        rows = [*self._emulator.scrolled, *self.display]
        while rows and not rows[-1]:
            rows.pop()
        return rows

    @property
    def everything(self) -> str:
        """All rows as text."""
        return "\n".join(self.rows)

    @property
    def flat(self) -> str:
        """All rows joined by spaces, to find text that was wrapped at a space."""
        return " ".join(self.everything.split())

    def times(self, text: str) -> int:
        """Count a text on the screen, also where it is wrapped. Paths of different length wrap it elsewhere."""
        return "".join(self.everything.split()).count("".join(text.split()))

    @property
    def cursor(self) -> tuple[int, int]:
        """Row and column, from 0."""
        return self._emulator.cursor.y, self._emulator.cursor.x

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns."""
        return self._emulator.lines, self._emulator.columns

    def cells(self, row: int) -> list[tuple[str, Any]]:
        """Return the characters of a visible row with their styles."""
        return [(cell.data, cell) for cell in self._emulator.cells(row)]

    @property
    def has_ended(self) -> bool:
        """Whether the program has closed the terminal."""
        return self._is_over

    @property
    def editor(self) -> str | None:
        """The text after the prompt, without the menu of commands; ``None`` without a prompt."""
        found = self._below_prompt()
        if found is None:
            return None
        sign = self.prompt
        first = found[0].removeprefix(sign).removeprefix(" ")
        if first.startswith("/"):
            found = [row for row in found if not _MENU_ROW.match(row)]
        text = "\n".join([first, *(row.removeprefix(" " * (len(sign) + 1)) for row in found[1:-1])])
        # Blank rows at the end belong to the text down to the cursor.
        rows = max(1, self.cursor[0] - (len(self._used()) - len(found)) + 1)
        lines = text.split("\n")
        while len(lines) > rows and not lines[-1]:
            lines.pop()
        return "\n".join(lines)

    @property
    def prompt(self) -> str:
        """The prompt, such as ``>`` or ``Q1?``; empty without one."""
        found = _PROMPT.match(f"{(self._below_prompt() or [''])[0]} ")
        return "" if found is None else found[1]

    @property
    def menu(self) -> list[str]:
        """The rows of the menu of commands."""
        return [row for row in (self._below_prompt() or [])[1:-1] if _MENU_ROW.match(row)]

    @property
    def toolbar(self) -> str:
        """The last row below the prompt; empty without one."""
        found = self._below_prompt() or [""]
        return found[-1] if len(found) > 1 else ""

    def _below_prompt(self) -> list[str] | None:
        rows = self._used()
        start = next((n for n in range(len(rows) - 1, -1, -1) if _PROMPT.match(f"{rows[n]} ")), None)
        return None if start is None else rows[start:]

    def _used(self) -> list[str]:
        rows = self.display
        return rows[: next((n for n in range(len(rows), 0, -1) if rows[n - 1]), 0)]

    def until(self, condition: Condition) -> Screen:
        """Read until a condition is true or a text is in a row. Ignore incomplete redraws: they hide the cursor."""
        holds = condition if callable(condition) else lambda screen: condition in screen.everything
        with self._shown_with_failures(condition):
            while not ((self._is_over or not self._emulator.cursor.hidden) and holds(self)):
                assert not self._is_over, f"the program ended with {self.wait()}"
                self._read(TICK_S)
        return self

    def type(self, text: str | bytes) -> None:
        """Press keys. Read output meanwhile, so that neither side blocks the other."""
        left = text if isinstance(text, bytes) else text.encode()
        with self._shown_with_failures(text):
            while left and not self._is_over:
                _, can_write, _ = select.select([], [self._terminal], [], 0)
                if can_write:
                    with suppress(BlockingIOError):
                        left = left[os.write(self._terminal, left) :]
                else:
                    self._read(TICK_S)

    def open_gate(self, name: str) -> None:
        """Wait for the tool at a gate, and let it return."""
        path = gates(self.home) / name
        with self._shown_with_failures(name):
            while True:
                try:
                    gate = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
                except OSError as error:
                    if error.errno not in (errno.ENOENT, errno.ENXIO):
                        raise
                else:
                    with os.fdopen(gate, "w") as file:
                        file.write("opened")
                    return
                assert not self._is_over, "the program has ended"
                self._read(TICK_S)

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of the terminal, which sends SIGWINCH."""
        while self._read(0):
            pass
        self._emulator.resize(rows, columns)
        self._seen = None
        self._set_size(rows, columns)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the program."""
        self.process.send_signal(number)

    def hang_up(self) -> None:
        """Close the terminal."""
        self._is_over = True
        os.close(self._terminal)
        self._terminal = -1

    def wait(self, *, reads: bool = True) -> int:
        """Return the exit code, negative for a signal, after reading the remaining output if ``reads``."""
        with self._shown_with_failures("the end"):
            while reads and not self._is_over:
                self._read(TICK_S)
            select.select([self._ended], [], [])
        return self.process.wait()

    def close(self) -> None:
        """Kill the program and its process group if it still runs."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        for descriptor in (self._terminal, self._ended):
            if descriptor >= 0:
                os.close(descriptor)
        self._terminal = self._ended = -1
        self._is_over = True

    @property
    def is_cooked(self) -> bool:
        """Whether the terminal edits lines itself."""
        return bool(termios.tcgetattr(self._terminal)[3] & termios.ICANON)

    @property
    def sends_signals(self) -> bool:
        """Whether Ctrl-C is a signal and not a key."""
        return bool(termios.tcgetattr(self._terminal)[3] & termios.ISIG)

    @property
    def is_echoing(self) -> bool:
        """Whether the terminal echoes input."""
        return bool(termios.tcgetattr(self._terminal)[3] & termios.ECHO)

    @property
    def left_behind(self) -> list[str]:
        """The settings, modes, colours and partial row that the program has not restored for the shell, by name."""
        switched = {
            int(n): on == b"h" for ns, on in re.findall(rb"\x1b\[\?([0-9;]+)([hl])", self.raw) for n in ns.split(b";")
        }
        keys = re.findall(rb"\x1b\[>4;?([0-9]*)m", self.raw)[-1:]
        found = {
            "settings": termios.tcgetattr(self._terminal) != self._before,
            **{name: switched.get(number) for number, name in _MODES.items()},
            "a hidden cursor": not switched.get(_CURSOR_SHOWN, True),
            "modified keys": keys not in ([], [b""], [b"0"]),
            "colours": self._emulator.cursor.attrs != self._emulator.default_char,
            "margins": self._emulator.margins is not None,
            "a partial row": self.cursor[1] != 0,
        }
        return [name for name, is_left in found.items() if is_left]

    def _set_size(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _read(self, seconds: float) -> bool:
        """Wait up to this time for output, and read once. Return whether there was any."""
        if self._is_over:
            return False
        ready, _, _ = select.select([self._terminal, self._ended], [], [], seconds)
        if self._terminal not in ready:
            # The last output may have arrived between the two checks.
            if not ready or select.select([self._terminal], [], [], 0)[0]:
                return False
            self._is_over = True
            return False
        try:
            data = os.read(self._terminal, 65_536)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            data = b""
        self._is_over = not data
        self._show(data)
        return bool(data)

    def _show(self, data: bytes) -> None:
        self.raw += data
        data = self._rest + data
        unfinished = _UNFINISHED.search(data)
        end = unfinished.start() if unfinished else len(data)
        self._rest = data[end:]
        self._seen = None
        self._stream.feed(_NOT_OF_PYTE.sub(b"", data[:end]))

    @contextmanager
    def _shown_with_failures(self, wanted: object) -> Iterator[None]:
        """Add the screen to an exception, such as the deadline of the test."""
        try:
            yield
        except BaseException as error:
            rule = "-" * self._emulator.columns
            name = wanted if isinstance(wanted, str) else _source(wanted)
            state = f"cursor at {self.cursor}, exit code {self.process.poll()}"
            error.add_note(f"waiting for {name!r}\n{rule}\n{self.everything}\n{rule}\n{state}")
            raise


def _source(function: object) -> str:
    """Return the place of a condition in its file."""
    code = getattr(function, "__code__", None)
    return repr(function) if code is None else f"{function} at {Path(code.co_filename).name}:{code.co_firstlineno}"
