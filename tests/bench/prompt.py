"""The interactive program in a pseudo-terminal, and the times that it takes, seen from the other end.

The terminal is read as soon as there is something to read. What is looked for are signs that the program cannot write
for any other reason, in the bytes as they come; for what streams, on an emulated screen, since of rows that are drawn
again only the difference is written. A time ends when the bytes have been read, so a delay of the reader is counted as
the program's.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import random
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pyte
from support.emulator import Emulator

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

CHAIN = ("-m", "cli", "--model", "offline")
IMPORTS = ("-c", "import trio, prompt_toolkit")
SCROLLING = (str(HERE / "scrolling.py"), "--model", "offline")

ROWS, COLUMNS = 30, 100
CHUNK = 65_536
DEADLINE_S = 30.0

PROMPT = b">\x1b[0m"
IDLE = b"idle"
ANSWERED = b"done, "
LETTERS = [chr(n) for n in range(0x100, 0x250)]
"""Keys that are letters and one column wide, and of which there is no trace on the screen before they are pressed."""
CLEAR_LINE = "\x15"
LINE_LENGTH = 60
"""Keys after which the line is cleared: a longer one is rare."""

KEYS_S = (0.03, 0.15)
"""The least and the most between an echo and the next key: a fast typist, at any moment of the screen's own rhythm."""

MARK = re.compile(rb"#(\d+)@(\d+\.\d{6})")

SETTLED_S = 1.1
SETTLED_CPU_S = 0.0005
"""A program has settled when it used at most so much CPU time in so many seconds. The toolbar's seconds, which go on
while something runs, stop within one."""


class Terminal:
    """A Python program in a terminal of its own, killed in the end."""

    def __init__(self, arguments: Sequence[str], environ: Mapping[str, str], cwd: Path) -> None:
        self.written = bytearray()
        """All that the program wrote."""
        self.read_at = 0.0
        """When the last of it had been read."""
        self._fd, inner = os.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        command = [sys.executable, *arguments]
        self.begun = time.monotonic()
        try:
            self._process = subprocess.Popen(
                command, stdin=inner, stdout=inner, stderr=inner, env=environ, cwd=cwd, start_new_session=True
            )
        finally:
            os.close(inner)

    def close(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._fd)

    def read(self, seconds: float) -> None:
        """Read once, if anything comes within this time."""
        if not select.select([self._fd], [], [], max(0.0, seconds))[0]:
            return
        try:
            found = os.read(self._fd, CHUNK)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            found = b""
        self.read_at = time.monotonic()
        if not found:
            raise SystemExit(f"the program ended: {self.written[-2000:].decode(errors='replace')}")
        self.written += found

    def wait_for(self, sign: bytes, start: int = 0) -> float:
        """Read until the sign was written at ``start`` or later; the moment when it had been read."""
        end = time.monotonic() + DEADLINE_S
        while self.written.find(sign, start) < 0:
            if time.monotonic() > end:
                raise SystemExit(f"{sign!r} did not come: {self.written[-2000:].decode(errors='replace')}")
            self.read(end - time.monotonic())
        return self.read_at

    def press(self, keys: str) -> float:
        """Press keys; the moment when that began."""
        at = time.monotonic()
        os.write(self._fd, keys.encode())
        return at

    def send(self, line: str) -> None:
        """Type a line and end it."""
        self.press(line)
        self.press("\r")

    def cpu(self) -> float:
        """CPU seconds of the process so far. ``/proc`` counts them in hundredths; its clock does in nanoseconds."""
        clock = ctypes.c_int()
        if ctypes.CDLL(None).clock_getcpuclockid(self._process.pid, ctypes.byref(clock)):
            raise SystemExit("the CPU clock of another process cannot be read here")
        return time.clock_gettime(clock.value)

    def cpu_in(self, seconds: float) -> float:
        """CPU seconds that it uses in the next so many seconds, in which the terminal is read."""
        before, end = self.cpu(), time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.read(left)
        return self.cpu() - before


