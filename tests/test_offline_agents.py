"""The offline model with agents: the real chain, real files and real tools."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.offline import offline_rules
from support.sessions import Session, at, open_session

from chain import events
from chain.config.load import load_settings
from chain.providers.scripted.scripted_model import ScriptedModel
from chain.session.event_json import to_json

FILES = {
    "docs/kettle.md": "# Kettle\n\nThe kettle is made of steel.\nIts lid closes.\n",
    "docs/lid.md": "# Lid\n\nThe lid of the kettle is made of glass.\n",
    "src/pot.py": "LID = 1  # what closes the pot\n",
}
CONFIG = """\
chains:
  default: {model: offline, tools: %s, max_iterations: 12}
agents: {max_depth: %d}
"""
ALL = "[todo, files, ask, agents]"


@dataclass
class Played:
    """What happened in a chain."""

    session: Session

    def calls(self, agent: str) -> list[str]:
        """The tools that an agent called."""
        return [e.name for e in self.session.of(events.ToolCall) if e.agent == agent]

    def inputs(self, agent: str, tool: str) -> list[dict[str, Any]]:
        found = self.session.of(events.ToolCall)
        return [dict(e.input) for e in found if (e.agent, e.name) == (agent, tool)]

    def said(self, agent: str) -> str:
        return "\n".join(e.text for e in self.session.of(events.Reply) if e.agent == agent)

    @property
    def started(self) -> list[tuple[str, str]]:
        """The agents that were started, each with the one that started it."""
        return [(e.name, e.agent) for e in self.session.of(events.AgentStarted)]

    async def run(self, *queries: str) -> str:
        """The answer to the last query."""
        for query in queries:
            assert (await self.session.run(query)).status == "done"
        return self.session.result.result

    def say(self, line: str, agent: str, tool: str, *, to: str = "", interrupts: str = "") -> None:
        """Send a line when an agent calls a tool; it must go to that agent, or to the one that it interrupts."""

        def send() -> None:
            submitted = self.session.chain.submit(line, to=to)
            assert submitted.what == "queued", submitted
            reached = next(a.agent for a in self.session.chain.lines.waiting if a.id == submitted.id)
            assert reached == (interrupts or agent)

        at(self.session, events.ToolCall, send, agent=agent, name=tool)


@asynccontextmanager
async def playing(folder: Path, *, tools: str = ALL, max_depth: int = 3) -> AsyncIterator[Played]:
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    (folder / "config.yaml").write_text(CONFIG % (tools, max_depth))
    use = load_settings(config=folder / "config.yaml", environ={}, cwd=folder)
    async with open_session(ScriptedModel(offline_rules()), use=use) as session:
        yield Played(session)


EXPLORING = ["list_files", "search_files", "read_file", "read_file"]


async def test_an_explorer_looks_around_and_the_main_agent_hands_its_answer_on(tmp_path: Path) -> None:
    async with playing(tmp_path) as played:
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


async def test_several_explorers_work_side_by_side(tmp_path: Path) -> None:
    async with playing(tmp_path) as played:
        answer = await played.run("explore kettle, lid and pot in docs side by side")
        told = [(e.type, e.name) for e in played.session.of(events.AgentStarted, events.AgentEnded)]
        names = ("explore-1", "explore-2", "explore-3")
        assert told[:3] == [("agent_started", name) for name in names]
        assert sorted(told[3:]) == [("agent_ended", name) for name in names]
        assert answer.index('explore "kettle"') < answer.index('explore "lid"') < answer.index('explore "pot"')


@pytest.mark.parametrize(
    ("query", "has", "searches"),
    [
        ("explore teapot", "0 lines in 0 files", ["(?i)teapot"]),
        ("explore (lid", "is not a regular expression", ["(?i)(lid"]),
    ],
)
async def test_what_is_not_simply_there(query: str, has: str, searches: list[str], tmp_path: Path) -> None:
    async with playing(tmp_path) as played:
        await played.run(query)
        assert [found["pattern"] for found in played.inputs("explore-1", "search_files")] == searches
        assert has in played.said("explore-1")
        assert len(played.calls("main")) == 1


KETTLE, STEEL = ("(?i)kettle", "docs"), ("(?i)steel", "docs")
LINES = {
    "another word": ("focus on steel", "list_files", "as well", [STEEL, KETTLE]),
    "later": ("look for steel too", "search_files", "as well", [KETTLE, STEEL]),
    "as it ends": ("prefer steel", "read_file", "as well", [KETTLE, STEEL]),
    "another folder": ("look in src too", "list_files", "I look in src too", [("(?i)kettle", "src"), KETTLE]),
    "no such folder": ("look in nowhere too", "read_file", "did not work", [KETTLE, ("(?i)kettle", "nowhere")]),
    "urgent": ("!focus on steel", "list_files", "as well", [STEEL, KETTLE]),
    "a question": ("what about steel?", "list_files", "as well", [STEEL, KETTLE]),
    "status": ("status", "search_files", "I work on", [KETTLE]),
    "context": ("context: it is new", "search_files", 'Read: "it is new"', [KETTLE]),
    "instead": ("explore steel instead", "list_files", 'I explore the workspace for "steel"', [("(?i)steel", ".")]),
}


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(("line", "tool", "heard", "searches"), LINES.values(), ids=LINES)
async def test_an_explorer_heeds_a_line(
    line: str, tool: str, heard: str, searches: list[tuple[str, str]], tmp_path: Path
) -> None:
    async with playing(tmp_path) as played:
        played.say(line, "explore-1", tool)
        answer = await played.run("explore kettle in docs")
        (entered,) = played.session.of(events.UserInterruption)
        assert (entered.agent, entered.parent_id) == ("explore-1", played.session.of(events.ToolCall)[0].id)
        assert heard in played.said("explore-1")
        found = [(each["pattern"], each["path"]) for each in played.inputs("explore-1", "search_files")]
        assert found == searches
        assert all(pattern in answer for pattern, _ in searches)
        assert played.calls("main") == ["explore"]
        assert answer.count("Fixed rules found this") == 1


async def test_a_now_line_cuts_what_the_explorer_does_and_is_heeded(tmp_path: Path) -> None:
    async with playing(tmp_path) as played:
        played.say("!!focus on steel", "explore-1", "search_files")
        answer = await played.run("explore kettle in docs")
        assert "docs/kettle.md:3: The kettle is made of steel." in answer
        assert [e.point for e in played.session.of(events.UserInterruption)] == ["N"]


@pytest.mark.parametrize(
    ("answer", "read"),
    [
        ("2", ["docs/lid.md"]),
        ("docs/kettle.md", ["docs/kettle.md"]),
        ("src/pot.py", ["src/pot.py"]),
        ("nowhere.md", ["nowhere.md"]),
        (None, []),
    ],
)
async def test_an_explorer_asks_which_file_to_read(answer: str | None, read: list[str], tmp_path: Path) -> None:
    async with playing(tmp_path) as played:
        chain = played.session.chain

        def hear(event: events.Event) -> None:
            if isinstance(event, events.Question) and answer is not None:
                assert event.agent == "explore-1"
                assert list(event.options) == ["docs/kettle.md", "docs/lid.md"]
                assert chain.answer(event.id, answer).what == "answered"

        chain.listen(hear)
        if answer is None:
            told = await played.run("explore kettle and ask me which file")
        else:
            with chain.answering():
                told = await played.run("explore kettle and ask me which file")
        assert [each["path"] for each in played.inputs("explore-1", "read_file")] == read
        assert "docs/lid.md:3" in told
        assert ("Did not work: " in told) == (answer in (None, "nowhere.md"))


@pytest.mark.parametrize(("word", "read"), [("steel", ["read_file"]), ("teapot", [])])
async def test_where_there_is_one_file_or_none_nothing_is_asked(word: str, read: list[str], tmp_path: Path) -> None:
    async with playing(tmp_path) as played:
        await played.run(f"explore {word} and ask me which file")
        assert played.calls("explore-1") == ["list_files", "search_files", *read]


# ---------------------------------------------------------------------------------------------- asking again


@pytest.mark.parametrize(
    ("query", "has", "searches"),
    [
        ("ask the explorer what it found", "docs/lid.md:3: The lid of the kettle", []),
        ("ask explore-1 which files it read", "Files that I read: docs/kettle.md, docs/lid.md.", []),
        ("ask explore-1 where steel is used", "docs/kettle.md:3: The kettle is made of steel.", ["(?i)steel"]),
        ("ask the explorer to count the lines in docs", "total of 2", []),
    ],
)
async def test_an_explorer_that_was_kept_can_be_asked(
    query: str, has: str, searches: list[str], tmp_path: Path
) -> None:
    async with playing(tmp_path) as played:
        answer = await played.run("explore kettle", query)
        assert [name for name, _ in played.started] == ["explore-1", "explore-1"]
        assert answer.startswith("explore-1 was asked to")
        assert has in answer
        assert [each["pattern"] for each in played.inputs("explore-1", "search_files")] == ["(?i)kettle", *searches]


async def test_without_a_name_the_explorer_that_worked_last_is_asked(tmp_path: Path) -> None:
    async with playing(tmp_path) as played:
        await played.run("explore kettle", "let an agent explore lid", "ask the explorer what it found")
        assert [each["agent"] for each in played.inputs("main", "agent_ask")] == ["explorer", "explore-2"]
        await played.run("ask explore-1 what it found", "ask the explorer what it found")
        assert [each["agent"] for each in played.inputs("main", "agent_ask")][2:] == [
            "explore-1",
            "explorer",
            "explore-1",
        ]


@pytest.mark.parametrize(
    ("before", "query", "has"),
    [
        ([], "ask the explorer where the lid is", "none has finished"),
        (["let an agent list files"], "ask the explorer where the lid is", "those that have finished are: agent-1"),
        (["explore lid"], "ask explore-7 where the lid is", "those that have finished are: explore-1"),
    ],
)
async def test_nobody_there_to_be_asked(before: Iterable[str], query: str, has: str, tmp_path: Path) -> None:
    async with playing(tmp_path) as played:
        assert has in await played.run(*before, query)


# ---------------------------------------------------------------------------------------------- deeper


async def test_an_agent_does_what_it_is_told_with_explorers_of_its_own(tmp_path: Path) -> None:
    async with playing(tmp_path) as played:
        answer = await played.run("let an agent explore kettle and steel")
        assert played.started == [("agent-1", "main"), ("explore-1", "agent-1"), ("explore-2", "agent-1")]
        assert answer.startswith("An agent was asked to explore kettle and steel. It answers:")
        assert "docs/kettle.md:3: The kettle is made of steel." in answer


async def test_a_planner_reads_and_sets_tasks(tmp_path: Path) -> None:
    async with playing(tmp_path) as played:
        played.session.chain.submit("todo: add buy tea")
        answer = await played.run("plan how to change the kettle")
        assert played.started == [("plan-1", "main")]
        assert played.calls("plan-1") == ["search_files", *["plan_add_task"] * 4]
        tasks = ["buy tea", "Read docs/kettle.md from line 1 on", "Read docs/lid.md from line 3 on"]
        told = [task["text"] for task in to_json(played.session.of(events.PlanChanged)[-1])["tasks"]]
        assert told[:3] == tasks
        assert told[3] == "Do it: change the kettle"
        assert all(f". {task}" in answer for task in told)


async def test_a_line_for_the_plan_does_not_lead_the_planner_astray(tmp_path: Path) -> None:
    async with playing(tmp_path) as played:
        played.say("add buy tea to the plan", "plan-1", "search_files")
        answer = await played.run("plan how to change the kettle")
        assert "buy tea" in answer
        assert played.calls("plan-1").count("plan_add_task") == 5


async def test_without_the_tools_it_explores_itself(tmp_path: Path) -> None:
    async with playing(tmp_path, tools="[todo, files]") as played:
        answer = await played.run("explore kettle and steel")
        assert played.calls("main") == EXPLORING
        assert "docs/kettle.md:3: The kettle is made of steel." in answer
