"""Modes: which calls need approval, when a change takes effect, and the mode of a resumed session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.checks import check_invariants
from support.places import Place
from support.sessions import open_session
from trio.testing import wait_all_tasks_blocked

from chain import events
from chain.chain import Chain
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


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "work").mkdir()
    return Place(tmp_path / "work", tmp_path / "state", RULES, [command, other, *edit_tools()])


@asynccontextmanager
async def open_question(place: Place, query: str) -> AsyncIterator[Chain]:
    """Run a query until its call needs approval. The block answers the question Q1."""
    async with place.open() as chain:
        with chain.answering():
            chain.submit(query)
            await place.wait_for(events.Question)
            yield chain
            await chain.wait_idle()


def answers(place: Place) -> list[tuple[str, str]]:
    """Return the decision of each question, and who made it."""
    return [(e.decision, e.by) for e in place.all_events if isinstance(e, events.Answer)]


CREATED, NEEDS_APPROVAL = "Created a", "needs approval"


@pytest.mark.parametrize(
    ("mode", "query", "result"),
    [
        ("ask", "write a", NEEDS_APPROVAL),
        ("ask", "run", NEEDS_APPROVAL),
        ("accept edits", "write a", CREATED),
        ("accept edits", "write .git/hooks/post-commit", NEEDS_APPROVAL),  # a protected file
        ("accept edits", "write AGENTS.md", NEEDS_APPROVAL),  # a protected file
        ("accept edits", "write ../a", "stays inside the workspace"),
        ("accept edits", "run", NEEDS_APPROVAL),
        ("accept edits", "other", NEEDS_APPROVAL),
        ("read only", "write a", READ_ONLY_DENIAL),
        ("read only", "run", READ_ONLY_DENIAL),
        ("read only", "other", NEEDS_APPROVAL),
    ],
)
async def test_calls_without_a_user(place: Place, mode: Mode, query: str, result: str) -> None:
    async with place.open(mode=mode) as chain:
        assert result in await place.ask(chain, query)
    approvals = [by for decision, by in answers(place) if decision == "allowed"]
    assert approvals == (["config"] if result == CREATED else [])


@pytest.mark.parametrize(
    ("query", "tool", "allowed_result"), [("write a", "write_file", "Created a +1 −0."), ("run", "command", "was run")]
)
async def test_read_only_overrides_an_allowance(place: Place, query: str, tool: str, allowed_result: str) -> None:
    place.allow = tool
    async with place.open(mode="read only") as chain:
        await place.ask(chain, query)
        chain.use_mode("ask")
        await place.ask(chain, query)
    assert place.results == [READ_ONLY_DENIAL, allowed_result]


async def test_mode_changes_have_notices_and_are_restored(place: Place) -> None:
    async with place.open() as chain:
        chain.use_mode("accept edits")
        chain.use_mode("accept edits")
        chain.use_mode("read only")
        await chain.wait_idle()
    notices = [mode_sentence("accept edits"), mode_sentence("read only")]
    assert place.notices == notices
    async with place.open(resume=place.id) as chain:
        assert chain.mode == "read only"
        assert chain.resumed is not None
        assert [e.message for e in chain.resumed.past if isinstance(e, events.Notice)] == notices
        assert await place.ask(chain, "run") == READ_ONLY_DENIAL


async def test_a_mode_given_at_resuming_is_recorded(place: Place) -> None:
    for mode, expected in (("read only", "read only"), ("ask", "ask"), (None, "ask")):  # None: no mode is given
        async with place.open(mode=mode, resume=place.id) as chain:
            assert chain.mode == expected


async def test_read_only_refuses_approval_of_an_open_question(place: Place) -> None:
    async with open_question(place, "run") as chain:
        chain.use_mode("read only")
        refused = chain.answer("Q1", "y")
        assert (refused.what, refused.message) == ("refused", READ_ONLY_ANSWER)
        assert chain.answer("Q1", "a").what == "refused"
        chain.use_mode("ask")
        assert chain.answer("Q1", "y").what == "answered"
    assert place.results == ["was run"]


async def test_a_mode_change_answers_no_open_question(place: Place) -> None:
    async with open_question(place, "run") as chain:
        for _ in MODES:
            chain.use_mode(next_mode(chain.mode))
            await chain._shared.journal.flush()  # the change has taken effect
        assert (chain.questions.open_id, answers(place)) == ("Q1", [])
        chain.answer("Q1", "y")


async def test_a_mode_applies_from_the_next_call_on(place: Place) -> None:
    async with open_question(place, "two") as chain:
        chain.use_mode("accept edits")
        chain.answer("Q1", "y")
    assert place.results == ["was run", "Created b +1 −0."]


ONE_COMMAND = "rules: [{when: {step: 1}, tools: [{name: command, input: {}}]}, {text: Done.}]"


async def test_read_only_denies_a_call_after_its_answer() -> None:
    async with open_session(ONE_COMMAND, tools=[command]) as session:
        with session.chain.answering():
            session.chain.submit("run")
            await wait_all_tasks_blocked()
            session.chain.answer("Q1", "y")
            session.chain.use_mode("read only")
            await session.chain.wait_idle()
    assert [e.text for e in session.of(events.ToolResult)] == [READ_ONLY_DENIAL]
    assert not session.of(events.ToolCall)
    check_invariants(session)


async def test_read_only_denies_a_question_before_it_opens() -> None:
    async def preview_in_read_only(ctx: ToolContext) -> Preview:
        session.chain.use_mode("read only")
        return Preview("", "", "")

    decorate = tool(name="command", kind="execute", needs_approval=True, preview=preview_in_read_only)
    async with open_session(ONE_COMMAND, tools=[decorate(command.function)]) as session:
        with session.chain.answering():
            await session.run("run")
    assert [(e.decision, e.by) for e in session.of(events.Answer)] == [("refused", "config")]
    assert [e.text for e in session.of(events.ToolResult)] == [READ_ONLY_DENIAL]
    check_invariants(session)


@pytest.mark.parametrize("path", ["/etc/passwd", "../a", "a/../../b", None], ids=lambda path: path or "no path")
def test_accept_edits_needs_a_path_in_the_workspace(path: str | None) -> None:
    diff = None if path is None else FileDiff(path, (Hunk(0, 1, ("+x",)),))
    assert not mode_allows("accept edits", "edit", Preview("it changes a", path or "a", "", diff=diff))


@pytest.mark.parametrize(
    ("text", "mode"),
    [("accept-edits", "accept edits"), ("Accept Edits", "accept edits"), ("read_only", "read only"), ("yolo", None)],
)
def test_a_mode_is_written_with_spaces_or_hyphens(text: str, mode: Mode | None) -> None:
    assert mode_named(text) == mode
