"""The shipped texts: code blocks, tables and commands of the README and the help, and the offline rules."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from chain.config import yamlfile
from chain.providers.scripted import reader
from chain.providers.scripted.rules import RuleFile

from .program import run_program
from .project import ROOT

PROMPTS = ROOT / "prompts"
REFERENCE = ROOT / "cli" / "help"


def text_of(name: str) -> str:
    """Return the text of README.md, or of a topic of ``chain help``."""
    return (ROOT / name if name == "README.md" else REFERENCE / f"{name}.md").read_text(encoding="utf-8")


def code_block(name: str, mark: str) -> str:
    """Return the code block after the comment ``<!-- mark -->``."""
    match = re.search(rf"<!-- {mark} -->\n```\w+\n(.*?)```", text_of(name), re.S)
    assert match, f"no block {mark} in {name}"
    return match[1]


def table_rows(name: str, head: str) -> list[list[str]]:
    """Return the cells of each row of the table whose first column has this head."""
    match = re.search(rf"^\| {re.escape(head)} +\|.*\n\|[-|]+\n((?:\|.*\n)+)", text_of(name), re.M)
    assert match, f"no table {head} in {name}"
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in match[1].splitlines()]


def run_at_home(*argv: str, cwd: Path, home: Path) -> subprocess.CompletedProcess[str]:
    """Run Python with a home of its own and no API key."""
    environ = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"}
    return run_program([sys.executable, *argv], cwd=cwd, env=environ, stdin=subprocess.DEVNULL, text=True)


def offline_rules() -> RuleFile:
    """Return the rules without their delays."""
    text = (PROMPTS / "offline_model.yaml").read_text(encoding="utf-8")
    return reader.read_rules(yamlfile.parse(text.replace("delay_s: 0.01", "delay_s: 0"), "offline_model.yaml"))
