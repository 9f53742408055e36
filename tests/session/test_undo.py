"""Undo restores the files that edit tools changed and rewinds the conversation. It reverts no other change."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import max_examples
from support.places import Place
from support.sessions import make_settings

from chain.app.sessions import MemoryStore
from chain.errors import UserError
from chain.journal.records import FileChanged, Record, Unknown
from chain.session.checkpoints import SHELL_STAYS
from chain.tools.edit import edit_tools
from chain.tools.file_versions import digest
from chain.tools.files import TOOLS
from chain.tools.restoring import restore_files

RULES = r"""
rules:
  - {when: {tool: write_file}, text: Written.}
  - {when: {tool: read_file, user: 'set (?P<path>\S+) (?P<text>\S+)'},
     tools: [{name: write_file, input: {path: "${path}", content: "${text}"}}]}
  - {when: {user: 'set (\S+) (\S+)'}, tools: [{name: read_file, input: {path: "${1}"}}]}
  - {text: Hello.}
"""


def place_at(folder: Path) -> Place:
    return Place(folder / "work", folder / "state", RULES, [*TOOLS, *edit_tools()], allow="write_file")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "a").write_text("a0")
    return place_at(tmp_path)


def files(place: Place) -> dict[str, str]:
    return {path.name: path.read_text() for path in place.workspace.iterdir()}


def last_sent_texts(place: Place) -> list[str]:
    return [message.text for message in place.model.requests[-1].messages if message.text]


async def test_undo_restores_files_and_the_conversation(place: Place) -> None:
    async with place.open() as chain:
        await place.ask(chain, "hello", "set a a1", "set b b1")
        chain.undo.undo(2)
        assert files(place) == {"a": "a0"}
        known_files = chain._shared.known_files.digests
        assert place.workspace.resolve() / "a" not in known_files, "it must be read again before it is edited"
        assert place.notices == [f"Back to before: set a a1. Restored: a. Removed: b. {SHELL_STAYS}"]
        assert chain.last_reply == "Hello."
        await place.ask(chain, "again")
        assert last_sent_texts(place) == ["hello", "Hello.", "again"]


async def test_an_undone_run_cannot_be_continued(place: Place) -> None:
    place.settings = make_settings(allow="write_file", max_iterations=1)
    async with place.open() as chain:
        await place.ask(chain, "set a a1")
        assert chain.state.is_at_limit
    async with place.open(resume=place.id) as chain:
        assert chain.state.is_at_limit
        chain.undo.undo(keeps_conversation=True)
        assert chain.state.is_at_limit
        chain.undo.undo()
        assert not chain.state.is_at_limit
    async with place.open(resume=place.id) as chain:
        assert not chain.state.is_at_limit


async def test_undo_of_files_informs_the_model(place: Place) -> None:
    async with place.open() as chain:
        await place.ask(chain, "set a a1")
        chain.undo.undo(keeps_conversation=True)
        assert files(place) == {"a": "a0"}
        chain.undo.undo(keeps_conversation=True)
        _, second_notice = place.notices
        assert second_notice == f"No file was restored. {SHELL_STAYS}"
        await place.ask(chain, "again")
        first_query, *_, note, last_query = last_sent_texts(place)
        assert (first_query, last_query) == ("set a a1", "again")
        assert note == "[The user undid your changes of: a. Read these files again before you edit them.]"


async def test_a_file_changed_since_is_left(place: Place) -> None:
    async with place.open() as chain:
        await place.ask(chain, "set a a1", "set b b1", "set c c1")
        (place.workspace / "a").write_text("mine")
        (place.workspace / "c").unlink()
        chain.undo.undo(3)
        assert files(place) == {"a": "mine"}
        [notice] = place.notices
        assert notice == f"Back to before: set a a1. Removed: b. Changed since, so not restored: a. {SHELL_STAYS}"


async def test_undo_works_after_resuming(place: Place) -> None:
    async with place.open() as chain:
        await place.ask(chain, "hello", "set a a1")
    async with place.open(resume=place.id) as chain:
        assert [point.query for point in chain.undo.points] == ["set a a1", "hello"]
        chain.undo.undo()
        await place.ask(chain, "again")
        assert (files(place), last_sent_texts(place)) == ({"a": "a0"}, ["hello", "Hello.", "again"])
    async with place.open(resume=place.id) as chain:
        assert [point.query for point in chain.undo.points] == ["again", "hello"]
        await place.ask(chain, "and again")
        assert last_sent_texts(place) == ["hello", "Hello.", "again", "Hello.", "and again"]


async def test_undo_needs_an_earlier_run_and_none_active(place: Place) -> None:
    async with place.open() as chain:
        with pytest.raises(UserError, match="there is no run to undo"):
            chain.undo.undo()
        await place.ask(chain, "hello")
        with pytest.raises(UserError, match="only the last 1 can be undone"):
            chain.undo.undo(2)
        chain.submit("hello")
        with pytest.raises(UserError, match="a run is active"):
            chain.undo.undo()


async def test_undo_after_a_kill_at_every_record(place: Place, tmp_path: Path) -> None:
    """A kill after a record is a copy of the disk at that time."""
    copies: list[Path] = []

    def copy_disk() -> None:
        copy = tmp_path / f"copy{len(copies)}"
        shutil.copytree(tmp_path / "work", copy / "work")
        shutil.copytree(tmp_path / "state", copy / "state")
        copies.append(copy)

    async with place.open() as chain:
        journal = chain._shared.journal
        on_written = journal._on_written

        def copy_after_write(record: Record | Unknown) -> None:
            on_written(record)
            copy_disk()

        journal._on_written = copy_after_write
        await place.ask(chain, "hello", "set a a1", "set b b1")
        journal._on_written = on_written
    for copy in copies:
        # The workspace is at its recorded path, and the state folder in the copy.
        shutil.rmtree(place.workspace)
        shutil.copytree(copy / "work", place.workspace)
        killed = place_at(copy)
        killed.workspace = place.workspace
        async with killed.open(resume=place.id) as chain:
            await chain.wait_idle()
            if chain.undo.points:
                chain.undo.undo(len(chain.undo.points))
                *_, notice = killed.notices
                assert "Changed since" not in notice
            assert files(killed) == {"a": "a0"}, copy
    assert len(copies) > 20, "three runs with two calls each write more records"


@dataclass(frozen=True)
class Write:
    """A write of a file. The agent's own writes can be undone."""

    name: str
    is_by_agent: bool


