"""Modes: which calls need approval, when the mode changes, and that a resumed session has its mode."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
from support import Recorder, check_invariants, open_session, settings
from trio.testing import wait_all_tasks_blocked

from chain import events
from chain.app.open import open_chain
from chain.chain import Chain
from chain.providers.scripted.scripted_model import ScriptedModel
from chain.text.hunks import FileDiff, Hunk
from chain.text.modes import MODES, READ_ONLY_ANSWER, READ_ONLY_DENIAL, Mode, mode_named, mode_sentence, next_mode
from chain.tools.allowances import mode_allows
from chain.tools.edit import edit_tools
from chain.tools.tool import Preview, ToolContext, tool

RULES = r"""
rules:
  - {when: {step: 1, user: '^write (?P<path>\S+)'}, tools: [{name: write_file, input: {path: "${path}", content: new}}]}
  - {when: {step: 1, user: '^run'}, tools: [{name: command, input: {}}]}
  - {when: {step: 1, user: '^two'},
     tools: [{name: command, input: {}}, {name: write_file, input: {path: b, content: new}}]}
  - {when: {step: 1, user: '^other'}, tools: [{name: other, input: {}}]}
  - {text: Done.}
"""


@tool(kind="execute", needs_approval=True)
async def command(ctx: ToolContext) -> str:
    """Run a command."""
    return "was run"


@tool(needs_approval=True)
async def other(ctx: ToolContext) -> str:
    """Do something that is neither an edit nor a command."""
    return "was done"


@dataclass
class Place:
    """A workspace and a state folder, in which sessions are opened one after the other."""

    folder: Path
    heard: list[events.Event] = field(default_factory=list)
    id: str = ""
    asked: trio.Event = field(default_factory=trio.Event)
    """Set when a question is open."""

    def hear(self, event: events.Event) -> None:
        self.heard.append(event)
        if isinstance(event, events.Question):
            self.asked.set()

    @asynccontextmanager
    async def open(self, mode: Mode | None = None, *, resume: str = "", allow: str = "") -> AsyncIterator[Chain]:
        (self.folder / "work").mkdir(exist_ok=True)
        async with open_chain(
            settings(allow=allow),
            workspace=self.folder / "work",
            state=self.folder / "state",
            model=Recorder(ScriptedModel.parse(RULES)),
            resume=resume,
            interactive=True,
            tools=[command, other, *edit_tools()],
            mode=mode,
        ) as chain:
            self.id = chain.session_id
            chain.listen(self.hear)
            yield chain

    @property
    def answers(self) -> list[tuple[str, str]]:
        return [(e.decision, e.by) for e in self.heard if isinstance(e, events.Answer)]

    @property
    def results(self) -> list[str]:
        return [e.text for e in self.heard if isinstance(e, events.ToolResult)]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def run(chain: Chain, query: str) -> None:
    assert chain.submit(query).what == "started"
    await chain.wait_idle()


@asynccontextmanager
async def answered(place: Place) -> AsyncIterator[Chain]:
    """A session whose questions somebody answers."""
    async with place.open() as chain:
        with chain.answering():
            yield chain


NEEDS = "needs approval"


@pytest.mark.parametrize(
    ("mode", "query", "result"),
    [
        ("ask", "write a", NEEDS),
        ("ask", "run", NEEDS),
        ("accept edits", "write a", "Created a"),
        ("accept edits", "write .git/hooks/post-commit", NEEDS),
        ("accept edits", "write AGENTS.md", NEEDS),
        ("accept edits", "write ../a", "stays inside the workspace"),
        ("accept edits", "run", NEEDS),
        ("accept edits", "other", NEEDS),
        ("read only", "write a", READ_ONLY_DENIAL),
        ("read only", "run", READ_ONLY_DENIAL),
        ("read only", "other", NEEDS),
    ],
)
async def test_what_a_mode_allows_and_denies_where_nobody_can_be_asked(
    place: Place, mode: Mode, query: str, result: str
) -> None:
    async with place.open(mode) as chain:
        await run(chain, query)
    assert result in place.results[0]


@pytest.mark.parametrize("query", ["write a", "run"])
async def test_read_only_denies_what_an_allowance_covers(place: Place, query: str) -> None:
    async with place.open("read only", allow="write_file" if query == "write a" else "command") as chain:
        await run(chain, query)
        chain.use_mode("ask")
        await run(chain, query)
    assert place.results == [READ_ONLY_DENIAL, "was run" if query == "run" else "Created a +1 −0."]


async def test_an_allowed_edit_has_a_question_and_an_answer_on_record(place: Place) -> None:
    async with place.open("accept edits") as chain:
        await run(chain, "write a")
    assert place.answers == [("allowed", "config")]


async def test_each_change_has_a_notice_and_a_resumed_session_has_its_mode(place: Place) -> None:
    async with place.open() as chain:
        chain.use_mode("accept edits")
        chain.use_mode("accept edits")
        chain.use_mode("read only")
        await chain.wait_idle()
        notices = [e.message for e in place.heard if isinstance(e, events.Notice)]
        assert notices == [mode_sentence("accept edits"), mode_sentence("read only")]
    async with place.open(resume=place.id) as chain:
        assert chain.mode == "read only"
        assert chain.resumed is not None
        assert [e.message for e in chain.resumed.past if isinstance(e, events.Notice)][:2] == notices
        await run(chain, "run")
        assert place.results == [READ_ONLY_DENIAL]
    async with place.open("ask", resume=place.id) as chain:
        assert chain.mode == "ask"
    async with place.open(resume=place.id) as chain:
        assert chain.mode == "ask"


async def test_read_only_accepts_no_consent_to_a_question_that_is_open(place: Place) -> None:
    async with answered(place) as chain:
        chain.submit("run")
        await place.asked.wait()
        chain.use_mode("read only")
        refused = chain.answer("Q1", "y")
        assert (refused.what, refused.message) == ("refused", READ_ONLY_ANSWER)
        assert chain.answer("Q1", "a").what == "refused"
        chain.use_mode("ask")
        assert chain.answer("Q1", "y").what == "answered"
        await chain.wait_idle()
        assert place.results == ["was run"]


async def test_cycling_through_the_modes_answers_no_open_question(place: Place) -> None:
    async with answered(place) as chain:
        chain.submit("write a")
        await place.asked.wait()
        for _ in MODES:
            chain.use_mode(next_mode(chain.mode))
            await chain._shared.journal.flush()
        assert (chain.questions.open_id, place.answers) == ("Q1", [])
        chain.answer("Q1", "n")
        await chain.wait_idle()
    assert not (place.folder / "work" / "a").exists()


async def test_a_mode_holds_from_the_next_call_of_the_same_reply_on(place: Place) -> None:
    async with answered(place) as chain:
        chain.submit("two")
        await place.asked.wait()
        chain.use_mode("accept edits")
        chain.answer("Q1", "y")
        await chain.wait_idle()
    assert place.results == ["was run", "Created b +1 −0."]


async def test_read_only_comes_between_an_answer_and_the_start_of_its_call() -> None:
    rules = "rules: [{when: {step: 1}, tools: [{name: command, input: {}}]}, {text: Done.}]"
    async with open_session(rules, tools=[command]) as session:
        with session.chain.answering():
            session.chain.submit("run")
            await wait_all_tasks_blocked()
            session.chain.answer("Q1", "y")
            session.chain.use_mode("read only")
            await session.chain.wait_idle()
    assert [e.text for e in session.of(events.ToolResult)] == [READ_ONLY_DENIAL]
    assert not session.of(events.ToolCall)
    check_invariants(session)


async def test_a_question_that_was_not_open_before_read_only_is_refused_and_never_asked() -> None:
    async def switches(ctx: ToolContext) -> Preview:
        session.chain.use_mode("read only")
        return Preview("", "", "")

    late = tool(name="command", kind="execute", needs_approval=True, preview=switches)(command.function)
    rules = "rules: [{when: {step: 1}, tools: [{name: command, input: {}}]}, {text: Done.}]"
    async with open_session(rules, tools=[late]) as session:
        with session.chain.answering():
            await session.run("run")
    assert [(e.decision, e.by) for e in session.of(events.Answer)] == [("refused", "config")]
    assert [e.text for e in session.of(events.ToolResult)] == [READ_ONLY_DENIAL]
    check_invariants(session)


@pytest.mark.parametrize("path", ["/etc/passwd", "../a", "a/../../b"])
def test_an_edit_outside_the_workspace_always_asks(path: str) -> None:
    preview = Preview("", path, "", diff=FileDiff(path, (Hunk(0, 1, ("+x",)),)))
    assert not mode_allows("accept edits", "edit", preview)


def test_an_edit_tool_that_does_not_say_what_it_changes_asks() -> None:
    assert not mode_allows("accept edits", "edit", Preview("it changes a", "a", ""))


@pytest.mark.parametrize(
    ("text", "mode"),
    [("accept-edits", "accept edits"), ("Accept Edits", "accept edits"), ("read_only", "read only"), ("yolo", None)],
)
def test_a_mode_is_written_with_spaces_or_hyphens(text: str, mode: Mode | None) -> None:
    assert mode_named(text) == mode
