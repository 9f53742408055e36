"""`chain replay ID`: what the program says of a session that it compares, and its exit codes."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.house import ROOT
from support.journals import journal_files
from support.program import call_program, environ


def chain(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return call_program(*words, cwd=home, environ=environ(home, {}))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with the configuration and the journal of the session that is kept for tests."""
    shutil.copytree(ROOT / "tests" / "recorded", tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_a_journal_is_replayed_from_its_file(home: Path) -> None:
    before = {path.name: path.read_bytes() for path in home.iterdir() if path.is_file()}
    done = chain(home, "replay", "session.jsonl")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("The same: 1 run")
    assert {path.name: path.read_bytes() for path in home.iterdir() if path.is_file()} == before
    assert journal_files(home) == []


def test_a_session_is_replayed_by_the_beginning_of_its_id_with_its_lines_where_they_came(home: Path) -> None:
    says = ["--say", "@iteration 2 use the other file", "--say", "@answer why?", "--say", "@done Once more"]
    assert chain(home, "-p", "Do the task", "--no-stdin", *says).returncode == 0
    [journal] = journal_files(home)
    done = chain(home, "replay", journal.stem[:12])
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_a_file_that_is_no_journal_is_told_as_that(home: Path) -> None:
    (home / "README.md").write_text("# A project\n")
    done = chain(home, "replay", "README.md")
    assert (done.returncode, done.stdout) == (2, "")
    assert "README.md: is not a journal of a session; journals end in .jsonl" in done.stderr


def test_a_difference_is_told_with_both_sides(home: Path) -> None:
    handler = home / "handler.yaml"
    handler.write_text(handler.read_text().replace("THE USER SAYS", "THE USER WRITES"))
    done = chain(home, "replay", "session.jsonl")
    assert (done.returncode, done.stderr) == (1, "")
    assert {"-THE USER SAYS: how far are you?", "+THE USER WRITES: how far are you?"} <= set(done.stdout.splitlines())


def without(rows: list[bytes]) -> list[bytes]:
    """The rows of a journal without the receipt of its first line."""
    [at, *_] = [n for n, row in enumerate(rows) if b'"type":"receipt"' in row]
    return [*rows[:at], *rows[at + 1 :]]


def garbled(rows: list[bytes]) -> list[bytes]:
    """The rows with a record in the middle that is cut off."""
    [at, *_] = [n for n, row in enumerate(rows) if b'"type":"receipt"' in row]
    return [*rows[:at], rows[at][:-20] + b"\n", *rows[at + 1 :]]


def orphaned(rows: list[bytes]) -> list[bytes]:
    """The rows with the results of calls of which they know nothing."""
    last = json.loads(rows[-1])
    content = [{"type": "tool_result", "tool_use_id": "c9", "content": "x"}]
    message = {"message": {"role": "user", "content": content}, "agent": "main", "parent_id": "root"}
    seq, time = last["seq"] + 1, last["time"]
    return [*rows, json.dumps({**message, "type": "message", "seq": seq, "time": time}).encode() + b"\n"]


def torn(rows: list[bytes]) -> list[bytes]:
    """The rows with another one that a crash cut off."""
    return [*rows, rows[-1][:20]]


@pytest.mark.parametrize(
    ("damaged", "code", "says", "same"),
    [
        (without, 1, "is missing from the journal.", "The same as far as the journal can be read: "),
        (garbled, 1, "of the journal cannot be read and was skipped", "The same as far as the journal can be read: "),
        (
            orphaned,
            1,
            "records of the journal refer to missing ones",
            "The same as far as the journal can be read: ",
        ),
        (torn, 0, "the last record of the journal is incomplete, as after a crash", "The same: "),
    ],
)
def test_a_journal_that_is_not_whole_is_said(
    damaged: Callable[[list[bytes]], list[bytes]], code: int, says: str, same: str, home: Path
) -> None:
    file = home / "session.jsonl"
    file.write_bytes(b"".join(damaged(file.read_bytes().splitlines(keepends=True))))
    done = chain(home, "replay", "session.jsonl")
    assert (done.returncode, done.stderr) == (code, "")
    assert says in done.stdout
    assert done.stdout.splitlines()[-1].startswith(same)


@pytest.mark.parametrize("words", [[], ["nothing"], ["gone.jsonl"], ["rules.jsonl"]])
def test_what_cannot_be_replayed_is_wrong_usage(words: list[str], home: Path) -> None:
    shutil.copy(home / "rules.yaml", home / "rules.jsonl")
    done = chain(home, "replay", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