@dataclass(frozen=True)
class Version:
    """The content of a file after a write, and whether that write is undone."""

    content: bytes
    is_undone: bool


WRITES = st.lists(st.builds(Write, st.sampled_from("ab"), st.booleans()), max_size=8)


@max_examples(200)
@given(before=WRITES, undone=WRITES)
def test_undo_reverts_no_change_of_others(
    tmp_path_factory: pytest.TempPathFactory, before: Sequence[Write], undone: Sequence[Write]
) -> None:
    """The agent and others write files. The agent's writes of the second part are undone."""
    folder = tmp_path_factory.mktemp("undo")
    contents: dict[str, bytes] = {}
    changes: list[FileChanged] = []
    versions: dict[str, list[Version]] = {"a": [], "b": []}
    for n, write in enumerate([*before, *undone]):
        path, new = folder / write.name, f"{n}".encode()
        old = path.read_bytes() if path.exists() else None
        is_undone = write.is_by_agent and n >= len(before)
        if write.is_by_agent:
            contents[digest(old or b"")] = old or b""
        if is_undone:
            changes.append(FileChanged("main", f"c{n}", write.name, "" if old is None else digest(old), digest(new)))
        path.write_bytes(new)
        versions[write.name].append(Version(new, is_undone))
    restored, not_restored = restore_files(folder, changes, contents.get)
    for name, all_versions in versions.items():
        kept = all_versions[:]
        while kept and kept[-1].is_undone:
            kept.pop()
        path = folder / name
        assert (path.read_bytes() if path.exists() else None) == (kept[-1].content if kept else None)
        assert (name in restored) == (len(kept) < len(all_versions))
        assert (name in not_restored) == any(version.is_undone for version in kept), "another write followed"
    restored_again, _ = restore_files(folder, changes, contents.get)
    assert restored_again == []


async def test_undo_works_without_a_stored_session(place: Place) -> None:
    async with place.open(store=MemoryStore()) as chain:
        await place.ask(chain, "set a a1")
        chain.undo.undo()
        assert files(place) == {"a": "a0"}
    assert not place.state.exists()
