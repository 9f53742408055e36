"""A replay compares the requests of a recorded session with those that today's configuration leads to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import trio
from support.checks import check_replays
from support.crashes import reopen
from support.eventful import TOOLS, eventful_session
from support.examples import sample_in_short_run
from support.models import RandomModel, Step
from support.project import ROOT
from support.sessions import call_at_event, make_settings, open_session, wait_quiet
from support.trees import Tree, TreeModel, tree_settings
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.app.open import open_chain
from chain.app.replay import replay
from chain.config.load import Settings, load_settings
from chain.errors import SessionError
from chain.messages import Text, ToolCall
from chain.tools.tool import Tool, ToolContext, tool

# ---------------------------------------------------------------------------------------------------- differences

STEPS = Tree(
    {
        "Do the task": [
            Step((ToolCall("c0", "note", {"text": "x"}),)),
            Step((Text("Half of it is done."),)),
            Step((ToolCall("c0", "worker", {"task": "dig"}),)),
            Step((Text("All is done."),)),
        ],
        "dig": [Step((ToolCall("c0", "note", {"text": "hole"}),)), Step((Text("I dug."),))],
    }
)

FILES = {
    "config.yaml": """
models: {default: test, definitions: {test: {provider: scripted, script: model.yaml}}}
chains:
  default:
    system_prompt: system.yaml
    interruption_prompt: handler.yaml
    tools: [todo, agents]
agents:
  worker: {prompt: worker.yaml, description: Works., tools: [note]}
""",
    "model.yaml": "rules: [{text: A replay asks no model.}]",
    "system.yaml": "messages: [{role: system, content: You keep a list.}]",
    "handler.yaml": """
messages:
  - {role: user, content: 'THE USER SAYS: ${message}'}
  - {role: system, content: Answer in one sentence.}
config: {temperature: 0.5}
rules:
  - {match: ^enough, action: stop}
  - {match: 'hurry$', action: urgent}
""",
    "worker.yaml": """
messages: [{role: system, content: You dig.}]
interruption_prompt: worker_lines.yaml
""",
    "worker_lines.yaml": "messages: [{role: user, content: 'TO THE WORKER: ${message}'}]",
    "AGENTS.md": "Use make.",
}


def note_tool(notes: list[str], description: str = "Write a note.") -> Tool:
    """Return a tool that appends to ``notes``, which a replay must not do."""

    async def note(ctx: ToolContext, text: str) -> str:
        notes.append(text)
        return "noted"

    note.__doc__ = description
    return tool(note)


@dataclass
class Recorded:
    """The journal of a session, the folder with its configuration, and the notes that its tool wrote."""

    folder: Path
    notes: list[str]
    rows: list[bytes]

    def replay(self, description: str = "Write a note.") -> list[str]:
        """Return the report of a replay with the files as they are now, in which the tool has this description."""
        replayed = replay(load_from(self.folder), self.rows, tools=[note_tool(self.notes, description)])
        *_, last_row = replayed.rows
        assert replayed.is_same == last_row.startswith("The same: ")
        return list(replayed.rows)


def load_from(folder: Path) -> Settings:
    return load_settings(config=folder / "config.yaml", environ={}, cwd=folder)


@pytest.fixture
async def recorded(tmp_path: Path) -> Recorded:
    """Record a session in which lines arrive while its first tool runs, and as an agent starts."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    notes: list[str] = []
    async with open_chain(
        load_from(tmp_path),
        workspace=tmp_path,
        state=tmp_path / "state",
        tools=[note_tool(notes)],
        model=TreeModel(STEPS),
        instructions=True,
    ) as chain:

        def send_lines(event: events.Event) -> None:
            if isinstance(event, events.ToolCall) and event.agent == "main" and event.name == "note":
                chain.submit("how far are you?")
                chain.submit("context: hurry")
                chain.submit("todo: add check the licence")
            if isinstance(event, events.AgentStarted):
                chain.submit("go deeper", to=event.name)

        chain.listen(send_lines)
        await chain.wait_idle()
        chain.submit("Do the task")
        await chain.wait_idle()
        assert chain.runs.last_status == "done"
        assert chain.journal_path is not None
    return Recorded(tmp_path, notes, chain.journal_path.read_bytes().splitlines(keepends=True))