@dataclass(frozen=True, slots=True)
class Lab:
    """A home and compiled modules for the programs, which import from nowhere else."""

    folder: Path
    is_compiled: bool = True

    @contextmanager
    def terminal(self, arguments: Sequence[str]) -> Iterator[Terminal]:
        """A program that has just been started."""
        terminal = Terminal(arguments, self.environ, self.folder)
        try:
            yield terminal
        finally:
            terminal.close()

    @contextmanager
    def prompt(self, arguments: Sequence[str]) -> Iterator[Terminal]:
        """A program that has all that it imports, and waits for a query."""
        with self.terminal(arguments) as terminal:
            terminal.wait_for(IDLE)
            yield terminal

    @property
    def environ(self) -> dict[str, str]:
        """Nothing of ours but the path; modules are compiled once, whatever we do ourselves."""
        compiled = {"PYTHONPYCACHEPREFIX": str(self.folder / "compiled")} if self.is_compiled else {}
        return {
            **compiled,
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "XDG_STATE_HOME": str(self.folder / "state"),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "PYTHONPATH": str(ROOT),
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
        }


@contextmanager
def lab(*, is_compiled: bool) -> Iterator[Lab]:
    """A lab in which every module has been compiled, or, where no figure counts, is as it is found."""
    with TemporaryDirectory() as folder:
        made = Lab(Path(folder), is_compiled)
        if is_compiled:
            imports(made)
            for program in (CHAIN, SCROLLING):
                with made.prompt(program):
                    pass
        yield made


# ---- what is measured, all in seconds


def first_prompt(lab: Lab) -> float:
    """From the start of the program to the echo of a key that was pressed when the prompt was seen."""
    with lab.terminal(CHAIN) as terminal:
        terminal.wait_for(PROMPT)
        terminal.press(LETTERS[0])
        return terminal.wait_for(LETTERS[0].encode()) - terminal.begun


def imports(lab: Lab) -> float:
    """From the start to the end of a program that does nothing but the imports that our prompt cannot do without."""
    begun = time.monotonic()
    subprocess.run([sys.executable, *IMPORTS], env=lab.environ, cwd=lab.folder, check=True)
    return time.monotonic() - begun


@dataclass(frozen=True, slots=True)
class Echoes:
    """How long each key took, and how many lines a second scrolled by meanwhile."""

    seconds: Sequence[float]
    lines_a_second: float


def echoes(lab: Lab, keys: int) -> Echoes:
    """From each key to its echo, while a reply of many lines comes."""
    with lab.prompt(SCROLLING) as terminal:
        terminal.send("flood")
        terminal.wait_for(b"one of many lines")
        start = len(terminal.written)
        took = [_echo(terminal, n) for n in range(keys)]
        marks = [(int(n), float(at)) for n, at in MARK.findall(terminal.written, start)]
    (first, begun), (last, ended) = marks[0], marks[-1]
    return Echoes(took, (last - first) / (ended - begun))


def _echo(terminal: Terminal, n: int) -> float:
    letter = LETTERS[n % len(LETTERS)]
    if n and n % LINE_LENGTH == 0:
        terminal.press(CLEAR_LINE)
    end = time.monotonic() + random.uniform(*KEYS_S)
    while (left := end - time.monotonic()) > 0:
        terminal.read(left)
    start = len(terminal.written)
    at = terminal.press(letter)
    return terminal.wait_for(letter.encode(), start) - at


def showings(lab: Lab, query: str, events: int) -> list[float]:
    """From each event to its text on the screen; in order of their numbers, none is left out."""
    seen: dict[int, float] = {}
    with lab.prompt(SCROLLING) as terminal:
        emulator = Emulator(COLUMNS, ROWS, lambda _: None)
        stream = pyte.ByteStream(emulator)
        shown = 0
        terminal.send(query)
        end = time.monotonic() + DEADLINE_S
        # A row may come after one that was written later, so the last number says nothing about the others.
        while missing := set(range(1, events + 1)) - seen.keys():
            if time.monotonic() > end:
                raise SystemExit(f"of {events} events {len(missing)} are missing on the screen")
            terminal.read(end - time.monotonic())
            stream.feed(bytes(terminal.written[shown:]))
            shown = len(terminal.written)
            scrolled, emulator.scrolled[:] = list(emulator.scrolled), []
            for found in MARK.finditer("\n".join([*scrolled, *emulator.rows]).encode()):
                seen.setdefault(int(found[1]), terminal.read_at - float(found[2]))
    return [seen[n] for n in range(1, events + 1)]


def idling(lab: Lab, seconds: int) -> list[float]:
    """CPU time of each of so many seconds in which nothing happens, at a prompt that has answered a query."""
    with lab.prompt(CHAIN) as terminal:
        terminal.send("hello")
        terminal.wait_for(ANSWERED)
        end = time.monotonic() + DEADLINE_S
        while terminal.cpu_in(SETTLED_S) > SETTLED_CPU_S and time.monotonic() < end:
            pass
        return [terminal.cpu_in(1) for _ in range(seconds)]
