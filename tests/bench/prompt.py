"""How long the program takes to its first prompt, its first request and its first answer.

A prompt is seen from the other end of a pseudo-terminal, a request from the other end of a socket. What is looked for
on a terminal are signs that the program cannot write for any other reason. A time ends when the bytes have been
read, so a delay of the reader is counted as the program's.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from workload import MAX_TOKENS, MODEL, QUERY, SYSTEM, settings

from chain.messages import user_text
from chain.model import Request
from chain.providers.anthropic.encoding import Encoder
from chain.providers.anthropic.service import Parameters

ROOT = Path(__file__).resolve().parents[2]

CHAIN = ("-m", "cli", "--model", "offline")
ASKING = ("-m", "cli", "--config", "asking/config.yaml")
BARE = str(Path(__file__).with_name("bare_request.py"))
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
            "NO_PROXY": "127.0.0.1",
        }

    def first_prompt(self) -> float:
        """Return the seconds from the start of the program to the echo of a key that is pressed at its prompt."""
        with self._at_terminal(CHAIN) as (terminal, begun):
            read_until(terminal, PROMPT)
            os.write(terminal, KEY)
            read_until(terminal, KEY)
            return time.monotonic() - begun

    def first_request(self) -> float:
        """Return the seconds from the start of the program to the request for a line that was typed before."""
        return self._until_asked(ASKING, f"{QUERY}\r".encode())

    def first_request_of_script(self) -> float:
        """Return the same for a script that does nothing else."""
        return self._until_asked((BARE, "URL", "asking/body.json"))

    def _until_asked(self, command: Sequence[str], typed: bytes = b"") -> float:
        with socket.create_server(("127.0.0.1", 0)) as service:
            url = f"http://127.0.0.1:{service.getsockname()[1]}"
            self.ask_at(url)
            with self._at_terminal([url if word == "URL" else word for word in command], typed) as (terminal, begun):
                while True:
                    ready, _, _ = select.select([service, terminal], [], [])
                    if terminal in ready:
                        os.read(terminal, CHUNK)
                    if service in ready:
                        # The program asks for the window at the same time.
                        with service.accept()[0] as connection:
                            if connection.recv(CHUNK).startswith(b"POST"):
                                return time.monotonic() - begun

    @contextmanager
    def _at_terminal(self, command: Sequence[str], typed: bytes = b"") -> Iterator[tuple[int, float]]:
        """Run a program for the duration of the block, which gets its terminal and when it began."""
        terminal, inner = os.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        os.write(terminal, typed)
        begun = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, *command],
            **{"stdin": inner, "stdout": inner, "stderr": inner},
            env=self.environ,
            cwd=self.folder,
            start_new_session=True,
        )
        os.close(inner)
        try:
            yield terminal, begun
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            os.close(terminal)

    def ask_at(self, url: str) -> None:
        """Have programs ask at this address from now on."""
        folder = self.folder / "asking"
        folder.mkdir(exist_ok=True)
        settings(folder, url, 1)
        request = Request(SYSTEM, (user_text(QUERY),))
        (folder / "body.json").write_bytes(Encoder(Parameters(MODEL, MAX_TOKENS)).encode(request))

    def answer(self) -> float:
        """Return the seconds of a headless run without tools, from start to end."""
        return self._run(*ASKING, "-p", QUERY, "--no-stdin")

    def answer_to_script(self, url: str) -> float:
        """Return the same for a script that does nothing else."""
        return self._run(BARE, url, "asking/body.json")

    def imports(self) -> float:
        """Return the seconds that a program takes which does nothing but the imports that a prompt needs."""
        return self._run(*IMPORTS)

    def _run(self, *command: str) -> float:
        begun = time.monotonic()
        subprocess.run(
            [sys.executable, *command],
            env=self.environ,
            cwd=self.folder,
            check=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
        )
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
            made.first_request()
            made.first_request_of_script()
        yield made
