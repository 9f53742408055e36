"""Added directories: tools read them, and edit in them with approval. No path leads out of them.

``LIB`` in a path stands for the added directory, and ``ROOT`` for the folder that contains it and the workspace. The
user's queries name the tool and its path; ``set`` reads a file before writing it, ``write`` does not.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.places import Place

from chain.errors import UserError
from chain.tools.edit import edit_tools
from chain.tools.files import TOOLS

RULES = r"""
rules:
  - {when: {tool: read_file, user: 'set (?P<path>\S+) (?P<text>\S+)'},
     tools: [{name: write_file, input: {path: "${path}", content: "${text}"}}]}
  - {when: {tool: '\w+'}, text: Done.}
  - {when: {user: 'set (\S+) (\S+)'}, tools: [{name: read_file, input: {path: "${1}"}}]}
  - {when: {user: 'write (\S+)'}, tools: [{name: write_file, input: {path: "${1}", content: new}}]}
  - {when: {user: 'read (\S+)'}, tools: [{name: read_file, input: {path: "${1}"}}]}
  - {when: {user: 'list (\S+)'}, tools: [{name: list_files, input: {path: "${1}"}}]}
  - {when: {user: 'search (\S+)'}, tools: [{name: search_files, input: {path: "${1}", pattern: lib}}]}
  - {text: Hello.}
