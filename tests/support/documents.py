"""The README and the reference: their code blocks and tables, and a way to run their commands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from .house import ROOT
from .program import run_program

REFERENCE = ROOT / "cli" / "help"


def text_of(name: str) -> str:
    """Return the README, or a topic of the reference."""
    return (ROOT / name if name == "README.md" else REFERENCE / f"{name}.md").read_text(encoding="utf-8")


def block(name: str, mark: str) -> str:
    """Return the code block after a mark."""
    found = re.search(rf"<!-- {mark} -->\n```\w+\n(.*?)```", text_of(name), re.S)
    assert found, f"no block {mark} in {name}"
    return found[1]


def rows(name: str, head: str) -> list[list[str]]:
    """Return the cells of the table whose first column has this head."""
    found = re.search(rf"^\| {re.escape(head)} +\|.*\n\|[-|]+\n((?:\|.*\n)+)", text_of(name), re.M)
    assert found, f"no table {head} in {name}"
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in found[1].splitlines()]


def run(*argv: str, cwd: Path, home: Path) -> subprocess.CompletedProcess[str]:
    """Run Python with a home of its own and no key."""
    environ = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"}
    return run_program([sys.executable, *argv], cwd=cwd, env=environ, stdin=subprocess.DEVNULL, text=True)
