"""Finds processes by a mark in their environment, waits for conditions, and runs Python as another user."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import trio

from .project import ROOT

DEADLINE_S = 60.0
"""Seconds that a command may take. It ends earlier unless the test fails."""

NOBODY = 65534

_ROUND_S = 0.005


def pids_with(mark: str, file: str = "environ") -> list[int]:
    """Return the pids of the processes with this text in their environment, which all descendants inherit.

    ``file`` is the file in the folder of a process that has the text, such as ``cmdline``.
    """
    pids = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):  # the process has ended
            if mark.encode() in Path("/proc", name, file).read_bytes():
                pids.append(int(name))
    return pids


def block_until(condition: Callable[[], object]) -> None:
    """Block until the condition holds."""
    while not condition():
        time.sleep(_ROUND_S)


async def wait_until(condition: Callable[[], object]) -> None:
    """Wait until the condition holds, while other tasks run."""
    while not condition():  # noqa: ASYNC110 - another process sends no event
        await trio.sleep(_ROUND_S)


@cache
def python_of(user: int) -> str:
    """Return a Python that this user may run, with the packages of the tests. Skip the test if there is none."""
    for candidate in (sys.executable, shutil.which("python3", path="/usr/local/bin:/usr/bin")):
        with suppress(PermissionError):
            if (
                candidate
                and subprocess.run(
                    [candidate, "-c", "import trio, chain"],
                    stderr=subprocess.DEVNULL,
                    check=False,
                    **user_options(user),
                ).returncode
                == 0
            ):
                return candidate
    pytest.skip("no Python that another user may run")


def user_options(user: int) -> dict[str, Any]:
    """Return the arguments of ``subprocess`` for a Python that another user starts."""
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}:{ROOT}/tests:{packages}", "PYTHONDONTWRITEBYTECODE": "1"}
    more: dict[str, Any] = {} if user == os.geteuid() else {"user": user, "group": user, "extra_groups": []}
    return {"env": env, "cwd": "/", **more}


def run_python(user: int, *args: str) -> str:
    """Run Python as a user to its end, and return what it printed."""
    return subprocess.run(
        [python_of(user), *args],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        **user_options(user),
    ).stdout
