"""The offline model with agents, in a chain with real files and tools."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.documents import offline_rules
from support.sessions import Session, call_at_event, open_session

from chain import events
from chain.config.load import load_settings
from chain.events import Point
from chain.providers.scripted.scripted_model import ScriptedModel

FILES = {
    "docs/kettle.md": "# Kettle\n\nThe kettle is made of steel.\nIts lid closes.\n",
    "docs/lid.md": "# Lid\n\nThe lid of the kettle is made of glass.\n",
    "src/pot.py": "LID = 1  # what closes the pot\n",
}
CONFIG = "chains: {default: {model: offline, tools: %s, max_iterations: 12}}\nagents: {max_depth: 3}\n"
EXPLORING = ["list_files", "search_files", "read_file", "read_file"]


@dataclass
class Played:
    """A session of the offline model."""

    session: Session

    def inputs(self, agent: str, tool: str, key: str) -> list[Any]:
        """Return one value from the input of each call of a tool."""
        calls = self.session.of(events.ToolCall)
        return [call.input[key] for call in calls if (call.agent, call.name) == (agent, tool)]

    def calls(self, agent: str) -> list[str]:
        """Return the names of the tools that an agent called."""
        return [call.name for call in self.session.of(events.ToolCall) if call.agent == agent]

    def text_of(self, agent: str) -> str:
        """Return the text of all replies of an agent."""
        return "\n".join(e.text for e in self.session.of(events.Reply) if e.agent == agent)

    @property
    def started(self) -> list[tuple[str, str]]:
        """The agents that were started, each with the agent that started it."""
        return [(e.name, e.agent) for e in self.session.of(events.AgentStarted)]

    async def run(self, *queries: str) -> str:
        """Run these queries, and return the answer to the last one."""
        for query in queries:
            assert (await self.session.run(query)).status == "done"
        return self.session.result.result

    def send_at(self, line: str, agent: str, tool: str) -> None:
        """Send a line to an agent when it calls a tool."""

        def send() -> None:
            submitted = self.session.chain.submit(line)
            assert next(a.agent for a in self.session.chain.lines.waiting if a.id == submitted.id) == agent

        call_at_event(self.session, events.ToolCall, send, agent=agent, name=tool)


Play = Callable[..., AbstractAsyncContextManager[Played]]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Return a function that opens a session of the offline model in a folder with ``FILES``."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    @asynccontextmanager
    async def open_played(tools: str = "[todo, files, ask, agents]") -> AsyncIterator[Played]:
        (tmp_path / "config.yaml").write_text(CONFIG % tools)
        settings = load_settings(config=tmp_path / "config.yaml", environ={}, cwd=tmp_path)
        async with open_session(ScriptedModel(offline_rules()), settings=settings) as session:
            yield Played(session)

    return open_played


async def test_an_explorer_answers_the_query(play: Play) -> None:
    async with play() as played:
        answer = await played.run("explore where the kettle is mentioned")
        assert played.calls("main") == ["explore"]
        assert played.calls("explore-1") == EXPLORING
        assert 'asked to explore "kettle" in the workspace. It answers:' in answer
        for row in (
            "3 lines in 2 files",
            "docs/kettle.md:1: # Kettle",
            "docs/lid.md:3: The lid of the kettle is made of glass.",
            "Files that I read in part: docs/kettle.md, docs/lid.md.",
        ):
            assert row in answer


@pytest.mark.parametrize(
    ("query", "message"),
    [("explore teapot", "0 lines in 0 files"), ("explore (lid", "is not a regular expression")],
    ids=["no match", "invalid pattern"],
)
async def test_an_explorer_searches_once_if_it_finds_nothing(query: str, message: str, play: Play) -> None:
    async with play() as played:
        await played.run(query)
        assert message in played.text_of("explore-1")
        assert (len(played.calls("main")), played.calls("explore-1").count("search_files")) == (1, 1)


KETTLE, STEEL = ("(?i)kettle", "docs"), ("(?i)steel", "docs")
LINES = {
    "focus on steel": ("list_files", "as well", [STEEL, KETTLE]),  # before the explorer's own search
    "look for steel too": ("search_files", "as well", [KETTLE, STEEL]),
    "prefer steel": ("read_file", "as well", [KETTLE, STEEL]),
    "!focus on steel": ("list_files", "as well", [STEEL, KETTLE]),
    "look in src too": ("list_files", "I look in src too", [("(?i)kettle", "src"), KETTLE]),
    "look in nowhere too": ("read_file", "did not work", [KETTLE, ("(?i)kettle", "nowhere")]),
    "status": ("search_files", "I work on", [KETTLE]),
    "context: it is new": ("search_files", 'Read: "it is new"', [KETTLE]),
    "explore steel instead": ("list_files", 'I explore the workspace for "steel"', [("(?i)steel", ".")]),
}
"""The tool at whose call the line comes, a part of the reply, and the patterns and folders of all searches."""


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("line", LINES)
async def test_a_line_changes_what_an_explorer_does(line: str, play: Play) -> None:
    tool, reply, searches = LINES[line]
    async with play() as played:
        played.send_at(line, "explore-1", tool)
        answer = await played.run("explore kettle in docs")
        assert reply in played.text_of("explore-1")
        patterns, folders = (played.inputs("explore-1", "search_files", key) for key in ("pattern", "path"))
        assert list(zip(patterns, folders, strict=True)) == searches
        assert all(pattern in answer for pattern in patterns)
        assert played.calls("main") == ["explore"]
        assert answer.count("Fixed rules found this") == 1, "all findings are in one answer"


async def test_a_now_line_cancels_an_explorers_search(play: Play) -> None:
    async with play() as played:
        played.send_at("!!focus on steel", "explore-1", "search_files")
        answer = await played.run("explore kettle in docs")
        (interruption,) = played.session.of(events.UserInterruption)
        explore, *_ = played.session.of(events.ToolCall)
        assert (interruption.agent, interruption.parent_id) == ("explore-1", explore.id)
        assert interruption.point == Point.AT_ONCE
        assert "as well" in played.text_of("explore-1")
        assert "(?i)steel" in answer
        assert played.calls("main") == ["explore"]
        assert answer.count("Fixed rules found this") == 1, "all findings are in one answer"


@pytest.mark.parametrize(
    ("file_answer", "read", "works"),
    [
        pytest.param("2", ["docs/lid.md"], True, id="the number of a file"),
        pytest.param("src/pot.py", ["src/pot.py"], True, id="another file"),
        pytest.param("nowhere.md", ["nowhere.md"], False, id="a file that does not exist"),
        pytest.param(None, [], False, id="nobody answers"),
    ],
)
async def test_an_explorer_asks_which_file_to_read(
    file_answer: str | None, read: list[str], works: bool, play: Play
) -> None:
    async with play() as played:
        chain, options = played.session.chain, list[list[str]]()

        def answer_question(event: events.Event) -> None:
            if isinstance(event, events.Question):
                options.append(list(event.options))
                if file_answer is not None:
                    assert chain.answer(event.id, file_answer).what == "answered"

        chain.listen(answer_question)
        with nullcontext() if file_answer is None else chain.answering():
            answer = await played.run("explore kettle and ask me which file")
        assert options == [["docs/kettle.md", "docs/lid.md"]]
        assert played.inputs("explore-1", "read_file", "path") == read
        assert ("Did not work: " not in answer) == works


@pytest.mark.parametrize(("word", "read"), [("steel", ["docs/kettle.md"]), ("teapot", [])], ids=["one file", "no file"])
async def test_an_explorer_asks_only_about_several_files(word: str, read: list[str], play: Play) -> None:
    async with play() as played:
        answer = await played.run(f"explore {word} and ask me which file")
        assert played.session.of(events.Question) == []
        assert played.inputs("explore-1", "read_file", "path") == read
        assert "Did not work: " not in answer


@pytest.mark.parametrize(
    ("query", "row", "searches"),
    [
        ("ask the explorer what it found", "docs/lid.md:3: The lid of the kettle", []),
        ("ask explore-1 which files it read", "Files that I read: docs/kettle.md, docs/lid.md.", []),
        ("ask explore-1 where steel is used", "docs/kettle.md:3: The kettle is made of steel.", ["(?i)steel"]),
        ("ask the explorer to count the lines in docs", "total of 2", []),
    ],
    ids=["findings", "files read", "another pattern", "a task without a search"],
)
async def test_a_finished_explorer_can_be_asked(query: str, row: str, searches: list[str], play: Play) -> None:
    async with play() as played:
        answer = await played.run("explore kettle", query)
        assert [name for name, _ in played.started] == ["explore-1", "explore-1"]
        assert answer.startswith("explore-1 was asked to")
        assert row in answer
        assert played.inputs("explore-1", "search_files", "pattern") == ["(?i)kettle", *searches]


async def test_the_latest_explorer_is_asked(play: Play) -> None:
    """After another query, the model does not know the name: it asks "explorer", then a name of the error message."""
    async with play() as played:
        await played.run("explore kettle", "let an agent explore lid", "ask the explorer what it found")
        first_two = ["explorer", "explore-2"]
        assert played.inputs("main", "agent_ask", "agent") == first_two
        await played.run("ask explore-1 what it found", "ask the explorer what it found")
        assert played.inputs("main", "agent_ask", "agent") == [*first_two, "explore-1", "explorer", "explore-1"]


async def test_an_agent_starts_explorers(play: Play) -> None:
    async with play() as played:
        answer = await played.run("let an agent explore kettle and steel")
        assert played.started == [("agent-1", "main"), ("explore-1", "agent-1"), ("explore-2", "agent-1")]
        assert answer.startswith("An agent was asked to explore kettle and steel. It answers:")
        assert "docs/kettle.md:3: The kettle is made of steel." in answer


@pytest.mark.parametrize("line", ["", "add buy milk to the plan"], ids=["alone", "with a line"])
async def test_a_planner_reads_and_adds_tasks(line: str, play: Play) -> None:
    async with play() as played:
        played.session.chain.submit("todo: add buy tea")
        if line:
            played.send_at(line, "plan-1", "search_files")
        answer = await played.run("plan how to change the kettle")
        assert played.started == [("plan-1", "main")]
        planned = 4  # to read each of two files, to do it, and to check it
        assert played.calls("plan-1") == ["search_files", *["plan_add_task"] * (planned + bool(line))]
        tasks = {task.text for task in played.session.chain.plan.tasks}
        read = {"Read docs/kettle.md from line 1 on", "Read docs/lid.md from line 3 on"}
        assert {"buy tea", *read, "Do it: change the kettle"} <= tasks
        assert ("buy milk" in tasks) == bool(line)
        assert all(f". {task}" in answer for task in tasks)


async def test_without_agents_the_main_agent_explores(play: Play) -> None:
    async with play("[todo, files]") as played:
        answer = await played.run("explore kettle and steel")
        assert played.calls("main") == EXPLORING
        assert "docs/kettle.md:3: The kettle is made of steel." in answer
