"""The time of the program to its first prompt, its first request and its first answer.

A prompt is read from a pseudo-terminal, and a request from a socket. A time includes the delay until this program reads
the bytes.
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
ROWS, COLUMNS = 30, 100
CHUNK = 65_536
PROMPT = b">\x1b[0m"
KEY = "\u0100".encode()
"""A letter that is not on the screen before it is typed."""


class Lab:
    """A home folder and compiled modules, in which the measured programs run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._environ = {
            "PYTHONPYCACHEPREFIX": str(folder / "compiled"),
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "PYTHONPATH": str(ROOT),
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
            "NO_PROXY": "127.0.0.1",
        }

    def first_prompt(self) -> float:
        """Return the seconds from the start of the program to the echo of a key that is typed at its prompt."""
        with self._at_terminal(CHAIN) as (terminal, start):
            for wanted in (PROMPT, KEY):
                written = b""
                while wanted not in written:
                    written += os.read(terminal, CHUNK)
                os.write(terminal, KEY)
            return time.monotonic() - start

    def first_request(self) -> float:
        """Return the seconds from the start of the program to its first request, for a line typed before."""
        return self._until_request(ASKING, f"{QUERY}\r".encode())

    def first_request_of_script(self) -> float:
        """Return the same for a script with ``httpx2`` alone."""
        return self._until_request((BARE, "URL", "asking/body.json"))

    def _until_request(self, command: Sequence[str], typed: bytes = b"") -> float:
        with socket.create_server(("127.0.0.1", 0)) as service:
            url = f"http://127.0.0.1:{service.getsockname()[1]}"
            self.use_service(url)
            with self._at_terminal([url if word == "URL" else word for word in command], typed) as (terminal, start):
                while True:
                    ready, _, _ = select.select([service, terminal], [], [])
                    if terminal in ready:
                        os.read(terminal, CHUNK)
                    if service in ready:
                        # The program requests the size of the window at the same time.
                        with service.accept()[0] as connection:
                            if connection.recv(CHUNK).startswith(b"POST"):
                                return time.monotonic() - start

    @contextmanager
    def _at_terminal(self, command: Sequence[str], typed: bytes = b"") -> Iterator[tuple[int, float]]:
        """Run a program for the duration of the block. Yield its terminal and the time of its start."""
        terminal, inner = os.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        os.write(terminal, typed)
        start = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, *command],
            **{"stdin": inner, "stdout": inner, "stderr": inner},
            env=self._environ,
            cwd=self.folder,
            start_new_session=True,
        )
        os.close(inner)
        try:
            yield terminal, start
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            os.close(terminal)

    def use_service(self, url: str) -> None:
        """Write a configuration and a request body for the service at this address."""
        folder = self.folder / "asking"
        folder.mkdir(exist_ok=True)
        settings(folder, url, 1)
        request = Request(SYSTEM, (user_text(QUERY),))
        (folder / "body.json").write_bytes(Encoder(Parameters(MODEL, MAX_TOKENS)).encode(request))

    def answer(self) -> float:
        """Return the seconds of a headless run without tools."""
        return self._run(*ASKING, "-p", QUERY, "--no-stdin")

    def answer_to_script(self, url: str) -> float:
        """Return the same for a script with ``httpx2`` alone."""
        return self._run(BARE, url, "asking/body.json")

    def imports(self) -> float:
        """Return the seconds of a program that only imports what a prompt needs."""
        return self._run("-c", "import trio, prompt_toolkit")

    def _run(self, *command: str) -> float:
        start = time.monotonic()
        subprocess.run(
            [sys.executable, *command],
            env=self._environ,
            cwd=self.folder,
            check=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
        )
        return time.monotonic() - start


@contextmanager
def ready_lab() -> Iterator[Lab]:
    """Make a lab in which every module is compiled."""
    with TemporaryDirectory() as folder:
        lab = Lab(Path(folder))
        for run in (lab.imports, lab.first_prompt, lab.first_request, lab.first_request_of_script):
            run()
        yield lab