async def test_a_replay_runs_no_tool(recorded: Recorded) -> None:
    notes_before = list(recorded.notes)
    # The calls of the main agent are note and worker, that of the worker is note. The query is one of the lines.
    assert recorded.replay() == ["The same: 1 run, 6 model calls, 3 tool calls, 5 lines."]
    assert recorded.notes == notes_before


HANDLER, CONFIG, WORKER_LINES = "handler.yaml", "config.yaml", "worker_lines.yaml"
FIRST, SECOND, OF_WORKER = "main, iteration 1", "main, iteration 2", "worker-1, iteration 1"

CHANGES = {
    "text around a line": (HANDLER, "USER SAYS", "USER WRITES", FIRST, "+THE USER WRITES: how far are you?"),
    "instructions, named": (HANDLER, "one sentence", "two sentences", SECOND, "other instructions at its end"),
    "instructions, shown": (HANDLER, "one sentence", "two sentences", SECOND, "+  Answer in two sentences."),
    "overrides": (HANDLER, ": 0.5", ": 0.5, max_tokens: 9", SECOND, '+overrides: {"max_tokens": 9, "temperature"'),
    "kind, named": (HANDLER, "enough", "how far", FIRST, "a line has another kind or urgency"),
    "kind, shown": (HANDLER, "enough", "how far", FIRST, "-kind: question\n+kind: stop"),
    "urgency": (HANDLER, "hurry", "slowly", FIRST, " context: hurry", "-urgency: urgent\n+urgency: next"),
    "resume text": (HANDLER, "rules:", "resume: Go on.\nrules:", SECOND, "-Your reply was shown", "+Go on."),
    "no resume text": (HANDLER, "rules:", "resume: false\nrules:", SECOND, "+(nothing)"),
    "plan commands": (HANDLER, "rules:", "commands: {todo: model}\nrules:", FIRST, "(Done: task 1 added: check"),
    "invalid key": (HANDLER, "rules:", "rule:", FIRST, "; the built-in handler prompt was used."),
    "system prompt": ("system.yaml", "a list", "two lists", FIRST, "another system prompt"),
    "tools of the chain": (CONFIG, "[todo, agents]", "[todo, agents, ask]", FIRST, "other tools"),
    "description of an agent": (CONFIG, "Works.", "Digs.", FIRST, "other tools"),
    "tools of an agent": (CONFIG, "[note]", "[note, todo]", OF_WORKER, "other tools"),
    "prompt of an agent": ("worker.yaml", "You dig", "You work", OF_WORKER, "another system prompt"),
    "handler of an agent": (
        WORKER_LINES,
        "TO THE",
        "FOR THE",
        "worker-1",
        "-TO THE WORKER: go deeper\n+FOR THE WORKER: go deeper",
    ),
    "project instructions, named": ("AGENTS.md", "make", "ninja", "main", "the project instructions are different"),
    "project instructions, shown": ("AGENTS.md", "make", "ninja", "main", "-Use make.\n+Use ninja."),
}
"""A file, the text that is replaced and the new one, the place of the first difference, and parts of the report."""


@pytest.mark.parametrize("case", CHANGES)
async def test_a_change_is_the_first_difference(case: str, recorded: Recorded) -> None:
    name, old, new, where, *parts = CHANGES[case]
    file = recorded.folder / name
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    first_row, *rows = recorded.replay()
    assert first_row.startswith(f"The first difference ({where}): ")
    report = "\n".join([first_row, *rows])
    assert all(part in report for part in parts), report


async def test_another_description_of_a_tool_is_a_difference(recorded: Recorded) -> None:
    first_row, *_ = recorded.replay("Write it down.")
    assert first_row == "The first difference (main, iteration 1): the request has other tools."


