"""``chain replay``: the output of the comparison, and the exit codes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.journals import journal_files
from support.program import call_at_home as chain
from support.project import ROOT


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with the recorded session of the tests, and its configuration."""
    shutil.copytree(ROOT / "tests" / "recorded", tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_a_journal_is_replayed_from_its_file(home: Path) -> None:
    def files() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in home.iterdir() if path.is_file()}

    before = files()
    done = chain(home, "replay", "session.jsonl")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("The same: 1 run")
    assert files() == before
    assert journal_files(home) == []


def test_a_changed_prompt_is_a_difference(home: Path) -> None:
    handler = home / "handler.yaml"
    handler.write_text(handler.read_text().replace("THE USER SAYS", "THE USER WRITES"))
    done = chain(home, "replay", "session.jsonl")
    assert (done.returncode, done.stderr) == (1, "")
    assert {"-THE USER SAYS: how far are you?", "+THE USER WRITES: how far are you?"} <= set(done.stdout.splitlines())


def test_a_session_is_replayed_by_its_id(home: Path) -> None:
    lines = ["--say", "@iteration 2 use the other file", "--say", "@answer why?", "--say", "@done Once more"]
    assert chain(home, "-p", "Do the task", "--no-stdin", *lines).returncode == 0
    [journal] = journal_files(home)
    start_of_id = journal.stem[:12]
    done = chain(home, "replay", start_of_id)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def first_receipt(rows: list[bytes]) -> bytes:
    return next(row for row in rows if b'"type":"receipt"' in row)


def omit_record(rows: list[bytes]) -> list[bytes]:
    return [row for row in rows if row != first_receipt(rows)]


def cut_record(rows: list[bytes]) -> list[bytes]:
    return [row[:-20] + b"\n" if row == first_receipt(rows) else row for row in rows]


def add_orphan(rows: list[bytes]) -> list[bytes]:
    """Append the result of a call that the journal does not contain."""
    last = json.loads(rows[-1])
    content = [{"type": "tool_result", "tool_use_id": "c9", "content": "x"}]
    message = {"message": {"role": "user", "content": content}, "agent": "main", "parent_id": "root"}
    record = {**message, "type": "message", "seq": last["seq"] + 1, "time": last["time"]}
    return [*rows, json.dumps(record).encode() + b"\n"]


def add_torn_end(rows: list[bytes]) -> list[bytes]:
    return [*rows, rows[-1][:20]]


SAME, SAME_IN_PART = "The same: ", "The same as far as the journal can be read: "


@pytest.mark.parametrize(
    ("damage", "code", "verdict", "message"),
    [
        (omit_record, 1, SAME_IN_PART, "is missing from the journal."),
        (cut_record, 1, SAME_IN_PART, "of the journal cannot be read and was skipped"),
        (add_orphan, 1, SAME_IN_PART, "records of the journal refer to missing records"),
        (add_torn_end, 0, SAME, "the last record of the journal is incomplete, as after a crash"),
    ],
)
def test_damage_of_a_journal_is_reported(
    damage: Callable[[list[bytes]], list[bytes]], code: int, verdict: str, message: str, home: Path
) -> None:
    file = home / "session.jsonl"
    file.write_bytes(b"".join(damage(file.read_bytes().splitlines(keepends=True))))
    done = chain(home, "replay", "session.jsonl")
    assert (done.returncode, done.stderr) == (code, "")
    assert message in done.stdout
    *_, last_row = done.stdout.splitlines()
    assert last_row.startswith(verdict)


@pytest.mark.parametrize(
    ("words", "message_part"),
    [
        ([], "needs the id of a session"),
        (["nothing"], "nothing"),
        (["gone.jsonl"], "gone.jsonl"),
        (["rules.jsonl"], "its first record is not that of a session"),
        (["README.md"], "README.md: is not a journal of a session; journals end in .jsonl"),
    ],
)
def test_wrong_use_is_an_error(words: list[str], message_part: str, home: Path) -> None:
    shutil.copy(home / "rules.yaml", home / "rules.jsonl")
    (home / "README.md").write_text("# A project\n")
    done = chain(home, "replay", *words)
    assert (done.returncode, done.stdout) == (2, "")
    (sentence,) = done.stderr.splitlines()
    assert message_part in sentence
