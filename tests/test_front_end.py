"""The front end of the reference: every client steers one chain, and a late one is brought up to date."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.documents import block
from support.house import ROOT

RULES = """
rules:
  - {when: {interruption: '(?P<said>.*)'}, text: "Heard: ${said}"}
  - {text: "one two three", pace: {chunk: 1, delay_s: 0.2}}
"""


@pytest.fixture
def room(tmp_path: Path) -> Iterator[int]:
    """The port of the example, which runs as a process with a slow model."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    example = block("library", "front end").replace("4000", str(port))
    (tmp_path / "example.py").write_text(example)
    (tmp_path / "rules.yaml").write_text(RULES)
    (tmp_path / "config.yaml").write_text(
        "models: {definitions: {mine: {provider: scripted, script: rules.yaml}}}\nchains: {default: {model: mine}}\n"
    )
    environ = {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "CHAIN_CONFIG": str(tmp_path / "config.yaml")}
    with subprocess.Popen([sys.executable, "example.py"], cwd=tmp_path, env=environ) as process:
        yield port
        process.terminate()


def connected(port: int) -> socket.socket:
    while True:
        with suppress(ConnectionRefusedError):
            return socket.create_connection(("127.0.0.1", port))


def until(connection: socket.socket, text: str) -> None:
    heard = ""
    while text not in heard:
        data = connection.recv(65_536)
        assert data, heard
        heard += data.decode()


@pytest.mark.slow
def test_every_client_steers_the_chain_and_hears_it(room: int) -> None:
    with connected(room) as one:
        one.sendall(b"Count\n")
        until(one, "> Count\n")
        with connected(room) as two:
            until(two, "> Count\n")
            two.sendall(b"not so fast\n")
            until(one, "Heard: not so fast\n")
        one.sendall(b"again\n")
        until(one, "> again\n")
