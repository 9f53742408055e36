"""Clients of others for `chain acp`, installed as their users install them; where that fails, a test is skipped."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from .house import ROOT

INSTALLING_S = 120
"""How long an installation may take."""


def _install(what: str, *command: str, cwd: Path) -> None:
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, timeout=INSTALLING_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"{what} could not be installed: {type(error).__name__}")
    if done.returncode:
        pytest.skip(f"{what} could not be installed here")


def install_python(package: str, folder: Path) -> Path:
    """Install a Python package for programs of its own; gives the folder that goes on their path."""
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1")
    _install(package, *pip, "--target", str(folder), package, cwd=folder)
    return folder


def install_node(package: str, folder: Path) -> Path:
    """Install a package for Node; gives the folder whose programs find it."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("there is no Node here")
    (folder / "package.json").write_text('{"private": true}')
    npm = ("npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")
    _install(package, *npm, package, cwd=folder)
    return folder


def configure(home: Path) -> Sequence[str]:
    """A configuration with the rules for clients of others; gives the options that choose it."""
    config = home / "config.yaml"
    script = f"{ROOT}/tests/support/acp_rules.yaml"
    config.write_text(f"""
models:
  default: test
  definitions:
    test: {{provider: scripted, script: {script}}}
    other: {{provider: scripted, script: {script}}}
chains:
  default: {{model: test, system_prompt: null, tools: [todo, files, edit, ask]}}
  review: {{model: other, system_prompt: null, tools: [todo, files]}}
""")
    return ["--config", str(config)]
