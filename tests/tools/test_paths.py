"""Paths of the workspace: none leads out, also not when a folder is swapped after the check."""

from pathlib import Path, PurePath

import pytest

from chain.errors import ToolError
from chain.tools.paths import describe_broken_link, describe_missing, open_file, resolve_inside, root_of


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A folder in a folder, and outside a folder with the same names."""
    for name, text in {
        "work/docs/a.txt": "alpha\n",
        "work/docs/deep/c.txt": "gamma\n",
        "trap/a.txt": "outside\n",
        "trap/c.txt": "outside\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path / "work"


def spring(workspace: Path, found: Path) -> None:
    """Put the folder outside in the place of one inside."""
    found.rename(found.parent / "moved")
    found.symlink_to(workspace.parent / "trap")


def test_the_absolute_path_of_the_workspace_itself_is_refused_too(workspace: Path) -> None:
    with pytest.raises(ToolError, match="absolute"):
        root_of(workspace, (), str(workspace / "docs/a.txt"))


@pytest.mark.parametrize("path", ["docs/a.txt", "docs/deep/c.txt"])
def test_a_folder_that_becomes_a_link_after_the_check_does_not_lead_out(workspace: Path, path: str) -> None:
    real = resolve_inside(workspace, path)
    parts = real.relative_to(workspace.resolve()).parts
    with open_file(workspace, parts, path) as file:
        assert file.read() == real.read_bytes()
    spring(workspace, real.parent)
    assert real.read_text() == "outside\n"
    with pytest.raises(ToolError, match=f"{path} cannot be read: Not a directory"):
        open_file(workspace, parts, path)


def test_a_file_that_becomes_a_link_after_the_check_does_not_lead_out(workspace: Path) -> None:
    real = resolve_inside(workspace, "docs/a.txt")
    real.unlink()
    real.symlink_to(workspace.parent / "trap/a.txt")
    with pytest.raises(ToolError, match=r"docs/a\.txt cannot be read"):
        open_file(workspace, ("docs", "a.txt"), "docs/a.txt")


def test_the_names_behind_a_link_that_leads_out_are_not_listed(workspace: Path) -> None:
    path = PurePath("docs/a.tx")
    assert describe_missing(workspace, path) == "There is no docs/a.tx; did you mean docs/a.txt?"
    spring(workspace, workspace / "docs")
    assert describe_missing(workspace, path) == "There is no docs/a.tx."


def test_a_link_that_leads_to_nothing_is_found_wherever_it_stands_in_a_path(workspace: Path) -> None:
    (workspace / "docs/gone").symlink_to("nothing")
    (workspace / "docs/fine").symlink_to("a.txt")
    says = "docs/gone is a broken link: its target does not exist."
    assert describe_broken_link(workspace, PurePath("docs/gone")) == says
    assert describe_broken_link(workspace, PurePath("docs/gone/x/y")) == says
    assert (
        describe_broken_link(workspace, PurePath("docs/fine"))
        == describe_broken_link(workspace, PurePath("docs/none/x"))
        == ""
    )
