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
from support.processes import NOBODY, python_of, user_options
from support.project import ROOT

from cli.door import peers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux identifies the process at the other end")

CONNECT = """
import os, socket, sys
steps, path = sys.argv[1:]
for step in steps.split():
    if step == "setsid":
        os.setsid()
    elif os.fork():
        os._exit(0)
s = socket.socket(socket.AF_UNIX)
s.connect(path)
s.recv(1)
"""
"""Connects to a door after some steps: ``fork`` leaves the rest to a child process, ``setsid`` starts a session."""

ADOPT = """
import ctypes, os, subprocess, sys
PR_SET_CHILD_SUBREAPER = 36
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
subprocess.run([sys.executable, "-c", *sys.argv[1:]], check=True)
sys.stdin.read()
try:
    while True:
        os.wait()
except ChildProcessError:
    pass
"""
"""Runs a program. Adopts its orphans, as a chain's guard does, until the input and all children have ended."""

ACCEPT = """
import socket, sys
sys.path.insert(0, sys.argv[2])
from cli.door import peers
s = socket.socket(socket.AF_UNIX)
s.bind(sys.argv[1])
s.listen()
print(flush=True)
print(peers.refusal_reason(s.accept()[0]) or "welcome", flush=True)
"""
"""Prints whether it refuses the first process that connects."""

STEPS = ["", "setsid", "fork", "setsid fork", "fork setsid fork", "fork fork setsid"]
"""Steps by which a program may try to hide that it is a descendant."""


@pytest.fixture
def path() -> Iterator[Path]:
    """Yield a path for a socket, which is shorter than those in ``tmp_path``."""
    with TemporaryDirectory() as folder:
        yield Path(folder, "door")


@pytest.fixture
def door(path: Path) -> Iterator[socket.socket]:
    """Yield a listening socket of this process."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        listening.settimeout(60)
        yield listening


@pytest.fixture
def unrelated_door(path: Path) -> Iterator[IO[str]]:
    """Yield the output of a program that listens, and of which this process is no descendant."""
    command = [sys.executable, "-c", ACCEPT, str(path), str(ROOT)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.stdout


@contextmanager
def descendant(program: str, steps: str, path: Path) -> Iterator[None]:
    """Run a program as a descendant of this process for the block, and wait for its end."""
    command = [sys.executable, "-c", ADOPT, program, steps, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        yield
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0


def problem_of_next(door: socket.socket) -> str:
    peer, _ = door.accept()
    with peer:
        return peers.refusal_reason(peer)


def test_this_process_is_accepted(door: socket.socket, path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        assert problem_of_next(door) == ""


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("steps", STEPS)
def test_a_descendant_is_refused(steps: str, door: socket.socket, path: Path) -> None:
    with descendant(CONNECT, steps, path):
        assert problem_of_next(door) == peers.OWN_COMMAND


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("steps", STEPS)
def test_a_process_that_has_exited_is_refused(steps: str, door: socket.socket, path: Path) -> None:
    connect_and_exit = CONNECT.replace("s.recv(1)", "")
    with descendant(connect_and_exit, steps, path):
        peer, _ = door.accept()
    with peer:
        assert peers.refusal_reason(peer) == peers.GONE


def test_an_unrelated_process_is_accepted(unrelated_door: IO[str], path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        assert unrelated_door.readline() == "welcome\n"


def test_a_command_of_another_chain_is_refused(unrelated_door: IO[str], path: Path, tmp_path: Path) -> None:
    guard = tmp_path / "chain/tools/processes/guard.py"  # a command of a chain is known by this path of its ancestor
    guard.parent.mkdir(parents=True)
    guard.write_text("import subprocess, sys\nsubprocess.run([sys.executable, '-c', *sys.argv[1:]])\n")
    with subprocess.Popen([sys.executable, str(guard), CONNECT, "setsid", str(path)]):
        assert unrelated_door.readline() == f"{peers.OWN_COMMAND}\n"


@pytest.mark.skipif(os.getuid() != 0, reason="only root starts a program as another user")
def test_another_user_is_refused(door: socket.socket, path: Path) -> None:
    python = python_of(NOBODY)
    path.parent.chmod(0o777)
    path.chmod(0o777)
    no_steps = ""
    with subprocess.Popen([python, "-c", CONNECT, no_steps, str(path)], **user_options(NOBODY)):
        assert problem_of_next(door) == peers.OTHER_USER
