"""Undo: files that edit tools changed are restored, the conversation returns, and nobody else's change is lost."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import Recorder, settings
from support.examples import trying

from chain import events
from chain.app.open import open_chain
from chain.app.sessions import MemoryStore, Store
from chain.chain import Chain
from chain.errors import UserError
from chain.journal.records import FileChanged
from chain.providers.scripted.scripted_model import ScriptedModel
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


@dataclass
class Place:
    """A workspace and a state folder, in which sessions are opened one after the other."""

    workspace: Path
    state: Path
    model: Recorder = field(default_factory=lambda: Recorder(ScriptedModel.parse(RULES)))
    heard: list[events.Event] = field(default_factory=list)
    id: str = ""

    @asynccontextmanager
    async def open(self, resume: str = "", *, store: Store | None = None) -> AsyncIterator[Chain]:
        chosen = settings(allow="write_file")
        self.model = Recorder(ScriptedModel.parse(RULES))
        async with open_chain(
            chosen,
            workspace=self.workspace,
            state=self.state,
            store=store,
            model=self.model,
            resume=resume,
            interactive=True,
            tools=[*TOOLS, *edit_tools()],
        ) as chain:
            self.id = chain.session_id
            chain.listen(self.heard.append)
            yield chain

    def files(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in self.workspace.iterdir()}

    @property
    def notices(self) -> list[str]:
        return [event.message for event in self.heard if isinstance(event, events.Notice)]

    @property
    def sent(self) -> list[str]:
        return [message.text for message in self.model.requests[-1].messages if message.text]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "a").write_text("a0")
    return Place(tmp_path / "work", tmp_path / "state")


async def ask(chain: Chain, *queries: str) -> None:
    for query in queries:
        assert chain.submit(query).what == "started"
        await chain.wait_idle()


async def test_undo_restores_files_and_the_conversation(place: Place) -> None:
    async with place.open() as chain:
        await ask(chain, "hello", "set a a1", "set b b1")
        chain.undo.undo(2)
        assert place.files() == {"a": "a0"}
        assert place.notices == [f"Back to before: set a a1. Restored: a. Removed: b. {SHELL_STAYS}"]
        await ask(chain, "again")
        assert place.sent == ["hello", "Hello.", "again"]


async def test_undo_of_files_keeps_the_conversation_and_informs_the_model(place: Place) -> None:
    async with place.open() as chain:
        await ask(chain, "set a a1")
        chain.undo.undo(keeps_conversation=True)
        assert place.files() == {"a": "a0"}
        chain.undo.undo(keeps_conversation=True)
        assert place.notices[1] == f"No file was restored. {SHELL_STAYS}"
        await ask(chain, "again")
        assert place.sent[0] == "set a a1"
        assert place.sent[-2:] == [
            "[The user undid your changes of: a. Read these files again before you edit them.]",
            "again",
        ]


async def test_a_file_that_somebody_else_changed_stays(place: Place) -> None:
    async with place.open() as chain:
        await ask(chain, "set a a1", "set b b1", "set c c1")
        (place.workspace / "a").write_text("mine")
        (place.workspace / "c").unlink()
        chain.undo.undo(3)
        assert place.files() == {"a": "mine"}
        assert place.notices == [
            f"Back to before: set a a1. Removed: b. Changed since, so not restored: a. {SHELL_STAYS}"
        ]


async def test_undo_works_after_resuming(place: Place) -> None:
    async with place.open() as chain:
        await ask(chain, "hello", "set a a1")
    async with place.open(place.id) as chain:
        assert [point.query for point in chain.undo.points] == ["set a a1", "hello"]
        chain.undo.undo()
        await ask(chain, "again")
        assert (place.files(), place.sent) == ({"a": "a0"}, ["hello", "Hello.", "again"])
    async with place.open(place.id) as chain:
        assert [point.query for point in chain.undo.points] == ["again", "hello"]
        await ask(chain, "and again")
        assert place.sent == ["hello", "Hello.", "again", "Hello.", "and again"]


async def test_what_undo_refuses(place: Place) -> None:
    async with place.open() as chain:
        with pytest.raises(UserError, match="there is no run to undo"):
            chain.undo.undo()
        await ask(chain, "hello")
        with pytest.raises(UserError, match="only the last 1 can be undone"):
            chain.undo.undo(2)
        chain.submit("hello")
        with pytest.raises(UserError, match="a run is active"):
            chain.undo.undo()


async def test_a_restored_file_has_to_be_read_again(place: Place) -> None:
    async with place.open() as chain:
        await ask(chain, "set a a1")
        chain.undo.undo()
        root = place.workspace.resolve()
        assert root / "a" not in chain._shared.seen.digests


async def test_undo_after_a_kill_at_every_record(place: Place, tmp_path: Path) -> None:
    """The program is killed after each record, with the file changed or not yet: copies of the disk stand for that."""
    copies: list[Path] = []

    def copy() -> None:
        copies.append(tmp_path / f"copy{len(copies)}")
        shutil.copytree(tmp_path / "work", copies[-1] / "work")
        shutil.copytree(tmp_path / "state", copies[-1] / "state")

    async with place.open() as chain:
        journal = chain._shared.journal
        record = journal._note
        journal._note = lambda each: (record(each), copy())[0]
        await ask(chain, "hello", "set a a1", "set b b1")
        journal._note = record
    for each in copies:
        # The session knows its workspace by the path.
        shutil.rmtree(place.workspace)
        shutil.copytree(each / "work", place.workspace)
        other = Place(place.workspace, each / "state")
        async with other.open(place.id) as chain:
            await chain.wait_idle()
            if chain.undo.points:
                chain.undo.undo(len(chain.undo.points))
            assert other.files() == {"a": "a0"}, each
    assert len(copies) > 20


def test_a_change_that_is_recorded_and_was_not_made(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a0")
    change = FileChanged("main", "c1", "a", digest(b"a0"), digest(b"a1"))
    assert restore_files(tmp_path, [change], lambda digest: None) == ([], [])


EDITS = st.lists(st.tuples(st.sampled_from("ab"), st.booleans()), max_size=8)


@trying(max_examples=200)
@given(before=EDITS, undone=EDITS)
def test_no_change_of_anybody_else_is_lost(
    tmp_path_factory: pytest.TempPathFactory, before: Sequence[tuple[str, bool]], undone: Sequence[tuple[str, bool]]
) -> None:
    """Random writes by the agent (true) and by somebody else, of which the second part is undone."""
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


async def test_undo_works_in_a_session_that_is_kept_nowhere(place: Place) -> None:
    async with place.open(store=MemoryStore()) as chain:
        await ask(chain, "set a a1")
        chain.undo.undo()
        assert place.files() == {"a": "a0"}
    assert not place.state.exists()
