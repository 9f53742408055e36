"""The guard: no process of a command outlives its call, however the call or chain ends."""

from __future__ import annotations

import signal
import subprocess
import uuid
from pathlib import Path

import pytest
from support import guarded_program
from support.fences import USERS
from support.processes import as_user, marked, python_of, run_python, until


@pytest.mark.slow
@pytest.mark.parametrize("end", ["end", "timeout", "cancel", "SIGTERM", "SIGHUP", "SIGKILL"])
@pytest.mark.parametrize(("user", "fenced"), [(USERS[0], False), (USERS[-1], True)])
def test_no_process_escapes_its_call(end: str, user: int, fenced: bool) -> None:
    """Each command tries another way: setsid, nohup, two forks, the background, killing or stopping its keeper."""
    mark, is_signal = uuid.uuid4().hex, end.startswith("SIG")
    arguments = ["stay" if is_signal else end, mark, *(["fenced"] if fenced else [])]
    with subprocess.Popen(
        [python_of(user), guarded_program.__file__, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **as_user(user),
    ) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        assert process.stdout.readline() == "up\n"
        assert folder.is_dir()
        if is_signal:
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
def test_deep_and_locked_folders_are_removed_without_links(user: int, how: str) -> None:
    left = ["folder", "moved", "outside"] if how else ["outside"]
    said = run_python(user, "-c", REMOVED, *how.split())
    assert said.splitlines() == [f"{left} ['kept', 'sub'] 0o40755", "[]" if how else ""]
