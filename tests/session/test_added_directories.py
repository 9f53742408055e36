"""Added directories: tools read them, and edit in them with approval. No path leads out of them."""

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
    def folder(self) -> Path:
        return self.workspace.parent

    @property
    def lib(self) -> Path:
        return self.folder / "lib"


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
    ("path", "why"),
    [
        ("{}/lib/../other/d.txt", "must not contain .."),
        ("{}/lib/out/d.txt", "leads out of"),
        ("{}/lib/back", "leads out of"),
        ("{}/other/d.txt", "or a path in {}/lib"),
        ("{}/project/a.txt", "give one relative to the workspace"),
        ("../lib/b.txt", "must not contain .."),
    ],
)
async def test_no_path_leads_out(place: Project, path: str, why: str) -> None:
    async with place.open(add_dirs=[str(place.lib)]) as chain:
        for verb in ("read", "write", "list", "search"):
            assert why.format(place.folder) in await place.ask(chain, f"{verb} {path.format(place.folder)}")
    assert (place.folder / "project/a.txt").read_text() == "project/a.txt\n"
    assert not (place.folder / "other/new.txt").exists()


@pytest.mark.parametrize(
    ("allow", "path", "is_allowed"),
    [
        ("write_file", "LIB/n.txt", True),
        ("write_file(*)", "LIB/n.txt", False),
        ("write_file(LIB/*)", "LIB/n.txt", True),
        ("write_file(LIB/*)", "n.txt", False),
        ("write_file", "LIB/.git/n.txt", False),
        ("write_file", "LIB/AGENTS.md", False),
    ],
)
async def test_edits_need_approval(place: Project, allow: str, path: str, is_allowed: bool) -> None:
    place.allow, path = (text.replace("LIB", str(place.lib)) for text in (allow, path))
    async with place.open(add_dirs=[str(place.lib)]) as chain:
        await place.ask(chain, f"write {path}")
    assert (place.folder / "project" / path).exists() == is_allowed


@pytest.mark.parametrize(("path", "is_allowed"), [("n.txt", True), ("LIB/n.txt", False), ("LIB/deep/n.txt", False)])
async def test_accepting_edits_covers_no_added_directory(place: Project, path: str, is_allowed: bool) -> None:
    place.allow, path = "", path.replace("LIB", str(place.lib))
    async with place.open(add_dirs=[str(place.lib)]) as chain:
        chain.use_mode("accept edits")
        assert ("needs approval" not in await place.ask(chain, f"write {path}")) == is_allowed
    assert (place.folder / "project" / path).exists() == is_allowed


async def test_a_parent_directory_keeps_files_protected(place: Project) -> None:
    async with place.open(add_dirs=[str(place.folder)]) as chain:
        await place.ask(chain, f"write {place.folder}/project/config.yaml")
        assert not (place.folder / "project/config.yaml").exists()
        await place.ask(chain, f"write {place.folder}/project/n.txt")
        assert (place.folder / "project/n.txt").exists()


async def test_an_added_directory_is_named_to_the_model(place: Project) -> None:
    async with place.open() as chain:
        assert "absolute path" in await place.ask(chain, f"read {place.lib}/b.txt")
        assert chain.runs.add_directory("../lib")
        assert not chain.runs.add_directory(str(place.lib / "deep"))
        assert "lib/b.txt" in await place.ask(chain, f"read {place.lib}/b.txt")
    assert place.notices == [f"Added {place.lib}: tools may read it, and edit in it with your approval."]
    async with place.open(add_dirs=[str(place.lib)], resume=place.id) as chain:
        assert chain.state.added == [place.lib]
        assert "lib/b.txt" in await place.ask(chain, f"read {place.lib}/b.txt")
        assert str(place.lib) in (place.model.requests[-1].system or "")


async def test_undo_restores_files_in_an_added_directory(place: Project) -> None:
    async with place.open(add_dirs=[str(place.lib)]) as chain:
        await place.ask(chain, f"set {place.lib}/b.txt new")
        await place.ask(chain, f"write {place.lib}/n.txt")
        chain.undo.undo(2)
        assert (place.lib / "b.txt").read_text() == "lib/b.txt\n"
        assert not (place.lib / "n.txt").exists()


async def test_a_line_attaches_a_file_of_the_directory(place: Project) -> None:
    async with place.open(add_dirs=[str(place.lib)]) as chain:
        await place.ask(chain, f"look at @{place.lib}/b.txt and @{place.folder}/other/d.txt")
        assert any(f"[File {place.lib}/b.txt, 1 line]" in m.text for m in place.model.requests[-1].messages)
        assert not any("other/d.txt, 1 line" in m.text for m in place.model.requests[-1].messages)


@pytest.mark.parametrize(("path", "why"), [("nowhere", "no directory nowhere"), ("a.txt", "a.txt is not a directory")])
async def test_only_directories_can_be_added(place: Project, path: str, why: str) -> None:
    async with place.open() as chain:
        with pytest.raises(UserError, match=why):
            chain.runs.add_directory(path)
        assert chain.state.added == []


async def test_a_missing_directory_creates_no_session(place: Project) -> None:
    with pytest.raises(UserError, match="no directory"):
        async with place.open(add_dirs=[str(place.folder / "nowhere")]):
            pass
    assert not list((place.folder / "state").rglob("*.jsonl"))
