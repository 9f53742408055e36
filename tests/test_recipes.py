"""The recipes of the reference do what they say."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.documents import block

from chain.lines.parse import parse_line

SENDS = """#!/bin/sh
printf '%s|' "$@" > sent
exit "$(cat code)"
"""
"""A program in the place of ``chain``: it notes its arguments."""

BROKEN = "echo one; echo two; echo test_it FAILED; exit 1"


def hooked(folder: Path, tests: str, code: int) -> tuple[int, str]:
    """Run the hook next to tests, and a ``chain`` that ends with this code: its own code, and what was sent."""
    (folder / "code").write_text(str(code))
    for name, script in {"run-tests": f"#!/bin/sh\n{tests}\n", "chain": SENDS}.items():
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    (folder / "hook").write_text(block("side-door", "hook"))
    done = subprocess.run(["sh", "hook"], cwd=folder, env={"PATH": f"{folder}:/usr/bin:/bin"}, check=False)
    return done.returncode, (folder / "sent").read_text() if (folder / "sent").exists() else ""


@pytest.mark.parametrize("code", [0, 1])
def test_the_hook_tells_a_running_chain_that_the_tests_broke_and_fails_nobodys_commit(
    code: int, tmp_path: Path
) -> None:
    done, sent = hooked(tmp_path, BROKEN, code)
    assert done == 0
    command, line, _ = sent.split("|")
    assert command == "send"
    assert line == "!the tests are broken since the last commit: one\ntwo\ntest_it FAILED"
    assert parse_line(line).urgency == "urgent"


def test_the_hook_is_silent_about_tests_that_pass(tmp_path: Path) -> None:
    assert hooked(tmp_path, "echo fine", 0) == (0, "")
