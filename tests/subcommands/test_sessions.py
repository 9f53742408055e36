"""`chain sessions`: what the program lists, shows, exports and deletes of the sessions that it left behind."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.journals import journal_files
from support.program import call_program, environ
from support.screen import Screen

QUERY = "Count the lines of every file in notes"


def chain(home: Path, *words: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    return call_program(*words, cwd=home, environ=environ(home, {}), stdin=typed)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home in which two sessions were run; the second in another workspace."""
    home = tmp_path_factory.mktemp("home")
    (home / "notes").mkdir()
    (home / "notes" / "one.txt").write_text("one\ntwo\n")
    (home / "other").mkdir()
    first = ["-p", QUERY, "--model", "offline", "--say", "@iteration 2 todo: add check the licence"]
    assert chain(home, *first).returncode == 0
    assert chain(home, "-p", "hello there", "--model", "offline", "--workspace", "other").returncode == 0
    return home


def ids(home: Path) -> list[str]:
    return [path.stem for path in journal_files(home)]


def test_the_list_has_each_session_the_latest_first(kept: Path) -> None:
    done = chain(kept, "sessions", "list")
    assert (done.returncode, done.stderr) == (0, "")
    _, second, first = done.stdout.splitlines()
    assert ids(kept)[0] in first
    assert first.endswith(QUERY)
    assert ids(kept)[1] in second
    assert "hello there in ~/other" in second
    assert chain(kept, "sessions").stdout == done.stdout


def test_where_nothing_is_kept_the_list_says_so(tmp_path: Path) -> None:
    done = chain(tmp_path, "sessions")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 1
    assert not (tmp_path / "state").exists(), "who only asks makes no folder"


def test_a_session_is_shown_as_it_looked(kept: Path) -> None:
    id = ids(kept)[0]
    done = chain(kept, "sessions", "show", id)
    assert done.returncode == 0
    for row in (f"▶ {QUERY}", "todo: add check the licence", "→ list_files(", "✓ done, 4 iterations"):
        assert row in done.stdout
    assert "\x1b" not in done.stdout
    assert "INTERRUPTION at iteration 2" in done.stdout
    assert chain(kept, "sessions", "show", id, "--ascii").stdout.isascii()


@pytest.mark.slow
@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(("options", "is_painted"), [([], True), (["--no-color"], False)])
def test_on_a_terminal_it_has_colours(options: list[str], is_painted: bool, kept: Path) -> None:
    words = [sys.executable, "-m", "cli", "sessions", "show", ids(kept)[0], *options]
    with Screen(words, home=kept, rows=60, columns=80) as screen:
        screen.until("✓ done")
        assert screen.wait() == 0
    assert (b"\x1b[1m" in screen.raw) == is_painted


@pytest.mark.slow
def test_a_long_one_goes_through_the_pager(kept: Path) -> None:
    words = [sys.executable, "-m", "cli", "sessions", "show", ids(kept)[0]]
    with Screen(words, home=kept, rows=8, columns=80, env={"PAGER": "tail -n 2", "TERM": "xterm"}) as screen:
        screen.until("✓ done")
        assert screen.wait() == 0
    assert QUERY not in screen.everything


@pytest.mark.parametrize("words", [["show"], *(["export", "--format", name] for name in ("md", "json", "html"))])
def test_what_cannot_be_read_of_it_is_said(words: Sequence[str], kept: Path, tmp_path: Path) -> None:
    folder = tmp_path / "state/chain/sessions"
    folder.mkdir(parents=True)
    rows = journal_files(kept)[0].read_bytes().splitlines(keepends=True)
    (folder / "broken.jsonl").write_bytes(b"".join([*rows[:5], b"half a rec\n", *rows[6:], rows[-1][:20]]))
    what, *options = words
    done = chain(tmp_path, "sessions", what, "broken", *options)
    assert done.returncode == 0
    assert QUERY in done.stdout
    unreadable, missing, torn = done.stderr.splitlines()
    assert "row 6 of the journal" in unreadable
    assert "record 6 is missing" in missing
    assert "is incomplete" in torn


