"""Commands in a folder that was removed: those that need no folder work, and the others fail with one sentence."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.program import call_program, make_environ

GONE = "chain: the current folder was removed; change to another one, or name a folder with --workspace\n"
FAILURES = {
    # A run works in the current folder, unless another one is named or the session has one.
    "-p hello --model offline": GONE,
    "-p hello --model offline --workspace .": GONE,
    "-p hello --model offline -c": GONE,
    # A relative path is in the current folder.
    "-p hello --config mine.yaml": GONE,
    "-p hello --model offline -r {id} --script mine": "chain: mine: cannot be read: No such file or directory\n",
    "init": "chain: config.yaml: cannot be written: No such file or directory\n",
    # These commands look for files or sessions of the current folder.
    "check --model offline": GONE,
    "completion ids": GONE,
    "send hello": GONE,
    "watch": GONE,
    # These two do not get as far as the folder.
    "send hello --session x": "chain: no chain is running the session 'x'; start one with: chain\n",
    "worker --only .": "chain: chain worker needs the address of a Redis: --state redis://HOST/DB, or CHAIN_STATE\n",
}
"""Command lines that fail, and their error output."""
SUCCESSES = [
    "-p hello --model offline --workspace {there}",
    "-p hello --model offline -r {id}",
    "-p hello --model offline -r {id} --workspace {there}",
    "sessions",
    "sessions show {id}",
    "sessions export {id} --format html",
    "replay {id}",
    "explain hello",
    "check --model offline --workspace {there}",
    "completion bash",
    "completion models",
    "demo",
    "help",
    "init {there}/new",
    "acp",
]


@pytest.fixture
def removed_folder(tmp_path: Path) -> Iterator[Path]:
    """The path of a folder that was removed."""
    folder = tmp_path / "removed"
    folder.mkdir()
    descriptor = os.open(folder, os.O_RDONLY)
    folder.rmdir()
    yield Path(f"/proc/self/fd/{descriptor}")  # the one path by which a process can still enter the folder
    os.close(descriptor)


def call(command: str, folder: Path, home: Path) -> subprocess.CompletedProcess[str]:
    """Call the program in a folder. In the command, ``{there}`` is another folder, and ``{id}`` a session of that."""
    there, variables, id = home / "there", make_environ(home, {}), ""
    there.mkdir()
    if "{id}" in command:
        call_program("-p", "hello", "--model", "offline", cwd=there, environ=variables)
        (journal,) = (home / "state/chain/sessions").glob("*.jsonl")
        id = journal.stem
    return call_program(*command.format(there=there, id=id).split(), cwd=folder, environ=variables)


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(("command", "error"), FAILURES.items(), ids=FAILURES)
def test_a_command_without_its_folder_fails(command: str, error: str, removed_folder: Path, tmp_path: Path) -> None:
    done = call(command, removed_folder, tmp_path)
    assert (done.returncode, done.stderr) == (2, error)


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("command", SUCCESSES)
def test_a_command_that_needs_no_folder_works(command: str, removed_folder: Path, tmp_path: Path) -> None:
    done = call(command, removed_folder, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "removed" not in done.stderr
