"""Commands in a folder that was removed: those that need no folder work, and the others fail with one sentence."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.program import call_program, make_environ

GONE = "chain: the current folder was removed; change to another one, or name a folder with --workspace\n"
CASES = [
    ("-p hello --model offline", 2, GONE),
    ("-p hello --model offline --workspace .", 2, GONE),
    ("-p hello --model offline --workspace {there}", 0, ""),
    ("-p hello --model offline -c", 2, GONE),
    ("-p hello --model offline -r {id}", 0, ""),
    ("-p hello --model offline -r {id} --workspace {there}", 0, ""),
    ("-p hello --config mine.yaml", 2, GONE),
    ("-p hello --model offline -r {id} --script mine", 2, "chain: mine: cannot be read: No such file or directory\n"),
    ("sessions", 0, ""),
    ("sessions show {id}", 0, ""),
    ("sessions export {id} --format html", 0, ""),
    ("replay {id}", 0, ""),
    ("explain hello", 0, ""),
    ("check --model offline", 2, GONE),
    ("check --model offline --workspace {there}", 0, ""),
    ("completion bash", 0, ""),
    ("completion models", 0, ""),
    ("completion ids", 2, GONE),
    ("demo", 0, None),
    ("help", 0, ""),
    ("init", 2, "chain: config.yaml: cannot be written: No such file or directory\n"),
    ("init {there}/new", 0, ""),
    ("send hello", 2, GONE),
    ("send hello --session x", 2, "chain: no chain is running the session 'x'; start one with: chain\n"),
    ("watch", 2, GONE),
    ("acp", 0, ""),
    ("worker --only .", 2, None),
]
"""Each command line, its exit code, and its error output, or ``None`` for any."""


@pytest.fixture
def removed_folder(tmp_path: Path) -> Iterator[Path]:
    """A path to a folder that was removed."""
    folder = tmp_path / "removed"
    folder.mkdir()
    descriptor = os.open(folder, os.O_RDONLY)
    folder.rmdir()
    yield Path(f"/proc/self/fd/{descriptor}")
    os.close(descriptor)


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(("command", "code", "error"), CASES, ids=[command for command, _, _ in CASES])
def test_a_command_in_a_removed_folder_ends_well(
    command: str, code: int, error: str | None, removed_folder: Path, tmp_path: Path
) -> None:
    there, variables, id = tmp_path / "there", make_environ(tmp_path, {}), ""
    there.mkdir()
    if "{id}" in command:
        call_program("-p", "hello", "--model", "offline", cwd=there, environ=variables)
        (journal,) = (tmp_path / "state/chain/sessions").glob("*.jsonl")
        id = journal.stem
    done = call_program(*command.format(there=there, id=id).split(), cwd=removed_folder, environ=variables)
    assert done.returncode == code, done.stderr
    assert error is None or done.stderr == error or (code == 0 and "removed" not in done.stderr)