@pytest.mark.parametrize(
    ("options", "begins"),
    [([], "# Count the lines"), (["--format", "md"], "# Count"), (["--format", "html"], "<!doctype html>")],
)
def test_an_export_goes_to_standard_output(options: list[str], begins: str, kept: Path) -> None:
    done = chain(kept, "sessions", "export", ids(kept)[0], *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(begins)
    assert "todo: add check the licence" in done.stdout


def test_the_json_has_the_records(kept: Path) -> None:
    done = chain(kept, "sessions", "export", ids(kept)[0], "--format", "json")
    rows = [json.loads(row) for row in journal_files(kept)[0].read_text().splitlines()]
    assert json.loads(done.stdout)["records"] == rows


@pytest.mark.parametrize(
    ("name", "options", "begins"),
    [
        ("a.html", [], "<!doctype html>"),
        ("a.json", [], '{"session"'),
        ("A.HTML", [], "<!doctype html>"),
        ("a", [], "# "),
        ("a.txt", ["--format", "md"], "# "),
        ("b.html", ["--format", "md"], "# "),
    ],
)
def test_an_export_makes_a_new_file_of_the_kind_that_its_name_says(
    name: str, options: list[str], begins: str, kept: Path, tmp_path: Path
) -> None:
    path = tmp_path / name
    words = ["sessions", "export", ids(kept)[0], "--output", str(path), *options]
    done = chain(kept, *words)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    before = path.read_text(encoding="utf-8")
    assert before.startswith(begins)
    assert path.stat().st_mode & 0o077 == 0
    again = chain(kept, *words)
    assert again.returncode == 2
    assert "already exists" in again.stderr
    assert path.read_text(encoding="utf-8") == before


def test_a_kind_of_file_that_there_is_not_is_an_error_that_names_the_three(kept: Path, tmp_path: Path) -> None:
    done = chain(kept, "sessions", "export", ids(kept)[0], "--output", str(tmp_path / "a.foo"))
    assert done.returncode == 2
    assert all(name in done.stderr for name in ("foo", "md, json, html", "--format"))
    assert not (tmp_path / "a.foo").exists()


@pytest.mark.parametrize("answer", ["", "\n", "yess\n", "no y\n", "y\0\n"])
def test_without_a_yes_nothing_is_deleted(answer: str, kept: Path) -> None:
    before = ids(kept)
    done = chain(kept, "sessions", "delete", before[0], typed=answer)
    assert done.returncode == 1
    assert f"Delete session {before[0]} ({QUERY})? [y/N] " in done.stderr
    assert ids(kept) == before


@pytest.mark.parametrize("answer", ["y\n", "YES\n", " y"])
def test_with_a_yes_one_session_is_deleted(answer: str, kept: Path) -> None:
    path = journal_files(kept)[0]
    copy = path.with_name(f"20200101-000000-{len(answer):06}.jsonl")
    copy.write_bytes(path.read_bytes())
    done = chain(kept, "sessions", "delete", "20200101", typed=answer)
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 1)
    assert not copy.exists()
    assert path.exists()


def test_one_that_another_process_has_open_is_marked_and_stays(kept: Path) -> None:
    path = journal_files(kept)[0]
    with path.open("rb+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert [row[:2] for row in chain(kept, "sessions").stdout.splitlines()][1:3] == ["  ", "● "]
        done = chain(kept, "sessions", "delete", path.stem, typed="y\n")
    assert done.returncode == 2
    assert "open in another process" in done.stderr
    assert "[y/N]" not in done.stderr
    assert path.exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["lst"], ["'lst'", "chain sessions list?"]),
        (["delet", "x"], ["chain sessions delete?"]),
        (["frobnicate"], ["list, show, export, delete"]),
        (["show"], ["chain sessions show needs one id"]),
        (["show", "a", "b"], ["needs one id"]),
        (["list", "a"], ["chain sessions list has no arguments"]),
        (["show", "zzz"], ["no session 'zzz'", "chain sessions list"]),
        (["export", "2"], ["matches 2 sessions", "give more of the id"]),
        (["export", "zzz", "--format", "xml"], ["--format", "md, json or html"]),
        (["export", "zzz", "--output", "x"], ["no session 'zzz'"]),
        (["delete", "zzz"], ["no session 'zzz'"]),
        (["show", "zzz", "--output", "y"], ["--output is for chain sessions export"]),
    ],
)
def test_a_mistake_is_told_in_a_sentence(words: Sequence[str], says: list[str], kept: Path) -> None:
    done = chain(kept, "sessions", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    for part in says:
        assert part in done.stderr
    assert not (kept / "x").exists()


def test_a_file_that_cannot_be_written_is_told(kept: Path) -> None:
    done = chain(kept, "sessions", "export", ids(kept)[0], "--output", "no/such/folder.md")
    assert done.returncode == 2
    assert "no/such/folder.md" in done.stderr


def test_who_closes_the_pipe_early_sees_no_error(kept: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    words = ["sessions", "export", ids(kept)[0], "--format", "html"]
    done = call_program(*words, cwd=kept, environ=environ(kept, {}), stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_foreign_file_in_the_folder_changes_nothing(kept: Path) -> None:
    before = chain(kept, "sessions").stdout
    strange = journal_files(kept)[0].parent / "strange.jsonl"
    strange.write_bytes(os.urandom(1000))
    assert chain(kept, "sessions").stdout == before
    strange.unlink()
