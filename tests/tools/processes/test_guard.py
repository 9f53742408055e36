"""The guard: no process of a command outlives its call, however the call or chain ends."""

from __future__ import annotations

import signal
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support import guarded_program
from support.fences import USERS
from support.processes import block_until, pids_with, python_of, run_python, user_options

# Without a fence as root, if root runs the tests, and in a fence as an unprivileged user.
in_and_without_a_fence = pytest.mark.parametrize(
    ("user", "options"), [(min(USERS), []), (max(USERS), ["fenced"])], ids=["not fenced", "fenced"]
)


@contextmanager
def program_with_escapes(user: int, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run ``support.guarded_program`` until its commands have started the processes that try to escape.

    At the end its folder for temporary files must be removed.
    """
    with subprocess.Popen(
        [python_of(user), guarded_program.__file__, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **user_options(user),
    ) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        assert process.stdout.readline() == "up\n"
        assert folder.is_dir()
        yield process
    block_until(lambda: not folder.exists())


@pytest.mark.slow
@pytest.mark.parametrize("end", ["end", "timeout", "cancel"])
@in_and_without_a_fence
def test_no_process_escapes_its_call(end: str, user: int, options: list[str]) -> None:
    mark = uuid.uuid4().hex
    with program_with_escapes(user, end, mark, *options) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "over\n"
        assert pids_with(mark) == []
        process.communicate("")
        assert process.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("signal_name", ["SIGTERM", "SIGHUP", "SIGKILL"])
@in_and_without_a_fence
def test_no_process_escapes_a_killed_chain(signal_name: str, user: int, options: list[str]) -> None:
    mark = uuid.uuid4().hex
    with program_with_escapes(user, "stay", mark, *options) as process:
        assert pids_with(mark)
        process.send_signal(signal.Signals[signal_name])
        block_until(lambda: not pids_with(mark))


REMOVE_FOLDER = """
import os, shutil, sys, tempfile
from chain.tools.processes import guard

place = tempfile.mkdtemp()
parent = os.open(place, os.O_PATH)
for name in ("folder", "outside", "outside/sub"):
    os.mkdir(name, 0o755, dir_fd=parent)
open(f"{place}/outside/kept", "w").close()
folder = guard.open_subfolder("folder", parent)
os.fchdir(folder)
for _ in range(sys.getrecursionlimit() + 100):
    os.mkdir("a")
    os.chdir("a")
open("file", "w").close()
os.symlink(f"{place}/outside", "link")
os.makedirs("locked/inner")
os.chmod("locked/inner", 0)
os.chmod("locked", 0)
if "moved" in sys.argv:
    os.rename("folder", "moved", src_dir_fd=parent, dst_dir_fd=parent)
    os.symlink("outside", "folder", dir_fd=parent)
os.chdir("/")
guard.remove(folder, "folder", parent)
print(*sorted(os.listdir(place)))
print(*sorted(os.listdir(f"{place}/outside")), oct(os.stat(f"{place}/outside/sub").st_mode))
print(*os.listdir(f"{place}/moved") if "moved" in sys.argv else [])
shutil.rmtree(place)
"""
"""Removes a folder whose content is deep, locked and a link. With ``moved``, the folder was replaced by a link."""


@pytest.mark.slow
@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("user", USERS, ids=lambda user: f"user {user}")
@pytest.mark.parametrize(
    ("options", "remaining"),
    [([], "outside"), (["moved"], "folder moved outside")],
    ids=["in place", "moved and replaced by a link"],
)
def test_deep_and_locked_folders_are_removed_without_links(user: int, options: list[str], remaining: str) -> None:
    entries, outside, in_moved_folder = run_python(user, "-c", REMOVE_FOLDER, *options).splitlines()
    assert entries == remaining
    assert outside == "kept sub 0o40755", "the target of the link has lost an entry or its mode"
    assert in_moved_folder == ""
