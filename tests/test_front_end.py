"""The front end in ``chain help library``: all clients steer one chain, and receive its past and its events."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.documents import code_block
from support.project import ROOT

RULES = """
rules:
  - {when: {interruption: '(?P<said>.*)'}, text: "Heard: ${said}"}
  - {text: "one two three", pace: {chunk: 1, delay_s: 0.2}}
"""


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """Run the example with a slow model. Yield the port of its server."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    port_of_example = "4000"
    example = code_block("library", "front end").replace(port_of_example, str(port))
    (tmp_path / "example.py").write_text(example)
    (tmp_path / "rules.yaml").write_text(RULES)
    (tmp_path / "config.yaml").write_text(
        "models: {definitions: {mine: {provider: scripted, script: rules.yaml}}}\nchains: {default: {model: mine}}\n"
    )
    environ = {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "CHAIN_CONFIG": str(tmp_path / "config.yaml")}
    with subprocess.Popen([sys.executable, "example.py"], cwd=tmp_path, env=environ) as process:
        yield port
        process.terminate()


def connect(port: int) -> socket.socket:
    """Return a client of the server as soon as the server accepts it."""
    while True:
        with suppress(ConnectionRefusedError):
            return socket.create_connection(("127.0.0.1", port))


def wait_for(client: socket.socket, text: str) -> None:
    """Read until a text comes."""
    received = ""
    while text not in received:
        data = client.recv(65_536)
        assert data, received
        received += data.decode()


@pytest.mark.slow
def test_every_client_steers_and_shows_the_chain(port: int) -> None:
    with connect(port) as client:
        client.sendall(b"Count\n")
        wait_for(client, "> Count\n")
        with connect(port) as late_client:
            wait_for(late_client, "> Count\n")
            late_client.sendall(b"not so fast\n")
            wait_for(client, "Heard: not so fast\n")
        client.sendall(b"again\n")
        wait_for(client, "> again\n")
