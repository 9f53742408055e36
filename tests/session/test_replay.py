"""A recorded session is compared with the requests that would be sent today."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import trio
from support import at, open_session, settings, wait_quiet
from support.crashes import reopened
from support.eventful import TOOLS, eventful
from support.examples import some
from support.house import ROOT
from support.models import RandomModel, Step
from support.replays import check_replays
from support.trees import Tree, TreeModel, tree_settings
from trio.testing import MockClock

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


def noting(notes: list[str], does: str = "Write a note.") -> Tool:
    """A tool with an effect, which a replay must not have."""

    async def note(ctx: ToolContext, text: str) -> str:
        notes.append(text)
        return "noted"

    note.__doc__ = does
    return tool(note)


@dataclass
class Recorded:
    """A session in a folder with its configuration.

    A question and a plan command arrive while its first tool runs, and another line as an agent starts.
    """

    folder: Path
    notes: list[str]
    rows: list[bytes]

    def replayed(self, does: str = "Write a note.") -> list[str]:
        """Return the rows of a replay with today's files. ``does`` is the description of the tool."""
        found = replay(use(self.folder), self.rows, tools=[noting(self.notes, does)])
        assert found.is_same == found.rows[-1].startswith("The same: ")
        return list(found.rows)


def use(folder: Path) -> Settings:
    return load_settings(config=folder / "config.yaml", environ={}, cwd=folder)


@pytest.fixture
async def recorded(tmp_path: Path) -> Recorded:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    notes: list[str] = []
    async with open_chain(
        use(tmp_path),
        workspace=tmp_path,
        state=tmp_path / "state",
        tools=[noting(notes)],
        model=TreeModel(STEPS),
        instructions=True,
    ) as chain:

        def act(event: events.Event) -> None:
            if isinstance(event, events.ToolCall) and event.agent == "main" and event.name == "note":
                chain.submit("how far are you?")
                chain.submit("context: hurry")
                chain.submit("todo: add check the licence")
            if isinstance(event, events.AgentStarted):
                chain.submit("go deeper", to=event.name)

        chain.listen(act)
        await chain.wait_idle()
        chain.submit("Do the task")
        await chain.wait_idle()
        assert chain.runs.last_status == "done"
        assert chain.journal_path is not None
    return Recorded(tmp_path, notes, chain.journal_path.read_bytes().splitlines(keepends=True))


async def test_a_replay_of_the_same_runs_no_tool(recorded: Recorded) -> None:
    notes = list(recorded.notes)
    assert recorded.replayed() == ["The same: 1 run, 6 model calls, 3 tool calls, 5 lines."]
    assert recorded.notes == notes


CHANGES = [
    ("handler.yaml", "THE USER SAYS", "THE USER WRITES", "main, iteration 1", "+THE USER WRITES: how far are you?"),
    ("handler.yaml", "one sentence", "two sentences", "main, iteration 2", "other instructions at its end"),
    ("handler.yaml", "one sentence", "two sentences", "main, iteration 2", "+  Answer in two sentences."),
    (
        "handler.yaml",
        ": 0.5",
        ": 0.5, max_tokens: 9",
        "main, iteration 2",
        '+overrides: {"max_tokens": 9, "temperature"',
    ),
    ("handler.yaml", "enough", "how far", "main, iteration 1", "a line has another kind or urgency"),
    ("handler.yaml", "enough", "how far", "main, iteration 1", "-kind: question\n+kind: stop"),
    ("handler.yaml", "hurry", "slowly", "main, iteration 1", " context: hurry"),
    ("handler.yaml", "hurry", "slowly", "main, iteration 1", "-urgency: urgent\n+urgency: next"),
    ("handler.yaml", "rules:", "resume: Go on.\nrules:", "main, iteration 2", "-Your reply was shown"),
    ("handler.yaml", "rules:", "resume: Go on.\nrules:", "main, iteration 2", "+Go on."),
    ("handler.yaml", "rules:", "resume: false\nrules:", "main, iteration 2", "+(nothing)"),
    ("handler.yaml", "rules:", "commands: {todo: model}\nrules:", "main, iteration 1", "(Done: task 1 added: check"),
    ("handler.yaml", "rules:", "rule:", "main, iteration 1", "; the built-in handler prompt was used."),
    ("system.yaml", "a list", "two lists", "main, iteration 1", "another system prompt"),
    ("config.yaml", "[todo, agents]", "[todo, agents, ask]", "main, iteration 1", "other tools"),
    ("config.yaml", "Works.", "Digs.", "main, iteration 1", "other tools"),
    ("config.yaml", "[note]", "[note, todo]", "worker-1, iteration 1", "other tools"),
    ("worker.yaml", "You dig", "You work", "worker-1, iteration 1", "another system prompt"),
    ("worker_lines.yaml", "TO THE", "FOR THE", "worker-1", "-TO THE WORKER: go deeper\n+FOR THE WORKER: go deeper"),
    ("AGENTS.md", "make", "ninja", "main", "the project instructions are different"),
    ("AGENTS.md", "make", "ninja", "main", "-Use make.\n+Use ninja."),
]
"""A change of a file, the place of the first difference, and words of its rows."""


