"""Paths that a model gives: none leads out of the workspace, also if a folder is swapped after the check."""

import os
import socket
from pathlib import Path, PurePath

import pytest
from support.sockets import bind

from chain.errors import ToolError
from chain.tools import file_tree
from chain.tools.paths import describe_missing, open_file, resolve_existing, resolve_inside, root_of


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A workspace with links of every kind, and outside of it a folder with the same names."""
    for name in ("work/docs/a.txt", "work/docs/deep/c.txt", "work/docs/tab?.txt", "trap/a.txt", "trap/c.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("outside\n" if "trap" in name else "inside\n")
    work = tmp_path / "work"
    (work / os.fsdecode(b"docs/gr\xfc\xdfe.txt")).write_text("")
    links = {"out": "../trap/a.txt", "away": "..", "round": "round", "gone": "nothing", "docs/short": "deep/c.txt"}
    for name, target in links.items():
        (work / name).symlink_to(target)
    os.mkfifo(work / "pipe")
    return work


REASON_BY_PATH = [
    ("../trap/a.txt", "must not contain .."),
    ("docs/..", "must not contain .."),
    ("/etc/passwd", "absolute path"),
    ("~/x", "absolute path"),
    ("out", "leads out of the workspace"),
    ("away/trap/a.txt", "leads out of the workspace"),
    ("round", "circle"),
    ("", "path is empty"),
    ("a\0b", "NUL"),
    ("gone", "gone is a broken link: its target does not exist."),
    ("gone/x/y", "gone is a broken link: its target does not exist."),
    ("docs/a.txt/x", "There is no docs/a.txt/x: a part of this path is a file."),
    ("x" * 300, "cannot be read: File name too long."),
    ("docs/a.tx", "There is no docs/a.tx; did you mean docs/a.txt?"),
    ("dosc/a.txt", "There is no dosc/a.txt; did you mean docs/a.txt?"),
    ("docs/quite-another", "There is no docs/quite-another."),
    ("docs/gr??e.txt", "There is no docs/gr??e.txt."),  # its name on the disk cannot be shown
    ("docs/tab\t.txt", "There is no docs/tab?.txt."),  # the tab is shown as ?, but a file has a real ? there
    ("docs/tab.txt", "did you mean docs/tab?.txt?"),
]


@pytest.mark.parametrize(("path", "reason"), REASON_BY_PATH, ids=lambda text: text[:20])
def test_unusable_path_is_refused(workspace: Path, path: str, reason: str) -> None:
    with pytest.raises(ToolError) as refusal:
        resolve_existing(root_of(workspace, (), path), path)
    assert reason in str(refusal.value)


def test_absolute_path_of_the_workspace_is_refused(workspace: Path) -> None:
    with pytest.raises(ToolError, match="absolute"):
        root_of(workspace, (), str(workspace / "docs/a.txt"))


def test_link_inside_the_workspace_is_followed(workspace: Path) -> None:
    assert resolve_existing(workspace, "docs/short") == workspace.resolve() / "docs/deep/c.txt"


def test_workspace_may_be_a_link(workspace: Path) -> None:
    (workspace.parent / "link").symlink_to(workspace)
    assert resolve_existing(workspace.parent / "link", "docs/a.txt") == workspace.resolve() / "docs/a.txt"


def test_pipes_and_sockets_are_not_opened(workspace: Path) -> None:
    with pytest.raises(ToolError, match="pipe cannot be read: it is a folder, a device, a pipe"):
        open_file(workspace, ("pipe",), "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        bind(listener, workspace / "socket")
        with pytest.raises(ToolError, match="socket cannot be read"):
            open_file(workspace, ("socket",), "socket")


@pytest.mark.parametrize("path", ["docs/a.txt", "docs/deep/c.txt"])
def test_folder_swapped_after_the_check_is_not_entered(workspace: Path, path: str) -> None:
    checked = resolve_inside(workspace, path)
    *folder, name = checked.relative_to(workspace.resolve()).parts
    with open_file(workspace, (*folder, name), path) as file:
        assert file.read() == b"inside\n"
    checked.parent.rename(checked.parent.parent / "moved")
    checked.parent.symlink_to(workspace.parent / "trap")
    assert checked.read_text() == "outside\n"
    with pytest.raises(ToolError, match=f"{path} cannot be read: Not a directory"):
        open_file(workspace, (*folder, name), path)
    with pytest.raises(OSError, match="Not a directory"):
        file_tree.scan(workspace, tuple(folder))
    assert describe_missing(workspace, PurePath(f"{path}x")) == f"There is no {path}x."


def test_file_swapped_after_the_check_is_not_opened(workspace: Path) -> None:
    checked = resolve_inside(workspace, "docs/a.txt")
    checked.unlink()
    checked.symlink_to(workspace.parent / "trap/a.txt")
    with pytest.raises(ToolError, match=r"docs/a\.txt cannot be read"):
        open_file(workspace, ("docs", "a.txt"), "docs/a.txt")
