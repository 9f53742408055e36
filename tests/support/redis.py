"""A Redis of the tests' own, on a free port and in a folder of its own."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

SAFE = ("--appendonly", "yes", "--appendfsync", "always")

PROGRAM = os.environ.get("CHAIN_TEST_REDIS") or shutil.which("redis-server") or shutil.which("valkey-server")
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
"""What workers are configured with."""


class OwnRedis:
    """A server that can be killed and started again. ``options`` are those of its command line."""

    def __init__(self, folder: Path, options: Sequence[str] = SAFE) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.options = options
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def address(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        assert PROGRAM is not None
        self.process = subprocess.Popen(
            [
                PROGRAM,
                *("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder)),
                *("--save", "", "--loglevel", "warning", *self.options),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while not self.is_up():
            assert self.process.poll() is None, "it did not start"
            time.sleep(0.01)

    def is_up(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as peer:
                peer.sendall(b"PING\r\n")
                said = peer.recv(100)
        except OSError:
            return False
        return said.startswith((b"+PONG", b"-NOAUTH"))

    def command(self, *words: str) -> bytes:
        """The raw answer to a command, of which a few bytes are read."""
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
    """Whether the server was built with TLS."""
    assert PROGRAM is not None
    words = [PROGRAM, "--port", "0", "--tls-port", "none"]  # that is no number, so it does not start
    return b"Bad directive" not in subprocess.run(words, capture_output=True).stdout


@contextmanager
def own_redis(folder: Path, options: Sequence[str] = SAFE) -> Iterator[OwnRedis]:
    """A server for the block."""
    server = OwnRedis(folder, options)
    try:
        yield server
    finally:
        server.kill()
        gc.collect()  # here it is known what coredis leaves of connections that could not be made
