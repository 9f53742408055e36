"""Which names an unfinished ``@`` and path is completed to, and in which order."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cli.input import file_index
from cli.input.file_names import MAX_OFFERED, FileNames


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A workspace with a folder, a name with spaces, and what git ignores."""
    work = tmp_path / "work"
    for name in ("prompts/a.yaml", "prompts/b.yaml", "prompts/x.log", "print.py", "my notes.txt", "build/out", ".env"):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).touch()
    (work / ".gitignore").write_text("# made by programs\nbuild/\n*.log\n!keep.log\n/print.py\n")
    (work / "keep.log").touch()
    (tmp_path / "secret").touch()
    return work


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("@pri", ["print.py"]),
        ("look at @PRO", ["prompts/", "prompts/a.yaml", "prompts/b.yaml", "prompts/x.log"]),
        ("@pru", ["prompts/", "print.py"]),
        ("@prompts/c", []),
        ("@prumpts", ["prompts/"]),
        ("@prumpta", []),
        ("look at (@prompts/", ["prompts/a.yaml", "prompts/b.yaml", "prompts/x.log"]),
        ("@prompts/b", ["prompts/b.yaml"]),
        ("@my", ['"my notes.txt"', "prompts/a.yaml", "prompts/b.yaml"]),
        ('@"my n', ['"my notes.txt"']),
        ('@"prompts', ['"prompts/', '"prompts/a.yaml"', '"prompts/b.yaml"', '"prompts/x.log"']),
        ("@not", ['"my notes.txt"']),
        ("@psa", ["prompts/a.yaml", "prompts/b.yaml"]),
        ("@bya", ["prompts/b.yaml"]),
        ("@PT/B", ["prompts/b.yaml"]),
        ("@.yaml", ["prompts/a.yaml", "prompts/b.yaml"]),
        ("@log", ["keep.log", "prompts/x.log"]),
        ("@out", ["build/out"]),
        ("@prompts/a.yaml and", []),
        ("mail me@pri", []),
        ("@nothing", []),
        ("@no/such/folder/", []),
        ("@../", []),
        ("@/", []),
        ("@~/", []),
        ("plain", []),
        ("", []),
    ],
)
def test_names(text: str, names: list[str], workspace: Path) -> None:
    assert list(FileNames(workspace).complete_name(text)[1]) == names


def test_what_git_ignores_comes_last(workspace: Path) -> None:
    _, names = FileNames(workspace).complete_name("@")
    assert names == ["keep.log", '"my notes.txt"', "prompts/", ".env", ".gitignore", "build/", "print.py"]


def test_a_completion_is_the_whole_text(workspace: Path) -> None:
    assert FileNames(workspace).completions("see @prompts/b") == ["see @prompts/b.yaml"]
    assert FileNames(workspace).completions("see @prompts/b.yaml") == []


def test_a_link_out_of_the_workspace_is_not_entered(workspace: Path) -> None:
    (workspace / "out").symlink_to(workspace.parent)
    assert FileNames(workspace).complete_name("@out/")[1] == []


def test_a_folder_of_very_many_and_a_pipe_in_the_place_of_gitignore(workspace: Path) -> None:
    for n in range(MAX_OFFERED + 1):
        (workspace / "prompts" / f"{n:04}").touch()
    os.mkfifo(workspace / "prompts" / ".gitignore")
    assert len(FileNames(workspace).complete_name("@prompts/")[1]) == MAX_OFFERED


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("look at @nofile, please", ["nofile"]),
        ("@print.py, @print.py:12. (@prompts/a.yaml)", []),
        ('@"my notes.txt" @"no notes.txt"', ["no notes.txt"]),
        ("@../secret @prompts @prompts/ @~", []),
        ("mail me@nofile", []),
        ("@staticmethod\ndef f(): ...", []),
        ("@a\0b", ["a\0b"]),
    ],
)
def test_which_names_name_nothing(workspace: Path, text: str, names: list[str]) -> None:
    assert FileNames(workspace).missing(text) == names


def test_matches_in_a_file_s_own_name_come_before_others_and_ignored_files_last(workspace: Path) -> None:
    for name in ("a/nine.py", "n/i/n/e.py", "nine/x.py", "a/nxixnxe.py", "nine.log"):
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).touch()
    _, names = FileNames(workspace).complete_name("@nin")
    assert names == ["nine/", "a/nine.py", "a/nxixnxe.py", "nine/x.py", "n/i/n/e.py", "nine.log"]


def test_the_rules_of_a_gitignore_below_and_its_exceptions_hold(workspace: Path) -> None:
    (workspace / "sub" / "deep").mkdir(parents=True)
    (workspace / "sub" / ".gitignore").write_text("q*.txt\n!q2.txt\ndeep/\n")
    for name in ("q1.txt", "q2.txt", "deep/q3.txt", "deep/q2.txt"):
        (workspace / "sub" / name).touch()
    assert FileNames(workspace).complete_name("@q")[1][:1] == ["sub/q2.txt"]
    assert FileNames(workspace).complete_name("@sub/")[1] == ["sub/q2.txt", "sub/.gitignore", "sub/deep/", "sub/q1.txt"]


def test_what_programs_made_and_links_are_not_matched(workspace: Path) -> None:
    for name in (".git/zebra", "node_modules/zebra", "src/zebra"):
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).touch()
    (workspace / "zebra2").symlink_to("/")
    (workspace / "sub").symlink_to(workspace / "src")
    assert FileNames(workspace).complete_name("@ebra")[1] == ["src/zebra"]


def test_files_of_added_directories_have_absolute_names(workspace: Path, tmp_path: Path) -> None:
    lib = tmp_path / "lib"
    (lib / "deep").mkdir(parents=True)
    (lib / "deep" / "zebra.py").touch()
    names = FileNames(workspace, lambda: (lib,))
    assert names.complete_name("@")[1][-3] == f"{lib}/"
    assert names.complete_name("@zeb")[1] == [f"{lib}/deep/zebra.py"]
    assert names.complete_name(f"@{lib}/")[1] == [f"{lib}/deep/"]
    assert names.complete_name(f"@{lib}/de")[1] == [f"{lib}/deep/", f"{lib}/deep/zebra.py"]
    assert names.complete_name(f"@{lib}/../")[1] == []
    assert names.complete_name(f"@{tmp_path}/wo")[1] == []


def test_a_longer_text_is_matched_as_if_it_was_typed_at_once(workspace: Path) -> None:
    for n in range(30):
        (workspace / f"{'xyz'[n % 3]}{n}{'abc'[n % 2]}.py").touch()
    text, names = "@", FileNames(workspace)
    for character in "x1a.py":
        text += character
        assert names.complete_name(text) == FileNames(workspace).complete_name(text)
    assert names.complete_name("@x1b") == FileNames(workspace).complete_name("@x1b")


def test_new_files_are_found_once_the_index_is_old(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = FileNames(workspace)
    assert names.complete_name("@zebra")[1] == []
    (workspace / "prompts" / "zebra").touch()
    monkeypatch.setattr(file_index, "INDEX_FRESH_S", -1.0)
    names.complete_name("@zebra")
    assert names._index._next is not None
    assert names._index._next.complete.wait(60)
    assert names.complete_name("@zebra")[1] == ["prompts/zebra"]
