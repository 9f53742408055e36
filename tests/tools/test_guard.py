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


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("user", USERS, ids=lambda user: f"user {user}")
@pytest.mark.parametrize("fenced", [False, True], ids=["open", "fenced"])
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
