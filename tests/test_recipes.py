"""The recipes of the reference do what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.documents import block
from support.house import ROOT
from support.program import environ
from support.screen import Screen
from support.terminal import busy, idle, quit

pytest_plugins = ["support.terminal"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the side door needs Linux")


@pytest.mark.parametrize("is_broken", [True, False])
def test_the_hook_tells_a_running_chain_that_the_tests_broke(is_broken: bool, screen: Screen) -> None:
    work = screen.home / "work"
    tests, chain = work / "run-tests", screen.home / "bin" / "chain"
    chain.parent.mkdir()
    scripts = {
        tests: "echo one; echo two; echo test_it FAILED; exit 1" if is_broken else "echo fine",
        chain: f'exec {sys.executable} -m cli "$@"',
        work / "hook": block("side-door", "hook").removeprefix("#!/bin/sh\n"),
    }
    for path, script in scripts.items():
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    busy(idle(screen), "gate a")
    more = {"PATH": f"{chain.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    subprocess.run(["./hook"], cwd=work, env=environ(screen.home, more), check=True, timeout=120)
    if is_broken:
        screen.until("the tests are broken since the last commit: one")
    assert ("📤" in screen.everything) is is_broken
    screen.open_gate("a")
    screen.until("test_it FAILED" if is_broken else "✓ done")
    quit(idle(screen))


def test_the_hook_fails_nobodys_commit_where_no_chain_runs(tmp_path: Path) -> None:
    (tmp_path / "run-tests").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "run-tests").chmod(0o755)
    (tmp_path / "hook").write_text(block("side-door", "hook"))
    done = subprocess.run(["sh", "hook"], cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}, check=False, timeout=120)
    assert done.returncode == 0
