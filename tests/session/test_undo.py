"""Undo restores the files that edit tools changed and rewinds the conversation. It reverts no other change."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import settings
from support.examples import trying
from support.places import Place

from chain.app.sessions import MemoryStore
from chain.errors import UserError
from chain.journal.records import FileChanged
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


def sent(place: Place) -> list[str]:
    return [message.text for message in place.model.requests[-1].messages if message.text]


async def test_undo_restores_files_and_the_conversation(place: Place) -> None:
    async with place.open() as chain:
        await place.ask(chain, "hello", "set a a1", "set b b1")
        chain.undo.undo(2)
        assert files(place) == {"a": "a0"}
        assert place.workspace.resolve() / "a" not in chain._shared.seen.digests, "it has to be read again"
        assert place.notices == [f"Back to before: set a a1. Restored: a. Removed: b. {SHELL_STAYS}"]
        assert chain.last_reply == "Hello."
        await place.ask(chain, "again")
        assert sent(place) == ["hello", "Hello.", "again"]


async def test_an_undone_run_cannot_be_continued(place: Place) -> None:
    place.use = settings(allow="write_file", max_iterations=1)
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
        assert place.notices[1] == f"No file was restored. {SHELL_STAYS}"
        await place.ask(chain, "again")
        assert sent(place)[0] == "set a a1"
        assert sent(place)[-2:] == [
            "[The user undid your changes of: a. Read these files again before you edit them.]",
            "again",
        ]


async def test_a_file_changed_since_is_left(place: Place) -> None:
    async with place.open() as chain:
        await place.ask(chain, "set a a1", "set b b1", "set c c1")
        (place.workspace / "a").write_text("mine")
        (place.workspace / "c").unlink()
        chain.undo.undo(3)
        assert files(place) == {"a": "mine"}
        assert place.notices == [
            f"Back to before: set a a1. Removed: b. Changed since, so not restored: a. {SHELL_STAYS}"
        ]


async def test_undo_works_after_resuming(place: Place) -> None:
    async with place.open() as chain:
        await place.ask(chain, "hello", "set a a1")
    async with place.open(resume=place.id) as chain:
        assert [point.query for point in chain.undo.points] == ["set a a1", "hello"]
        chain.undo.undo()
        await place.ask(chain, "again")
        assert (files(place), sent(place)) == ({"a": "a0"}, ["hello", "Hello.", "again"])
    async with place.open(resume=place.id) as chain:
        assert [point.query for point in chain.undo.points] == ["again", "hello"]
        await place.ask(chain, "and again")
        assert sent(place) == ["hello", "Hello.", "again", "Hello.", "and again"]


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
    """A kill after each record, before or after the change of a file, is a copy of the disk at that time."""
    copies: list[Path] = []

    def copy() -> None:
        copies.append(tmp_path / f"copy{len(copies)}")
        shutil.copytree(tmp_path / "work", copies[-1] / "work")
        shutil.copytree(tmp_path / "state", copies[-1] / "state")

    async with place.open() as chain:
        journal = chain._shared.journal
        record = journal._when_written
        journal._when_written = lambda each: (record(each), copy())[0]
        await place.ask(chain, "hello", "set a a1", "set b b1")
        journal._when_written = record
    for each in copies:
        # The session knows its workspace by the path.
        shutil.rmtree(place.workspace)
        shutil.copytree(each / "work", place.workspace)
        other = place_at(each)
        other.workspace = place.workspace
        async with other.open(resume=place.id) as chain:
            await chain.wait_idle()
            if chain.undo.points:
                chain.undo.undo(len(chain.undo.points))
                assert "Changed since" not in other.notices[-1]
            assert files(other) == {"a": "a0"}, each
    assert len(copies) > 20


EDITS = st.lists(st.tuples(st.sampled_from("ab"), st.booleans()), max_size=8)


@trying(max_examples=200)
@given(before=EDITS, undone=EDITS)
def test_undo_reverts_no_change_of_others(
    tmp_path_factory: pytest.TempPathFactory, before: Sequence[tuple[str, bool]], undone: Sequence[tuple[str, bool]]
) -> None:
    """Random writes by the agent (true) and by others; those of the second part are undone."""
    folder = tmp_path_factory.mktemp("undo")
    contents: dict[str, bytes] = {}
    changes: list[FileChanged] = []
    history: dict[str, list[tuple[bytes, bool, bool]]] = {"a": [], "b": []}
    for n, (name, by_agent) in enumerate([*before, *undone]):
        path, new = folder / name, f"{n}".encode()
        old = path.read_bytes() if path.exists() else None
        is_undone = n >= len(before)
        if by_agent:
            contents[digest(old or b"")] = old or b""
            if is_undone:
                changes.append(FileChanged("main", f"c{n}", name, "" if old is None else digest(old), digest(new)))
        path.write_bytes(new)
        history[name].append((new, by_agent, is_undone))
    restored, left = restore_files(folder, changes, contents.get)
    for name, versions in history.items():
        kept = len(versions)
        while kept and versions[kept - 1][1] and versions[kept - 1][2]:
            kept -= 1
        path = folder / name
        assert (path.read_bytes() if path.exists() else None) == (versions[kept - 1][0] if kept else None)
        assert (name in restored) == (kept < len(versions))
        assert (name in left) == any(by_agent and is_undone for _, by_agent, is_undone in versions[:kept])
    assert restore_files(folder, changes, contents.get)[0] == []


async def test_undo_works_without_a_stored_session(place: Place) -> None:
    async with place.open(store=MemoryStore()) as chain:
        await place.ask(chain, "set a a1")
        chain.undo.undo()
        assert files(place) == {"a": "a0"}
    assert not place.state.exists()
