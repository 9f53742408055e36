"""``chain sessions``: listing, showing, exporting and deleting stored sessions."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.journals import journal_files
from support.program import call_at_home as chain
from support.screen import Screen

QUERY = "Count the lines of every file in notes"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with two sessions, the second in another workspace, and a file that is no session."""
    home = tmp_path_factory.mktemp("home")
    (home / "notes").mkdir()
    (home / "notes" / "one.txt").write_text("one\ntwo\n")
    (home / "other").mkdir()
    say = ["--say", "@iteration 2 todo: add check the licence"]
    assert chain(home, "-p", QUERY, "--model", "offline", *say).returncode == 0
    assert chain(home, "-p", "hello there", "--model", "offline", "--workspace", "other").returncode == 0
    (journal_files(home)[0].parent / "strange.jsonl").write_bytes(os.urandom(1000))
    return home


def journals(home: Path) -> list[Path]:
    """Return the journals of the two sessions, the oldest first."""
    return [path for path in journal_files(home) if path.stem != "strange"]


def test_the_latest_session_is_listed_first(home: Path, tmp_path: Path) -> None:
    done = chain(home, "sessions", "list")
    assert (done.returncode, done.stderr) == (0, "")
    _, second, first = done.stdout.splitlines()
    oldest, latest = journals(home)
    assert oldest.stem in first
    assert first.endswith(QUERY)
    assert latest.stem in second
    assert "hello there in ~/other" in second
    assert chain(home, "sessions").stdout == done.stdout
    assert chain(tmp_path, "sessions").stdout == "There are no sessions yet.\n"
    assert not (tmp_path / "state").exists()


def test_a_session_is_shown_as_in_a_terminal(home: Path) -> None:
    id = journals(home)[0].stem
    done = chain(home, "sessions", "show", id)
    assert done.returncode == 0
    for row in (f"▶ {QUERY}", "todo: add check the licence", "→ list_files(", "✓ done, 4 iterations"):
        assert row in done.stdout
    assert "\x1b" not in done.stdout
    assert "INTERRUPTION at iteration 2" in done.stdout
    assert chain(home, "sessions", "show", id, "--ascii").stdout.isascii()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "rows", "is_painted", "is_paged"),
    [([], 60, True, False), (["--no-color"], 60, False, False), ([], 8, True, True)],
    ids=["all rows fit", "without colours", "more rows than fit"],
)
def test_a_terminal_shows_colours_and_a_pager(
    options: list[str], rows: int, is_painted: bool, is_paged: bool, home: Path
) -> None:
    words = [sys.executable, "-m", "cli", "sessions", "show", journals(home)[0].stem, *options]
    env = {"PAGER": "tail -n 2", "TERM": "xterm"}  # a pager that omits the query, which is at the top
    with Screen(words, home=home, rows=rows, columns=80, env=env) as screen:
        screen.until("✓ done")
        assert screen.wait() == 0
    assert (b"\x1b[32m" in screen.raw) == is_painted
    assert (QUERY not in screen.everything) == is_paged


