"""The names that complete an unfinished path after ``@``, and their order."""

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
    """Return a workspace with a folder, a name with a space, and files that git ignores."""
    work = tmp_path / "work"
    touch(work, "prompts/a.yaml", "prompts/b.yaml", "prompts/x.log", "print.py", "my notes.txt", "build/out", ".env")
    touch(work, "keep.log", "../secret")
    (work / ".gitignore").write_text("# made by programs\nbuild/\n*.log\n!keep.log\n/print.py\n")
    return work


def completions_of(text: str, files: FileNames) -> list[str]:
    _, names = files.complete_name(text)
    return list(names)


def names(workspace: Path, text: str) -> list[str]:
    """Return the completions of a text in a new index."""
    return completions_of(text, FileNames(workspace))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("look at @pri", ["print.py"]),
        ("@PRO", ["prompts/", "prompts/a.yaml", "prompts/b.yaml", "prompts/x.log"]),
        ("@prompts/b", ["prompts/b.yaml"]),
        ("look at (@prompts/", ["prompts/a.yaml", "prompts/b.yaml", "prompts/x.log"]),
        ('@"my n', ['"my notes.txt"']),
        ('@"prompts', ['"prompts/', '"prompts/a.yaml"', '"prompts/b.yaml"', '"prompts/x.log"']),
    ],
    ids=["name", "capitals", "name in a folder", "folder after a parenthesis", "quoted name", "quoted folder"],
)
def test_the_start_of_a_name_is_completed(text: str, expected: list[str], workspace: Path) -> None:
    assert names(workspace, text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("@my", ['"my notes.txt"', "prompts/a.yaml", "prompts/b.yaml"], id="after names with this start"),
        pytest.param("@not", ['"my notes.txt"'], id="within a name"),
        pytest.param("@psa", ["prompts/a.yaml", "prompts/b.yaml"], id="letters with others in between"),
        pytest.param("@bya", ["prompts/b.yaml"], id="letters of the last name only"),
        pytest.param("@PT/B", ["prompts/b.yaml"], id="letters of folder and name"),
        pytest.param("@.yaml", ["prompts/a.yaml", "prompts/b.yaml"], id="extension"),
        pytest.param("@log", ["keep.log", "prompts/x.log"], id="ignored file last"),
        pytest.param("@out", ["build/out"], id="file in an ignored folder"),
    ],
)
def test_letters_in_order_find_any_file(text: str, expected: list[str], workspace: Path) -> None:
    assert names(workspace, text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("@pru", ["prompts/", "print.py"], id="three letters"),
        pytest.param("@prumpts", ["prompts/"], id="whole name"),
        pytest.param("@prumpta", [], id="two wrong letters"),
        pytest.param("@prompts/c", [], id="too few letters"),
    ],
)
def test_one_wrong_letter_is_corrected(text: str, expected: list[str], workspace: Path) -> None:
    assert names(workspace, text) == expected


@pytest.mark.parametrize(
    "text", ["@prompts/a.yaml and", "mail me@pri", "@nothing", "@no/such/folder/", "@../", "@/", "@~/", "plain", ""]
)
def test_other_text_has_no_completions(text: str, workspace: Path) -> None:
    assert names(workspace, text) == []


def test_a_completion_is_the_whole_text(workspace: Path) -> None:
    assert FileNames(workspace).completions("see @prompts/b") == ["see @prompts/b.yaml"]


def test_a_complete_name_has_no_completion(workspace: Path) -> None:
    assert FileNames(workspace).completions("see @prompts/b.yaml") == []


def test_hidden_and_ignored_files_come_last(workspace: Path) -> None:
    hidden, ignored = [".env", ".gitignore"], ["build/", "print.py"]
    assert names(workspace, "@") == ["keep.log", '"my notes.txt"', "prompts/", *hidden, *ignored]


def test_matches_in_the_last_name_come_first(workspace: Path) -> None:
    touch(workspace, "a/nine.py", "n/i/n/e.py", "nine/x.py", "a/nxixnxe.py", "nine.log")
    in_name, in_path, ignored = ["nine/", "a/nine.py", "a/nxixnxe.py"], ["nine/x.py", "n/i/n/e.py"], ["nine.log"]
    assert names(workspace, "@nin") == [*in_name, *in_path, *ignored]


def test_a_folder_may_have_its_own_ignore_rules(workspace: Path) -> None:
    touch(workspace, "sub/q1.txt", "sub/q2.txt", "sub/deep/q3.txt", "sub/deep/q2.txt")
    (workspace / "sub/.gitignore").write_text("q*.txt\n!q2.txt\ndeep/\n")
    first, *_ = names(workspace, "@q")
    assert first == "sub/q2.txt"
    assert names(workspace, "@sub/") == ["sub/q2.txt", "sub/.gitignore", "sub/deep/", "sub/q1.txt"]


def test_links_and_generated_folders_are_not_entered(workspace: Path) -> None:
    touch(workspace, ".git/zebra", "node_modules/zebra", "src/zebra")
    (workspace / "zebra2").symlink_to("/")
    (workspace / "sub").symlink_to(workspace / "src")
    (workspace / "out").symlink_to(workspace.parent)
    assert names(workspace, "@ebra") == ["src/zebra"]
    assert names(workspace, "@out/") == []


def test_a_large_folder_offers_a_limited_number(workspace: Path) -> None:
    touch(workspace / "prompts", *(f"{n:04}" for n in range(MAX_OFFERED + 1)))
    assert len(names(workspace, "@prompts/")) == MAX_OFFERED


def test_a_pipe_has_no_ignore_rules(workspace: Path) -> None:
    os.mkfifo(workspace / "prompts/.gitignore")
    assert names(workspace, "@prompts/b") == ["prompts/b.yaml"]


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
    ids=["missing", "before punctuation", "quoted", "outside and folders", "in a word", "in code", "null character"],
)
def test_names_without_a_file_are_found(workspace: Path, text: str, missing: list[str]) -> None:
    assert FileNames(workspace).missing_names(text) == missing


def test_files_of_added_directories_have_absolute_names(workspace: Path, tmp_path: Path) -> None:
    lib = tmp_path / "lib"
    touch(lib, "deep/zebra.py")
    files = FileNames(workspace, lambda: (lib,))
    *_, added, _ignored_folder, _ignored_file = completions_of("@", files)
    assert added == f"{lib}/"
    assert completions_of("@zeb", files) == [f"{lib}/deep/zebra.py"]
    assert completions_of(f"@{lib}/", files) == [f"{lib}/deep/"]
    assert completions_of(f"@{lib}/de", files) == [f"{lib}/deep/", f"{lib}/deep/zebra.py"]
    assert completions_of(f"@{lib}/../", files) == []
    assert completions_of(f"@{tmp_path}/wo", files) == []


def test_each_key_gives_what_a_new_index_gives(workspace: Path) -> None:
    touch(workspace, *(f"{first}{n}{last}.py" for first in "xyz" for last in "ab" for n in range(5)))
    files = FileNames(workspace)
    for text in ("@x", "@x1", "@x1a", "@x1a.", "@x1a.p", "@x1b"):
        assert completions_of(text, files) == names(workspace, text)


def test_new_files_are_found_with_a_new_index(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = FileNames(workspace)
    assert completions_of("@zebra", files) == []
    touch(workspace, "prompts/zebra")
    monkeypatch.setattr(file_index, "INDEX_FRESH_S", -1.0)  # any index is too old
    files.complete_name("@zebra")
    assert files._index._next is not None
    assert files._index._next.complete.wait(60)
    assert completions_of("@zebra", files) == ["prompts/zebra"]
