"""How long the interactive program takes to its first prompt, seen from the other end of a pseudo-terminal.

What is looked for are signs that the program cannot write for any other reason. A time ends when the bytes have been
read, so a delay of the reader is counted as the program's.
"""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]

CHAIN = ("-m", "cli", "--model", "offline")
IMPORTS = ("-c", "import trio, prompt_toolkit")

ROWS, COLUMNS = 30, 100
CHUNK = 65_536

PROMPT = b">\x1b[0m"
KEY = "\u0100".encode()
"""A letter of which there is no trace on the screen before it is pressed."""


@dataclass(frozen=True, slots=True)
class Lab:
    """A home and compiled modules for the programs, which import from nowhere else."""

    folder: Path
    is_compiled: bool

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

    def first_prompt(self) -> float:
        """Return the seconds from the start of the program to the echo of a key that is pressed at its prompt."""
        terminal, inner = os.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        begun = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, *CHAIN],
            **{"stdin": inner, "stdout": inner, "stderr": inner},
            env=self.environ,
            cwd=self.folder,
            start_new_session=True,
        )
        os.close(inner)
        try:
            read_until(terminal, PROMPT)
            os.write(terminal, KEY)
            read_until(terminal, KEY)
            return time.monotonic() - begun
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            os.close(terminal)

    def imports(self) -> float:
        """Return the seconds that a program takes which does nothing but the imports that a prompt needs."""
        begun = time.monotonic()
        subprocess.run([sys.executable, *IMPORTS], env=self.environ, cwd=self.folder, check=True)
        return time.monotonic() - begun


def read_until(terminal: int, sign: bytes) -> None:
    """Read what a program writes until this is in it. Raise ``OSError`` if the program ends before."""
    written = b""
    while sign not in written:
        written += os.read(terminal, CHUNK)


@contextmanager
def lab(*, is_compiled: bool) -> Iterator[Lab]:
    """A lab in which every module has been compiled, or, where no figure counts, is as it is found."""
    with TemporaryDirectory() as folder:
        made = Lab(Path(folder), is_compiled)
        if is_compiled:
            made.imports()
            made.first_prompt()
        yield made