async def test_unreadable_instructions_are_not_compared(recorded: Recorded, tmp_path: Path) -> None:
    session_record, *others = recorded.rows
    missing_workspace = str(tmp_path / "gone").encode()
    recorded.rows = [session_record.replace(str(tmp_path).encode(), missing_workspace), *others]
    (tmp_path / "AGENTS.md").write_text("Use ninja.")
    assert recorded.replay()[0].startswith("The same: ")


async def test_every_prefix_of_a_session_is_the_same(recorded: Recorded) -> None:
    while len(recorded.rows) > 1:
        del recorded.rows[-1]
        assert recorded.replay()[0].startswith("The same: "), f"the first {len(recorded.rows)} records"


def test_the_stored_session_is_the_same() -> None:
    stored = ROOT / "tests" / "recorded"
    replayed = replay(load_from(stored), (stored / "session.jsonl").read_bytes().splitlines(keepends=True))
    assert replayed.is_same, "\n".join(replayed.rows)


@pytest.mark.parametrize(
    "journal",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"no journal\n", id="no record"),
        pytest.param(b'{"type":"model","seq":1,"time":1,"name":"x"}\n', id="no session record"),
    ],
)
def test_a_file_without_a_session_is_an_error(journal: bytes) -> None:
    with pytest.raises(SessionError):
        replay(make_settings(), journal.splitlines(keepends=True))


# ------------------------------------------------------------------------------------------ what services refuse

REFUSED_REPLIES = {
    "a parameter that the service refuses": Step((Text("I go on."),), refuses_overrides=True),
    "a limit that cuts the reply off": Step((Text("I g"),), "max_tokens"),
}
"""Replies after which an agent asks again with fewer settings."""


@pytest.mark.parametrize("case", REFUSED_REPLIES)
async def test_settings_omitted_after_a_refusal_are_no_difference(case: str, autojump_clock: MockClock) -> None:
    handler = "messages: [{role: system, content: Be brief.}]\nconfig: {effort: low, max_tokens: 9}"
    model = RandomModel([Step((ToolCall("c0", "note", {"text": "x"}),)), REFUSED_REPLIES[case]])
    async with open_session(model, tools=[note_tool([])], settings=make_settings(handler=handler)) as session:
        call_at_event(session, events.ToolCall, lambda: session.chain.submit("use the other file"))
        await session.run("Do the task")
    before_line, refused, repeated, *_ = (request.overrides.values for request in session.model.requests)
    assert before_line == {}
    assert refused == {"effort": "low", "max_tokens": 9}
    assert len(repeated) == 1, "one of them is omitted"
    check_replays(session)


async def test_a_question_in_an_empty_reply_is_replayed(autojump_clock: MockClock) -> None:
    model = RandomModel([Step((), delay_s=1), Step((Text("Half of it is done."),))])
    async with open_session(model) as session:
        session.chain.submit("Do the task")
        await wait_all_tasks_blocked()  # the reply takes a second of the test clock
        session.chain.submit("how far are you?")
        await wait_quiet(session)
    assert "Your reply was shown to the user." in session.sent()
    check_replays(session)


async def test_no_handler_rule_matches_a_query() -> None:
    settings = make_settings(handler="rules: [{match: task, action: stop}]")
    async with open_session("rules: [{text: Done.}]", settings=settings) as session:
        await session.run("Do the task")
    check_replays(session)


# ------------------------------------------------------------------------------------------------- after a crash


def test_a_crash_at_any_record_is_no_difference() -> None:
    async def check(data: bytes) -> None:
        settings = tree_settings(max_iterations=20, worker=4, explore=6)
        async with reopen(data, tools=TOOLS, settings=settings, interactive=True) as session:
            session.chain.submit("and the next")
            await wait_quiet(session)
        check_replays(session)

    rows = eventful_session().journal.splitlines(keepends=True)
    for end in sample_in_short_run(range(1, len(rows)), every=10):
        trio.run(check, b"".join(rows[:end]))
