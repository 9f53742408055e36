"""The guard: nothing that a command starts outlives its call, however the call, or the chain, ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from support import guarded_program
from support.processes import NOBODY, as_user, marked, python_of, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the guard is for Linux")

ENDS = ["end", "timeout", "cancel", "SIGTERM", "SIGHUP", "SIGKILL"]
USERS = sorted({os.geteuid(), NOBODY if os.geteuid() == 0 else os.geteuid()})


@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(("user", "fenced"), [(USERS[0], False), (USERS[-1], True)])
def test_nothing_is_left_of_commands_that_try_to_get_away(end: str, user: int, fenced: bool) -> None:
    """All ways to get away at once: setsid, nohup, two forks, the background, and a command against its keeper."""
    python, mark = python_of(user), uuid.uuid4().hex
    if python is None:
        pytest.skip("no Python that another user may run")
    how = "stay" if end.startswith("SIG") else end
    arguments = [python, guarded_program.__file__, how, mark, *(["fenced"] if fenced else [])]
    process = subprocess.Popen(
        arguments,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **as_user(user),
    )
    with process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        assert process.stdout.readline() == "up\n"
        assert folder.is_dir()
        if how == "stay":
            assert marked(mark)
            process.send_signal(signal.Signals[end])
            until(lambda: not marked(mark))
        else:
            assert process.stdout.readline() == "over\n"
            assert marked(mark) == []
            process.communicate("")
            assert process.returncode == 0
    until(lambda: not folder.exists())


REMOVED = """
import os, shutil, sys, tempfile
from chain.tools.processes import guard

place = tempfile.mkdtemp()
parent = os.open(place, os.O_PATH)
for name in ("folder", "outside", "outside/sub"):
    os.mkdir(name, 0o755, dir_fd=parent)
open(f"{place}/outside/kept", "w").close()
folder = guard.open_subfolder("folder", parent)
os.fchdir(folder)
for _ in range(1100):
    os.mkdir("a")
    os.chdir("a")
open("file", "w").close()
os.symlink(f"{place}/outside", "link")
os.makedirs("locked/inner")
os.chmod("locked/inner", 0)
os.chmod("locked", 0)
if len(sys.argv) > 1:
    os.rename("folder", "moved", src_dir_fd=parent, dst_dir_fd=parent)
    os.symlink("outside", "folder", dir_fd=parent)
os.chdir("/")
guard.remove(folder, "folder", parent)
print(sorted(os.listdir(place)), sorted(os.listdir(f"{place}/outside")), oct(os.stat(f"{place}/outside/sub").st_mode))
print(os.listdir(f"{place}/moved") if len(sys.argv) > 1 else "")
shutil.rmtree(place)
"""


@pytest.mark.slow
@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("user", USERS, ids=lambda user: f"user {user}")
@pytest.mark.parametrize("how", ["", "moved"])
def test_a_folder_is_removed_however_deep_and_locked_and_by_no_link(user: int, how: str) -> None:
    python = python_of(user)
    if python is None:
        pytest.skip("no Python that another user may run")
    command = [python, "-c", REMOVED, *how.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, **as_user(user))
    left = ["folder", "moved", "outside"] if how else ["outside"]
    assert done.stdout.splitlines() == [f"{left} ['kept', 'sub'] 0o40755", "[]" if how else ""]