"""


class Project(Place):
    """A workspace ``project`` and a directory ``lib`` next to it."""

    @property
    def root(self) -> Path:
        return self.workspace.parent

    @property
    def lib(self) -> Path:
        return self.root / "lib"

    def expand(self, text: str) -> str:
        return text.replace("LIB", str(self.lib)).replace("ROOT", str(self.root))


@pytest.fixture
def place(tmp_path: Path) -> Project:
    for name in ("project/a.txt", "lib/b.txt", "lib/deep/c.txt", "lib/.git/config", "other/d.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{name}\n")
    (tmp_path / "lib/out").symlink_to(tmp_path / "other")
    (tmp_path / "lib/back").symlink_to(tmp_path / "project/a.txt")
    folder = tmp_path.resolve()
    return Project(folder / "project", folder / "state", RULES, [*TOOLS, *edit_tools()], allow="write_file")


async def test_tools_work_in_an_added_directory(place: Project) -> None:
    """A path with a missing letter gets a suggestion, as in the workspace."""
    lib = place.lib
    async with place.open(add_dirs=[str(lib)]) as chain:
        assert f"{lib}/deep/c.txt: 1 line" in await place.ask(chain, f"list {lib}")
        assert "lib/b.txt" in await place.ask(chain, f"read {lib}/b.txt")
        assert f"{lib}/b.txt:1: lib/b.txt" in await place.ask(chain, f"search {lib}")
        assert f"Changed {lib}/b.txt" in await place.ask(chain, f"set {lib}/b.txt new")
        assert (lib / "b.txt").read_text() == "new"
        assert f"Created {lib}/deep/n.txt" in await place.ask(chain, f"write {lib}/deep/n.txt")
        assert await place.ask(chain, f"read {lib}/b.tx") == f"There is no {lib}/b.tx; did you mean {lib}/b.txt?"


@pytest.mark.parametrize(
    ("path", "error"),
    [
        pytest.param("LIB/../other/d.txt", "must not contain ..", id="parent of the directory"),
        pytest.param("LIB/out/d.txt", "leads out of", id="link to another folder"),
        pytest.param("LIB/back", "leads out of", id="link to a file of the workspace"),
        pytest.param("ROOT/other/d.txt", "or a path in LIB", id="folder that was not added"),
        pytest.param("ROOT/project/a.txt", "give one relative to the workspace", id="absolute path in the workspace"),
        pytest.param("../lib/b.txt", "must not contain ..", id="relative path to the directory"),
    ],
)
async def test_no_path_leads_out(place: Project, path: str, error: str) -> None:
    async with place.open(add_dirs=[str(place.lib)]) as chain:
        for verb in ("read", "write", "list", "search"):
            assert place.expand(error) in await place.ask(chain, f"{verb} {place.expand(path)}")
    assert (place.root / "project/a.txt").read_text() == "project/a.txt\n"
    assert (place.root / "other/d.txt").read_text() == "other/d.txt\n"


@pytest.mark.parametrize(
    ("allow", "path", "is_allowed"),
    [
        pytest.param("write_file", "LIB/n.txt", True, id="tool allowed"),
        pytest.param("write_file(*)", "LIB/n.txt", False, id="all files of the workspace allowed"),
        pytest.param("write_file(LIB/*)", "LIB/n.txt", True, id="directory allowed"),
        pytest.param("write_file(LIB/*)", "n.txt", False, id="directory allowed, file in the workspace"),
        pytest.param("write_file", "LIB/.git/n.txt", False, id="protected git folder"),
        pytest.param("write_file", "LIB/AGENTS.md", False, id="protected project instructions"),
    ],
)
async def test_edits_need_approval(place: Project, allow: str, path: str, is_allowed: bool) -> None:
    place.allow, path = place.expand(allow), place.expand(path)
    async with place.open(add_dirs=[str(place.lib)]) as chain:
        await place.ask(chain, f"write {path}")
    assert (place.workspace / path).exists() == is_allowed  # an absolute path stays as it is


@pytest.mark.parametrize(("path", "is_allowed"), [("n.txt", True), ("LIB/n.txt", False)], ids=["workspace", "added"])
async def test_accepting_edits_covers_no_added_directory(place: Project, path: str, is_allowed: bool) -> None:
    place.allow, path = "", place.expand(path)
    async with place.open(add_dirs=[str(place.lib)]) as chain:
        chain.use_mode("accept edits")
        assert ("needs approval" not in await place.ask(chain, f"write {path}")) == is_allowed
    assert (place.workspace / path).exists() == is_allowed


async def test_a_parent_directory_keeps_files_protected(place: Project) -> None:
    async with place.open(add_dirs=[str(place.root)]) as chain:
        await place.ask(chain, f"write {place.root}/project/config.yaml")
        assert not (place.root / "project/config.yaml").exists()
        await place.ask(chain, f"write {place.root}/project/n.txt")
        assert (place.root / "project/n.txt").exists()


async def test_a_directory_can_be_added_during_a_session(place: Project) -> None:
    async with place.open() as chain:
        assert "absolute path" in await place.ask(chain, f"read {place.lib}/b.txt")
        assert chain.runs.add_directory("../lib")
        assert not chain.runs.add_directory(str(place.lib / "deep")), "its parent was added already"
        assert "lib/b.txt" in await place.ask(chain, f"read {place.lib}/b.txt")
    assert place.notices == [f"Added {place.lib}: tools may read it, and edit files in it with your approval."]


async def test_an_added_directory_is_restored_and_added_once(place: Project) -> None:
    async with place.open(add_dirs=[str(place.lib)]):
        pass
    async with place.open(add_dirs=[str(place.lib)], resume=place.id) as chain:
        assert chain.state.added_directories == [place.lib]
        assert "lib/b.txt" in await place.ask(chain, f"read {place.lib}/b.txt")
        last_request = place.model.requests[-1]
        assert str(place.lib) in (last_request.system or "")


async def test_undo_restores_files_in_an_added_directory(place: Project) -> None:
    async with place.open(add_dirs=[str(place.lib)]) as chain:
        await place.ask(chain, f"set {place.lib}/b.txt new")
        await place.ask(chain, f"write {place.lib}/n.txt")
        chain.undo.undo(2)
        assert (place.lib / "b.txt").read_text() == "lib/b.txt\n"
        assert not (place.lib / "n.txt").exists()


async def test_a_line_attaches_a_file_of_the_directory(place: Project) -> None:
    async with place.open(add_dirs=[str(place.lib)]) as chain:
        await place.ask(chain, f"look at @{place.lib}/b.txt and @{place.root}/other/d.txt")
        sent_texts = "\n".join(message.text for message in place.model.requests[-1].messages)
        assert f"[File {place.lib}/b.txt, 1 line]" in sent_texts
        assert "other/d.txt, 1 line" not in sent_texts


@pytest.mark.parametrize(
    ("path", "error"), [("nowhere", "no directory nowhere"), ("a.txt", "a.txt is not a directory")]
)
async def test_only_directories_can_be_added(place: Project, path: str, error: str) -> None:
    async with place.open() as chain:
        with pytest.raises(UserError, match=error):
            chain.runs.add_directory(path)
        assert chain.state.added_directories == []


async def test_a_missing_directory_creates_no_session(place: Project) -> None:
    with pytest.raises(UserError, match="no directory"):
        async with place.open(add_dirs=[str(place.root / "nowhere")]):
            pass
    assert not list((place.root / "state").rglob("*.jsonl"))
