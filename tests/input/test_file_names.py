"""The names that complete an unfinished ``@`` and path, and their order."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cli.input import file_index
from cli.input.file_names import MAX_OFFERED, FileNames


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """Return a workspace with a folder, a name with spaces, and files that git ignores."""
    work = tmp_path / "work"
    touch(work, "prompts/a.yaml", "prompts/b.yaml", "prompts/x.log", "print.py", "my notes.txt", "build/out", ".env")
    touch(work, "keep.log", "../secret")
    (work / ".gitignore").write_text("# made by programs\nbuild/\n*.log\n!keep.log\n/print.py\n")
    return work


def names(workspace: Path, text: str) -> list[str]:
    return list(FileNames(workspace).complete_name(text)[1])


@pytest.mark.parametrize(
    ("text", "expected"),
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
def test_a_name_completes_an_unfinished_path(text: str, expected: list[str], workspace: Path) -> None:
    assert names(workspace, text) == expected


def test_a_completion_is_the_whole_text(workspace: Path) -> None:
    assert FileNames(workspace).completions("see @prompts/b") == ["see @prompts/b.yaml"]
    assert FileNames(workspace).completions("see @prompts/b.yaml") == []


def test_ignored_files_come_last(workspace: Path) -> None:
    """Matches in a file's own name come first."""
    expected = ["keep.log", '"my notes.txt"', "prompts/", ".env", ".gitignore", "build/", "print.py"]
    assert names(workspace, "@") == expected
    touch(workspace, "a/nine.py", "n/i/n/e.py", "nine/x.py", "a/nxixnxe.py", "nine.log")
    expected = ["nine/", "a/nine.py", "a/nxixnxe.py", "nine/x.py", "n/i/n/e.py", "nine.log"]
    assert names(workspace, "@nin") == expected
    touch(workspace, "sub/q1.txt", "sub/q2.txt", "sub/deep/q3.txt", "sub/deep/q2.txt")
    (workspace / "sub/.gitignore").write_text("q*.txt\n!q2.txt\ndeep/\n")
    assert names(workspace, "@q")[0] == "sub/q2.txt"
    assert names(workspace, "@sub/") == ["sub/q2.txt", "sub/.gitignore", "sub/deep/", "sub/q1.txt"]


def test_links_and_folders_of_programs_are_not_entered(workspace: Path) -> None:
    touch(workspace, ".git/zebra", "node_modules/zebra", "src/zebra")
    (workspace / "zebra2").symlink_to("/")
    (workspace / "sub").symlink_to(workspace / "src")
    (workspace / "out").symlink_to(workspace.parent)
    assert names(workspace, "@ebra") == ["src/zebra"]
    assert names(workspace, "@out/") == []


def test_a_large_folder_offers_a_limited_number(workspace: Path) -> None:
    touch(workspace / "prompts", *(f"{n:04}" for n in range(MAX_OFFERED + 1)))
    os.mkfifo(workspace / "prompts/.gitignore")
    assert len(names(workspace, "@prompts/")) == MAX_OFFERED


@pytest.mark.parametrize(
    ("text", "missing"),
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
def test_names_without_a_file_are_found(workspace: Path, text: str, missing: list[str]) -> None:
    assert FileNames(workspace).missing(text) == missing


def test_files_of_added_directories_have_absolute_names(workspace: Path, tmp_path: Path) -> None:
    lib = tmp_path / "lib"
    touch(lib, "deep/zebra.py")
    files = FileNames(workspace, lambda: (lib,))
    assert files.complete_name("@")[1][-3] == f"{lib}/"
    assert files.complete_name("@zeb")[1] == [f"{lib}/deep/zebra.py"]
    assert files.complete_name(f"@{lib}/")[1] == [f"{lib}/deep/"]
    assert files.complete_name(f"@{lib}/de")[1] == [f"{lib}/deep/", f"{lib}/deep/zebra.py"]
    assert files.complete_name(f"@{lib}/../")[1] == []
    assert files.complete_name(f"@{tmp_path}/wo")[1] == []


def test_typing_on_gives_the_same_names(workspace: Path) -> None:
    touch(workspace, *(f"{'xyz'[n % 3]}{n}{'abc'[n % 2]}.py" for n in range(30)))
    files = FileNames(workspace)
    for text in ("@x", "@x1", "@x1a", "@x1a.", "@x1a.p", "@x1b"):
        assert files.complete_name(text)[1] == names(workspace, text)


def test_new_files_are_found_with_a_new_index(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = FileNames(workspace)
    assert files.complete_name("@zebra")[1] == []
    touch(workspace, "prompts/zebra")
    monkeypatch.setattr(file_index, "INDEX_FRESH_S", -1.0)
    files.complete_name("@zebra")
    assert files._index._next is not None
    assert files._index._next.complete.wait(60)
    assert files.complete_name("@zebra")[1] == ["prompts/zebra"]