@pytest.mark.parametrize(("name", "old", "new", "where", "words"), CHANGES)
async def test_a_change_is_the_first_difference(
    name: str, old: str, new: str, where: str, words: str, recorded: Recorded
) -> None:
    file = recorded.folder / name
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    rows = recorded.replayed()
    assert rows[0].startswith(f"The first difference ({where}): ")
    assert words in "\n".join(rows)


async def test_another_description_of_a_tool_is_a_difference(recorded: Recorded) -> None:
    rows = recorded.replayed("Write it down.")
    assert rows[0] == "The first difference (main, iteration 1): the request has other tools."


async def test_unreadable_instructions_are_not_compared(recorded: Recorded, tmp_path: Path) -> None:
    elsewhere = str(tmp_path / "gone").encode()
    recorded.rows[0] = recorded.rows[0].replace(str(tmp_path).encode(), elsewhere)
    (tmp_path / "AGENTS.md").write_text("Use ninja.")
    assert recorded.replayed()[0].startswith("The same: ")


async def test_every_prefix_of_a_session_is_the_same(recorded: Recorded) -> None:
    for end in range(1, len(recorded.rows)):
        del recorded.rows[-1]
        if recorded.rows:
            assert recorded.replayed()[0].startswith("The same: "), end


def test_the_stored_session_is_the_same() -> None:
    kept = ROOT / "tests" / "recorded"
    found = replay(use(kept), (kept / "session.jsonl").read_bytes().splitlines(keepends=True))
    assert found.is_same, "\n".join(found.rows)


@pytest.mark.parametrize("journal", [b"", b"no journal\n", b'{"type":"model","seq":1,"time":1,"name":"x"}\n'])
def test_other_files_are_an_error(journal: bytes) -> None:
    with pytest.raises(SessionError):
        replay(settings(), journal.splitlines(keepends=True))


# ------------------------------------------------------------------------------------------ what services refuse

GIVEN_UP = {
    "a parameter that the service refuses": Step((Text("I go on."),), refuses_overrides=True),
    "a limit that cuts the reply off": Step((Text("I g"),), "max_tokens"),
}
"""Replies after which an agent asks again with fewer settings."""


@pytest.mark.parametrize("what", GIVEN_UP)
async def test_settings_omitted_after_a_refusal_are_no_difference(what: str, autojump_clock: MockClock) -> None:
    handler = "messages: [{role: system, content: Be brief.}]\nconfig: {effort: low, max_tokens: 9}"
    note = noting([])
    model = RandomModel([Step((ToolCall("c0", "note", {"text": "x"}),)), GIVEN_UP[what]])
    async with open_session(model, tools=[note], use=settings(handler=handler)) as session:
        at(session, events.ToolCall, lambda: session.chain.submit("use the other file"))
        await session.run("Do the task")
    given = [request.overrides.given for request in session.model.requests]
    assert given[1] == {"effort": "low", "max_tokens": 9}
    assert len(given[2]) == 1
    check_replays(session)


async def test_a_question_in_an_empty_reply_is_aside(autojump_clock: MockClock) -> None:
    model = RandomModel([Step((), delay_s=1), Step((Text("Half of it is done."),))])
    async with open_session(model) as session:
        session.chain.submit("Do the task")
        await trio.sleep(0.5)
        session.chain.submit("how far are you?")
        await wait_quiet(session)
    assert "Your reply was shown to the user." in session.sent()
    check_replays(session)


async def test_no_rule_matches_a_query() -> None:
    use = settings(handler="rules: [{match: task, action: stop}]")
    async with open_session("rules: [{text: Done.}]", use=use) as session:
        await session.run("Do the task")
    check_replays(session)


# ------------------------------------------------------------------------------------------------- after a crash


def test_a_crash_at_any_record_is_no_difference() -> None:
    async def check(data: bytes) -> None:
        use = tree_settings(max_iterations=20, worker=4, explore=6)
        async with reopened(data, tools=TOOLS, use=use, interactive=True) as session:
            session.chain.submit("and the next")
            await wait_quiet(session)
        check_replays(session)

    rows = eventful().journal.splitlines(keepends=True)
    for end in some(range(1, len(rows)), every=10):
        trio.run(check, b"".join(rows[:end]))
