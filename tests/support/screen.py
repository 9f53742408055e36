"""A program in a real pseudo-terminal, seen through a terminal emulator.

The tests type, wait until something is on the screen, and look. The deadline of the test ends a wait that lasts too
long, and the failure shows the whole screen.
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
from .program import environ, gates, start_program

XTERM = {"XTERM_VERSION": "XTerm(379)"}
"""What a terminal says of itself that cuts its rows off when it becomes narrower."""

TICK_S = 0.02
"""How often a condition is tried while nothing is written: it may look at a file, or at the terminal's settings."""

CHUNK = 65_536

_FOREIGN = re.compile(
    # What pyte takes for something else: control sequences with a private mark that it does not know (it would
    # underline for xterm's modifyOtherKeys), and strings for the terminal, whose text it would show.
    rb"\x1b\[[<=>][0-?]*[ -/]*[@-~]|\x1b\[\?[0-9;]*m|\x1b[PX^_][^\x1b]*\x1b\\"
)
_CUT_OFF = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|[PX^_][^\x1b]*\x1b?)?\Z")
_MODES = re.compile(rb"\x1b\[\?([0-9;]+)([hl])")
_MODES_OFF = {1: "cursor keys", 47: "alternate screen", 1000: "mouse", 1002: "mouse", 1003: "mouse", 1006: "mouse"} | {
    1049: "alternate screen",
    2004: "bracketed paste",
}
_CURSOR_SHOWN = 25
_PROMPT = re.compile(r"((?:[a-z][\w-]*-\d+ )?>|Q\d+\?) ")
_MENU_ROW = re.compile(r" {3,}/[a-z]+ ")


Condition: TypeAlias = "Callable[[Screen], object] | str"


