"""Processes that a test has marked, also those that have left their parents behind, and waiting for what is to come."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import trio

from .house import ROOT

DEADLINE_S = 60.0
"""Seconds that a command may take: only one of a test that fails takes so long."""

NOBODY = 65534

_ROUND_S = 0.005


def marked(mark: str) -> list[int]:
    """The living processes with this text in their environment, which they inherit however they were started."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                environ = Path("/proc", name, "environ").read_bytes()
            except OSError:
                continue  # it has ended
            if mark.encode() in environ:
                found.append(int(name))
    return found


def until(condition: Callable[[], object]) -> None:
    """Wait until it holds."""
    while not condition():
        time.sleep(_ROUND_S)


async def until_async(condition: Callable[[], object]) -> None:
    """The same while other tasks run."""
    while not condition():  # noqa: ASYNC110 - nothing tells of what another process does
        await trio.sleep(_ROUND_S)


@cache
def python_of(user: int) -> str | None:
    """A Python that this user may run, with the packages of the tests; ``None`` if there is none."""
    candidates = (sys.executable, shutil.which("python3", path="/usr/local/bin:/usr/bin"))
    return next((each for each in candidates if each and _runs(each, user)), None)


def _runs(python: str, user: int) -> bool:
    try:
        done = subprocess.run([python, "-c", "import trio, chain"], capture_output=True, check=False, **as_user(user))
    except PermissionError:
        return False
    return done.returncode == 0


def as_user(user: int) -> dict[str, Any]:
    """The arguments of ``subprocess`` for a Python that another user starts."""
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}:{ROOT}/tests:{packages}", "PYTHONDONTWRITEBYTECODE": "1"}
    more: dict[str, Any] = {} if user == os.geteuid() else {"user": user, "group": user, "extra_groups": []}
    return {"env": env, "cwd": "/", **more}