@pytest.mark.parametrize(
    "command", ["show broken", *(f"export broken --format {name}" for name in ("md", "json", "html"))]
)
def test_unreadable_records_are_reported(command: str, home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "state/chain/sessions"
    folder.mkdir(parents=True)
    rows = journals(home)[0].read_bytes().splitlines(keepends=True)
    torn_row = rows[-1][:20]
    rows[5] = b"half a rec\n"
    (folder / "broken.jsonl").write_bytes(b"".join([*rows, torn_row]))
    done = chain(tmp_path, "sessions", *command.split())
    assert done.returncode == 0
    assert QUERY in done.stdout
    unreadable, missing, torn = done.stderr.splitlines()
    assert "row 6 of the journal" in unreadable
    assert "record 6 is missing" in missing
    assert "is incomplete" in torn


FORMATS = {"md": "# Count the lines", "html": "<!doctype html>", "json": '{"session"'}


"""The first characters of an export in each format."""


def check_export(text: str, format: str, journal: Path) -> None:
    """Check that a text is the session in this format."""
    assert text.startswith(FORMATS[format])
    assert "todo: add check the licence" in text
    if format == "json":
        assert json.loads(text)["records"] == [json.loads(row) for row in journal.read_text().splitlines()]


@pytest.mark.parametrize(
    ("options", "format"), [([], "md"), (["--format", "html"], "html"), (["--format", "json"], "json")]
)
def test_an_export_is_written_to_standard_output(options: list[str], format: str, home: Path) -> None:
    journal = journals(home)[0]
    done = chain(home, "sessions", "export", journal.stem, *options)
    assert (done.returncode, done.stderr) == (0, "")
    check_export(done.stdout, format, journal)


@pytest.mark.parametrize(
    ("name", "options", "format"),
    [
        ("a.html", [], "html"),
        ("a.json", [], "json"),
        ("A.HTML", [], "html"),
        ("a", [], "md"),
        ("a.txt", ["--format", "md"], "md"),
        ("b.html", ["--format", "md"], "md"),
    ],
)
def test_an_export_is_written_to_a_file(name: str, options: list[str], format: str, home: Path, tmp_path: Path) -> None:
    path, journal = tmp_path / name, journals(home)[0]
    words = ["sessions", "export", journal.stem, *options, "--output", str(path)]
    done = chain(home, *words)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    text = path.read_text(encoding="utf-8")
    check_export(text, format, journal)
    assert path.stat().st_mode & 0o077 == 0, "only the user may read the file"
    again = chain(home, *words)
    assert again.returncode == 2
    assert "already exists" in again.stderr
    assert path.read_text(encoding="utf-8") == text


def answer_deletion(answer: str, home: Path) -> tuple[int, bool]:
    """Answer whether to delete a copy of a session. Return the exit code, and whether the copy still exists."""
    path = journals(home)[0]
    copy = path.with_name("20200101-000000-000000.jsonl")
    copy.write_bytes(path.read_bytes())
    done = chain(home, "sessions", "delete", "20200101", stdin=answer)
    assert f"Delete session {copy.stem} ({QUERY})? [y/N] " in done.stderr
    assert path.exists()
    is_kept = copy.exists()
    copy.unlink(missing_ok=True)
    return done.returncode, is_kept


@pytest.mark.parametrize("answer", ["y\n", "YES\n", " y"])
def test_a_yes_deletes_a_session(answer: str, home: Path) -> None:
    assert answer_deletion(answer, home) == (0, False)


@pytest.mark.parametrize("answer", ["", "\n", "yess\n", "no y\n", "y\0\n"])
def test_any_other_answer_keeps_a_session(answer: str, home: Path) -> None:
    assert answer_deletion(answer, home) == (1, True)


def test_an_open_session_is_marked_and_not_deleted(home: Path) -> None:
    path = journals(home)[0]
    with path.open("rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        _, latest, oldest, *_ = chain(home, "sessions").stdout.splitlines()
        done = chain(home, "sessions", "delete", path.stem, stdin="y\n")
    assert latest.startswith("  ")
    assert oldest.startswith("● ")
    assert done.returncode == 2
    assert "open in another process" in done.stderr
    assert "[y/N]" not in done.stderr
    assert path.exists()


@pytest.mark.parametrize(
    ("words", "message_parts"),
    [
        (["lst"], ["'lst'", "chain sessions list?"]),
        (["frobnicate"], ["list, show, export, delete"]),
        (["show"], ["chain sessions show needs one id"]),
        (["show", "a", "b"], ["chain sessions show needs one id"]),
        (["list", "a"], ["chain sessions list has no arguments"]),
        (["show", "zzz"], ["no session 'zzz'", "chain sessions list"]),
        (["export", "2"], ["matches 2 sessions", "type more of the id"]),
        (["export", "zzz", "--output", "x"], ["no session 'zzz'"]),
        (["export", "ID", "--output", "no/such/folder.md"], ["no/such/folder.md"]),
        (["export", "ID", "--output", "a.foo"], ["foo", "md, json, html", "--format"]),
        (["show", "zzz", "--output", "y"], ["--output is for chain sessions export"]),
    ],
)
def test_a_mistake_gets_one_sentence(words: Sequence[str], message_parts: list[str], home: Path) -> None:
    before = sorted(home.iterdir())
    done = chain(home, "sessions", *(journals(home)[0].stem if word == "ID" else word for word in words))
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    for part in message_parts:
        assert part in done.stderr
    assert sorted(home.iterdir()) == before


def test_a_closed_pipe_is_no_error(home: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = chain(home, "sessions", "export", journals(home)[0].stem, "--format", "html", stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")