class Screen:
    """A program that runs in a terminal of its own. A context manager: leaving it kills what still runs.

    ``env`` is put over the environment that ``environ`` gives; a value of ``None`` takes a variable out.
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
                env=environ(home, {**({} if reflows else XTERM), **(env or {})}),
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

    # ------------------------------------------------------------------------------------------------- what is seen

    @property
    def display(self) -> list[str]:
        """The visible rows, without the blanks at their ends."""
        if self._seen is None:
            self._seen = self._emulator.rows
        return self._seen

    @property
    def rows(self) -> list[str]:
        """The scrollback and the visible rows that are in use."""
        rows = [*self._emulator.scrolled, *self.display]
        while rows and not rows[-1]:
            rows.pop()
        return rows

    @property
    def everything(self) -> str:
        """All rows as text."""
        return "\n".join(self.rows)

    @property
    def joined(self) -> str:
        """All rows without their ends, to find what a row's end went through."""
        return "".join(self.rows)

    @property
    def flat(self) -> str:
        """All rows on one, to find what was wrapped at a space."""
        return " ".join(self.everything.split())

    def times(self, text: str) -> int:
        """How often a text is shown, wherever it was wrapped: the length of a path decides that, and so the machine."""
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
        """The signs of a visible row, each with how it looks."""
        return [(cell.data, cell) for cell in self._emulator.cells(row)]

    @property
    def has_ended(self) -> bool:
        """Whether the program has left the terminal: nothing more will be seen."""
        return self._is_over

    @property
    def editor(self) -> str | None:
        """The text at the prompt: from the last row with a ``>`` or ``Q1?`` to the toolbar. ``None`` without one.

        The menu below a command is no part of it.
        """
        found = self._below_prompt()
        if found is None:
            return None
        sign = self.prompt
        first = found[0].removeprefix(sign).removeprefix(" ")
        if first.startswith("/"):
            found = [row for row in found if not _MENU_ROW.match(row)]
        text = "\n".join([first, *(row.removeprefix(" " * (len(sign) + 1)) for row in found[1:-1])])
        # Blank rows at the end are of the text only as far as the cursor has come.
        rows = max(1, self.cursor[0] - (len(self._used()) - len(found)) + 1)
        return text if text.count("\n") < rows else _without_blank_rows(text, rows)

    @property
    def prompt(self) -> str:
        """The sign of the prompt: ``>``, or ``Q1?`` where an answer is expected; empty without a prompt."""
        found = _PROMPT.match(f"{(self._below_prompt() or [''])[0]} ")
        return "" if found is None else found[1]

    @property
    def menu(self) -> list[str]:
        """The rows of the menu below a command that is being typed."""
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

    # ------------------------------------------------------------------------------------------------- what is done

    def until(self, condition: Condition) -> Screen:
        """Read until the condition holds: a text that is to be seen or scrolled past, or a function of the screen.

        It must hold of a whole picture. A program that draws hides the cursor meanwhile, and what is read of the
        terminal may end in the middle of a drawing.
        """
        holds = condition if callable(condition) else lambda screen: condition in screen.everything
        with self._shown_with_failures(condition):
            while not ((self._is_over or not self._emulator.cursor.hidden) and holds(self)):
                assert not self._is_over, f"the program ended with {self.wait()}"
                self._read(TICK_S)
        return self

    def type(self, text: str | bytes) -> None:
        """Press keys. What is written meanwhile is read, so that neither side waits for the other."""
        left = text if isinstance(text, bytes) else text.encode()
        with self._shown_with_failures(text):
            while left and not self._is_over:
                _, can_write, _ = select.select([], [self._terminal], [], 0)
                if can_write:
                    with suppress(BlockingIOError):
                        left = left[os.write(self._terminal, left) :]
                else:
                    self._read(TICK_S)

    def open_gate(self, name: str, text: str = "opened") -> None:
        """Open the gate at which a tool waits, which then returns the text. Wait for a tool to come there first."""
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
                        file.write(text)
                    return
                assert not self._is_over, "the program has ended"
                self._read(TICK_S)

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of the terminal, of which the program is told by SIGWINCH."""
        while self._read(0):
            pass
        self._emulator.resize(rows, columns)
        self._seen = None
        self._set_size(rows, columns)

    def kill(self, number: signal.Signals) -> None:
        """Send a signal to the program."""
        self.process.send_signal(number)

    def hang_up(self) -> None:
        """Close the window: the terminal is gone, and nothing more is seen."""
        self._is_over = True
        os.close(self._terminal)
        self._terminal = -1

    def wait(self, *, reads: bool = True) -> int:
        """Wait for the exit code, which is negative for a signal; unless ``reads`` is false, read the rest before."""
        with self._shown_with_failures("the end"):
            while reads and not self._is_over:
                self._read(TICK_S)
            select.select([self._ended], [], [])
        return self.process.wait()

    def close(self) -> None:
        """Kill the program, with whatever is in its process group, if it still runs."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        for descriptor in (self._terminal, self._ended):
            if descriptor >= 0:
                os.close(descriptor)
        self._terminal = self._ended = -1
        self._is_over = True

    # ------------------------------------------------------------------------------------------------- its settings

    @property
    def is_cooked(self) -> bool:
        """Whether the terminal still edits lines itself, as it does for programs that do not ask for keys."""
        return bool(termios.tcgetattr(self._terminal)[3] & termios.ICANON)

    @property
    def sends_signals(self) -> bool:
        """Whether Ctrl-C at the terminal is a signal, and no key."""
        return bool(termios.tcgetattr(self._terminal)[3] & termios.ISIG)

    @property
    def echoes(self) -> bool:
        """Whether the terminal shows what is typed by itself."""
        return bool(termios.tcgetattr(self._terminal)[3] & termios.ECHO)

    def mode(self, number: int) -> bool | None:
        """Whether a private mode (25: the cursor is shown, 2004: bracketed paste) was turned on, or off, last."""
        found = [switch == b"h" for modes, switch in _MODES.findall(self.raw) if b"%d" % number in modes.split(b";")]
        return found[-1] if found else None

    @property
    def left_behind(self) -> list[str]:
        """What a shell would find changed after the program's end: settings, modes, colours, an unfinished row."""
        found = []
        now = termios.tcgetattr(self._terminal)
        names = ("input", "output", "control", "local", "input speed", "output speed", "characters")
        changed = [name for name, old, new in zip(names, self._before, now, strict=True) if old != new]
        found += [f"the terminal's {name} settings" for name in changed]
        found += [name for number, name in _MODES_OFF.items() if self.mode(number)]
        if self.mode(_CURSOR_SHOWN) is False:
            found.append("a hidden cursor")
        if re.findall(rb"\x1b\[>4;?([0-9]*)m", self.raw)[-1:] not in ([], [b""], [b"0"]):
            found.append("modified keys")
        if len(re.findall(rb"\x1b\[>[0-9]+u", self.raw)) > len(re.findall(rb"\x1b\[<[0-9]*u", self.raw)):
            found.append("a keyboard protocol")
        if self._emulator.cursor.attrs != self._emulator.default_char:
            found.append("colours")
        if self._emulator.margins is not None:
            found.append("margins")
        if self.cursor[1] != 0:
            found.append("a row that is not finished")
        return found

    def _set_size(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _read(self, seconds: float) -> bool:
        """Read once what comes within this time, and whether anything did. At the end there is nothing more to come."""
        if self._is_over:
            return False
        ready, _, _ = select.select([self._terminal, self._ended], [], [], seconds)
        if self._terminal not in ready:
            # What it wrote last may have come after the terminal and before the end was looked at.
            if not ready or select.select([self._terminal], [], [], 0)[0]:
                return False
            self._is_over = True
            return False
        try:
            data = os.read(self._terminal, CHUNK)
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
        cut_off = _CUT_OFF.search(data)
        end = cut_off.start() if cut_off else len(data)
        self._rest = data[end:]
        self._seen = None
        self._stream.feed(_FOREIGN.sub(b"", data[:end]))

    @contextmanager
    def _shown_with_failures(self, wanted: object) -> Iterator[None]:
        """Add the screen to what ends the block, such as the deadline of the test."""
        try:
            yield
        except BaseException as error:
            rule = "-" * self._emulator.columns
            name = wanted if isinstance(wanted, str) else _source(wanted)
            state = f"cursor at {self.cursor}, exit code {self.process.poll()}"
            error.add_note(f"{name!r} did not come\n{rule}\n{self.everything}\n{rule}\n{state}")
            raise


def _without_blank_rows(text: str, rows: int) -> str:
    """The text without the blank rows at its end, as far as it has more than so many rows."""
    found = text.split("\n")
    while len(found) > rows and not found[-1]:
        found.pop()
    return "\n".join(found)


def _source(function: object) -> str:
    """Where a condition stands, which says more than its name, mostly a lambda's."""
    code = getattr(function, "__code__", None)
    return repr(function) if code is None else f"{function} at {Path(code.co_filename).name}:{code.co_firstlineno}"
