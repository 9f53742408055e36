"""Who is let in: nobody that this process has started, however it was started, and everybody else of the same user."""

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

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="who is at the other end is asked of Linux")

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

SUBREAPS = """
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
"""Adopts what loses its parent, as guard and keepers do, until its input and all that it has adopted have ended."""

ASKS = """
import socket, sys
sys.path.insert(0, sys.argv[2])
from cli.door import peers
s = socket.socket(socket.AF_UNIX)
s.bind(sys.argv[1])
s.listen()
print(flush=True)
print(peers.problem_with(s.accept()[0]) or "welcome", flush=True)
"""
"""Another process that is asked, so that this one is not below it."""

WAYS = ["", "setsid", "fork", "setsid fork", "fork setsid fork", "fork fork setsid"]


@pytest.fixture
def path() -> Iterator[Path]:
    """Where a socket is: its path may have no more than a hundred bytes, and a test's own folder has more."""
    with TemporaryDirectory() as folder:
        yield Path(folder, "door")


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """A socket that waits for who comes."""
    with socket.socket(socket.AF_UNIX) as found:
        found.bind(str(path))
        found.listen()
        found.settimeout(60)
        yield found


@contextmanager
def adopting(*arguments: str) -> Iterator[None]:
    """A program under a process that adopts whatever it leaves."""
    command = [sys.executable, "-c", SUBREAPS, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        yield
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0


def test_this_process_itself_is_let_in(path: Path) -> None:
    with listening(path) as door, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        peer, _ = door.accept()
        with peer:
            assert peers.problem_with(peer) == ""


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("way", WAYS)
def test_what_it_has_started_is_not(way: str, path: Path) -> None:
    with listening(path) as door, adopting(CONNECTS, way, str(path)):
        peer, _ = door.accept()
        with peer:  # until it is closed who has connected waits
            assert peers.problem_with(peer) == peers.OWN_COMMAND


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("way", WAYS)
def test_nor_if_it_has_ended_meanwhile(way: str, path: Path) -> None:
    with listening(path) as door:
        with adopting(CONNECTS.replace("s.recv(1)", ""), way, str(path)):
            peer, _ = door.accept()
        with peer:
            assert peers.problem_with(peer) == peers.GONE


@contextmanager
def asked_elsewhere(path: Path) -> Iterator[IO[str]]:
    """A process that is not above this one lets in, or not, who comes next; what it says of that."""
    root = str(Path(peers.__file__).parents[2])
    with subprocess.Popen([sys.executable, "-c", ASKS, str(path), root], stdout=subprocess.PIPE, text=True) as asked:
        assert asked.stdout is not None
        asked.stdout.readline()
        yield asked.stdout


def test_one_that_is_not_below_is_let_in(path: Path) -> None:
    with asked_elsewhere(path) as says, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        assert says.readline() == "welcome\n"


def test_what_another_chain_has_started_is_not_let_in_either(path: Path, tmp_path: Path) -> None:
    guard = tmp_path / "chain/tools/processes/guard.py"
    guard.parent.mkdir(parents=True)
    guard.write_text("import subprocess, sys\nsubprocess.run([sys.executable, '-c', *sys.argv[1:]])\n")
    with asked_elsewhere(path) as says, subprocess.Popen([sys.executable, str(guard), CONNECTS, "setsid", str(path)]):
        assert says.readline() == f"{peers.OWN_COMMAND}\n"


@pytest.mark.skipif(os.getuid() != 0, reason="only root starts a program as somebody else")
def test_another_user_is_not_let_in(path: Path) -> None:
    with listening(path) as door:
        for each in (path.parent, path):
            each.chmod(0o777)
        command = [python_of(NOBODY), "-c", CONNECTS, "", str(path)]
        with subprocess.Popen(command, **as_user(NOBODY)):
            peer, _ = door.accept()
            with peer:
                assert peers.problem_with(peer) == peers.OTHER_USER
