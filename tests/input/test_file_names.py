"""Which names an unfinished ``@`` and path is completed to, and in which order."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

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
        ("look at @PRO", ["prompts/"]),
        ("@pru", ["prompts/", "print.py"]),
        ("@prompts/c", []),
        ("@prumpts", ["prompts/"]),
        ("@prumpta", []),
        ("look at (@prompts/", ["prompts/a.yaml", "prompts/b.yaml", "prompts/x.log"]),
        ("@prompts/b", ["prompts/b.yaml"]),
        ("@my", ['"my notes.txt"']),
        ('@"my n', ['"my notes.txt"']),
        ('@"pro', ['"prompts/']),
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
    assert list(FileNames(workspace).begun(text)[1]) == names


def test_what_git_ignores_comes_last(workspace: Path) -> None:
    _, names = FileNames(workspace).begun("@")
    assert names == ["keep.log", '"my notes.txt"', "prompts/", ".env", ".gitignore", "build/", "print.py"]


def test_a_completion_is_the_whole_text(workspace: Path) -> None:
    assert FileNames(workspace).completions("see @prompts/b") == ["see @prompts/b.yaml"]
    assert FileNames(workspace).completions("see @prompts/b.yaml") == []


def test_a_link_out_of_the_workspace_is_not_entered(workspace: Path) -> None:
    (workspace / "out").symlink_to(workspace.parent)
    assert FileNames(workspace).begun("@out/")[1] == []


def test_a_folder_of_very_many_and_a_pipe_in_the_place_of_gitignore(workspace: Path) -> None:
    for n in range(MAX_OFFERED + 1):
        (workspace / "prompts" / f"{n:04}").touch()
    os.mkfifo(workspace / "prompts" / ".gitignore")
    assert len(FileNames(workspace).begun("@prompts/")[1]) == MAX_OFFERED


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
