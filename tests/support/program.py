"""How the program is started: its command line, with the tools of the tests, and its environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from .house import ROOT


def environ(home: Path, more: Mapping[str, str | None]) -> dict[str, str]:
    """The environment of a program: a home of its own, a terminal with everything, no key."""
    own = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "XDG_STATE_HOME": str(home / "state"),
        "XDG_CONFIG_HOME": str(home / "config"),
        "PYTHONPATH": str(ROOT),
        "LANG": "C.UTF-8",
        "TERM": "xterm-256color",
        "GATES": str(gates(home)),
    }
    return {name: value for name, value in {**own, **more}.items() if value is not None}


def gates(home: Path) -> Path:
    """The folder of the pipes at which the tool ``gate`` waits."""
    folder = home / "gates"
    folder.mkdir(exist_ok=True)
    return folder


def program(*args: str) -> list[str]:
    """The command line of the ``chain`` program with the tools of the tests."""
    return [sys.executable, str(ROOT / "tests/forks/terminal_program.py"), *args]
