"""Which processes may connect: those of the same user, except those that a chain started."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

import pytest
from support.processes import NOBODY, as_user, python_of

from cli.door import peers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who is at the other end")

CONNECTS = """
import os, socket, sys
way, path = sys.argv[1:]
for step in way.split():
    if step == "setsid":
        os.setsid()
    elif os.fork():
        os._exit(0)
s = socket.socket(socket.AF_UNIX)
s.connect(path)
s.recv(1)
"""

ADOPTS = """
import ctypes, os, subprocess, sys
assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0
subprocess.run([sys.executable, "-c", *sys.argv[1:]], check=True)
sys.stdin.read()
try:
    while True:
        os.wait()
except ChildProcessError:
    pass
"""
"""Adopts orphans, as guard and keepers do, until its input and all adopted processes have ended."""

ACCEPTS = """
import socket, sys
sys.path.insert(0, sys.argv[2])
from cli.door import peers
s = socket.socket(socket.AF_UNIX)
s.bind(sys.argv[1])
s.listen()
print(flush=True)
print(peers.problem_with(s.accept()[0]) or "welcome", flush=True)
"""

WAYS = ["", "setsid", "fork", "setsid fork", "fork setsid fork", "fork fork setsid"]


@pytest.fixture
def path() -> Iterator[Path]:
    """Yield a path for a socket, which is shorter than those in ``tmp_path``."""
    with TemporaryDirectory() as folder:
        yield Path(folder, "door")


@pytest.fixture
def door(path: Path) -> Iterator[socket.socket]:
    """Yield a socket of this process that listens."""
    with socket.socket(socket.AF_UNIX) as found:
        found.bind(str(path))
        found.listen()
        found.settimeout(60)
        yield found


@pytest.fixture
def elsewhere(path: Path) -> Iterator[IO[str]]:
    """Yield the answer of another process, which this one did not descend from, to whoever connects."""
    root = str(Path(peers.__file__).parents[2])
    command = [sys.executable, "-c", ACCEPTS, str(path), root]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.stdout


@contextmanager
def connecting(program: str, way: str, path: Path) -> Iterator[None]:
    """Run a program below this process in one of the ways, and wait for its end."""
    command = [sys.executable, "-c", ADOPTS, program, way, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        yield
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0


def problem_of_next(door: socket.socket) -> str:
    peer, _ = door.accept()
    with peer:
        return peers.problem_with(peer)


def test_this_process_is_accepted(door: socket.socket, path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        assert problem_of_next(door) == ""


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("way", WAYS)
def test_a_descendant_is_refused(way: str, door: socket.socket, path: Path) -> None:
    with connecting(CONNECTS, way, path):
        assert problem_of_next(door) == peers.OWN_COMMAND


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("way", WAYS)
def test_a_process_that_has_exited_is_refused(way: str, door: socket.socket, path: Path) -> None:
    with connecting(CONNECTS.replace("s.recv(1)", ""), way, path):
        peer, _ = door.accept()
    with peer:
        assert peers.problem_with(peer) == peers.GONE


def test_an_unrelated_process_is_accepted(elsewhere: IO[str], path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        assert elsewhere.readline() == "welcome\n"


def test_a_command_of_another_chain_is_refused(elsewhere: IO[str], path: Path, tmp_path: Path) -> None:
    guard = tmp_path / "chain/tools/processes/guard.py"
    guard.parent.mkdir(parents=True)
    guard.write_text("import subprocess, sys\nsubprocess.run([sys.executable, '-c', *sys.argv[1:]])\n")
    with subprocess.Popen([sys.executable, str(guard), CONNECTS, "setsid", str(path)]):
        assert elsewhere.readline() == f"{peers.OWN_COMMAND}\n"


@pytest.mark.skipif(os.getuid() != 0, reason="only root starts a program as another user")
def test_another_user_is_refused(door: socket.socket, path: Path) -> None:
    python = python_of(NOBODY)
    for each in (path.parent, path):
        each.chmod(0o777)
    with subprocess.Popen([python, "-c", CONNECTS, "", str(path)], **as_user(NOBODY)):
        assert problem_of_next(door) == peers.OTHER_USER
