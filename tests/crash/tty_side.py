"""A program at a pseudo-terminal.

What it prints above its prompt stands there whole, so it is enough to take the escape sequences out: a terminal
emulator would take longer than everything else. A row that says that a line is queued is an acknowledgement.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
import termios
import time
from collections.abc import Callable, Sequence

from .point import Kill
from .scenarios import Step
from .seen import Seen, Watch

ROWS, COLUMNS = 50, 250
"""So wide that no row is wrapped."""

REDRAWN_S = 3.0
"""What was not shown by then was perhaps drawn as a difference, from ``Q3?`` to ``Q4?`` one character: another size of
the terminal has it drawn whole."""

_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_][^\x1b]*\x1b\\|[@-Z\\-_=>])")
_QUEUED = re.compile(r"📤 Interrupting: (.*?) (?:↪ .*? )?[⏳⚡]")


def talk(begin: Callable[[int, int], int], kill: Kill | None, steps: Sequence[Step]) -> Seen:
    """Press the keys of each step once its text was shown; ``begin`` starts the program at a terminal, given twice."""
    terminal, theirs = os.openpty()
    resize(terminal, ROWS)
    try:
        watch = Watch(begin(theirs, theirs), terminal, kill)
    finally:
        os.close(theirs)
    left = list(steps)
    raw = b""
    text = ""
    since, rows = time.monotonic(), ROWS
    try:
        while data := watch.read():
            raw += data
            text = _SEQUENCE.sub("", raw.decode(errors="ignore"))
            watch.seen.acknowledged = _QUEUED.findall(text)
            while left and text.count(left[0].shown) >= left[0].times:
                os.write(terminal, left.pop(0).keys.encode())
                since = time.monotonic()
            if left and time.monotonic() - since > REDRAWN_S:
                since, rows = time.monotonic(), rows ^ 1
                resize(terminal, rows)
            watch.piece()
    finally:
        os.close(terminal)
        seen = watch.close()
    seen.is_stuck = bool(left)
    seen.shown = text
    return seen


def resize(terminal: int, rows: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, COLUMNS, 0, 0))
