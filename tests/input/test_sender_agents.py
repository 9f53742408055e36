"""Scripted and piped lines for agents: each at a moment of its agent, and none lost when the agent has ended."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest
import trio
from support.agents import WAIT, AgentSession, Call, open_agents, start
from support.sessions import call_at_event, make_settings

from chain import events
from chain.config.load import Settings
from chain.events import Point
from chain.text.wording import NO_USER_CHOOSES
from cli.input.moments import parse_moment
from cli.input.sender import Sender

ROOM_FOR_ONE = make_settings(agents=True, inbox_size=1)
"""Settings with which one line may wait for each agent."""


@dataclass
class Stage:
    """A family of agents, and the sender of its lines, whose ids are ``S0``, ``S1`` and so on."""

    agents: AgentSession
    sender: Sender
    count: int = 0

    def schedule(self, *lines: str) -> None:
        for line in lines:
            self.sender.schedule(replace(parse_moment(line, strict=True), id=f"S{self.count}"))
            self.count += 1

    async def release(self, agent: str) -> None:
        self.agents.waiters.release(agent)
        await self.agents.wait_blocked()

    @property
    def delivered(self) -> list[tuple[str, str, str | None, int]]:
        """The text, agent, point and iteration of each line that a model read, without the query."""
        _, *receipts = self.agents.session.chain.lines.receipts
        return [(r.text, r.agent, r.point, r.iteration) for r in receipts if r.state == "delivered"]

    @property
    def delivered_to(self) -> list[tuple[str, str]]:
        """The texts and agents of the delivered lines, in order."""
        return [(text, agent) for text, agent, *_ in self.delivered]

    @property
    def unsent(self) -> list[str]:
        return [r.text for r in self.agents.session.of(events.Receipt) if r.state == "unsent"]

    @property
    def refused(self) -> list[str]:
        """The ids of the refused lines."""
        return sorted(e.id for e in self.agents.session.of(events.LineRefused))


@asynccontextmanager
async def opened(settings: Settings | None = None) -> AsyncIterator[Stage]:
    async with open_agents(settings=settings) as agents, trio.open_nursery() as nursery:
        sender = Sender(agents.session.chain, lambda line, answer: None)
        await nursery.start(sender.run)
        yield Stage(agents, sender)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("line", "agent", "point", "iteration"),
    [
        ("@to explore-1 @home", "explore-1", Point.AFTER_TOOLS, 1),
        ("@to EXPLORE-1 say", "explore-1", Point.AFTER_TOOLS, 1),
        ("@iteration 2 @to explore-1 say", "explore-1", Point.AFTER_TOOLS, 2),
        ("@iteration 3 @to explore-1 say", "explore-1", Point.AFTER_REPLY, 3),
        ("@iteration 2 say", "main", Point.AFTER_TOOLS, 2),
        ("@answer @to explore-1 say", "explore-1", Point.AFTER_REPLY, 3),
        ("@answer say", "main", Point.AFTER_REPLY, 3),
        ("@done @to explore-1 say", "main", Point.AFTER_TOOLS, 1),
        ("@tool wait say", "explore-1", Point.AFTER_TOOLS, 1),
        ("@tool wait @to main say", "main", Point.AFTER_TOOLS, 1),
        ("@tool explore say", "explore-1", Point.BEFORE_FIRST_CALL, 0),
        ("@tool explore @to explore-1 say", "explore-1", Point.BEFORE_FIRST_CALL, 0),
        ("@tool explore @to main say", "main", Point.AFTER_TOOLS, 1),
        ("@tool explore !say", "explore-1", Point.BEFORE_FIRST_CALL, 0),
    ],
)
async def test_a_line_awaits_a_moment_of_its_agent(line: str, agent: str, point: str, iteration: int) -> None:
    # Without a moment the line is sent at once, when its agent must have started.
    needs_agent = line.startswith("@to ")
    async with opened() as stage:
        if not needs_agent:
            stage.schedule(line)
        await stage.agents.start_run([start("explore", [WAIT], [WAIT])], [WAIT])
        if needs_agent:
            stage.schedule(line)
        await stage.agents.finish_run()
        [(_, *receipt)] = stage.delivered
        assert receipt == [agent, point, iteration]
        assert (stage.unsent, stage.refused, stage.sender.waiting) == ([], [], ())


async def test_lines_after_an_agent_go_to_its_parent() -> None:
    async with opened() as stage:
        stage.schedule("@done @to explore-1 say", "@done after all")
        await stage.agents.start_run([start("agent", [start("explore")], [WAIT])])
        await stage.agents.finish_run()
        await stage.agents.session.chain.wait_idle()
        assert stage.delivered == [("say", "agent-1", Point.AFTER_TOOLS, 1), ("after all", "main", Point.START, 0)]


async def test_moments_of_a_child_never_start_a_run() -> None:
    async with opened() as stage:
        stage.schedule("@done @to explore-1 say", "@answer @to explore-1 more")
        await stage.agents.start_run([start("explore", [WAIT])])
        stage.agents.session.interrupt()
        await stage.agents.session.chain.wait_idle()
        stage.sender.discard()
        [run] = stage.agents.session.of(events.RunStarted)
        states = {r.text: r.state for r in stage.agents.session.chain.lines.receipts if r.text != run.query}
        assert states == {"say": "returned"}
        assert stage.unsent == ["@answer @to explore-1 more"]


async def test_a_call_without_an_agent_sends_its_lines() -> None:
    async with opened() as stage:
        stage.schedule("@tool explore say", "@tool explore second")
        without_task: Call = ["explore", {"task": " "}]
        await stage.agents.start_run([without_task])
        await stage.agents.finish_run()
        assert stage.delivered == [("say", "main", Point.AFTER_TOOLS, 1), ("second", "main", Point.AFTER_TOOLS, 1)]


async def test_a_stop_before_the_agent_leaves_its_line() -> None:
    async with opened() as stage:
        chain = stage.agents.session.chain
        call_at_event(stage.agents.session, events.ToolCall, lambda: chain.submit("stop"))
        stage.schedule("@tool explore say")
        await stage.agents.start_run([start("explore")])
        await chain.wait_idle()
        assert (stage.unsent, stage.delivered) == (["@tool explore say"], [])


async def test_a_line_for_an_unknown_agent_is_refused() -> None:
    async with opened() as stage:
        stage.schedule("@iteration 1 @to explore-7 say", "@tool wait @to explore-7 say", "@after 0 @to plan-7 say")
        await stage.agents.start_run([WAIT])
        await stage.agents.finish_run()
        assert stage.refused == ["S1", "S2"]
        assert stage.sender.waiting == ("@iteration 1 @to explore-7 say",), "an unknown agent has no iterations"
        assert stage.agents.session.chain.runs.exit_code() == 3


ASK: Call = ["ask_user_question", {"question": "Which?", "options": ["left", "right"]}]
EXPLORER_AND_PLANNER = [start("explore", [ASK]), start("plan", [ASK])]
"""Calls that start two agents. Each asks a question, the explorer first."""


@pytest.mark.parametrize(
    ("lines", "explorer", "planner", "unsent"),
    [
        (["@question @to plan-1 left", "@question @to explore-1 right"], "right", "left", []),
        (["@question right", "@question left"], "right", "left", []),
        (["@question @to plan-1 left", "@question right"], "right", "left", []),
        (["@question @to PLAN-1 left"], NO_USER_CHOOSES, "left", []),
        (["@question @to agent-1 x", "@question right"], "right", NO_USER_CHOOSES, ["@question @to agent-1 x"]),
    ],
    ids=["both named", "none named", "one named", "capitals", "unknown agent"],
)
async def test_an_answer_is_for_questions_of_its_agent(
    lines: list[str], explorer: str, planner: str, unsent: list[str]
) -> None:
    async with opened() as stage:
        stage.schedule(*lines)
        await stage.agents.start_run(EXPLORER_AND_PLANNER)
        await stage.agents.finish_run()
        for agent, answer in (("explore-1", explorer), ("plan-1", planner)):
            [(text, _)] = stage.agents.results(agent)
            assert answer in text
        stage.sender.discard()
        assert stage.unsent == unsent


async def test_a_later_answer_is_for_the_open_question() -> None:
    async with opened() as stage:
        with stage.agents.session.chain.answering():
            await stage.agents.start_run(EXPLORER_AND_PLANNER)
            stage.schedule("@question @to plan-1 left")
            await stage.agents.wait_blocked()
            assert stage.agents.session.chain.questions.asker == "explore-1"
            stage.schedule("@question @to explore-1 right")
            await stage.agents.finish_run()
        answers = [(e.agent, e.text) for e in stage.agents.session.of(events.Answer)]
        assert answers == [("explore-1", "right"), ("plan-1", "left")]


async def test_queued_lines_of_all_agents_have_one_order() -> None:
    async with opened(ROOM_FOR_ONE) as stage:
        await stage.agents.start_run([start("explore", [WAIT], [WAIT]), start("plan", [WAIT])], [WAIT])
        stage.schedule("@to explore-1 one", "@to explore-1 two", "@to plan-1 three", "@to main four")
        assert stage.sender.queued_count == 3
        await stage.release("explore-1")
        assert stage.sender.queued_count == 0
        await stage.agents.finish_run()
        assert stage.delivered_to == [
            ("one", "explore-1"),
            ("two", "explore-1"),
            ("three", "plan-1"),
            ("four", "main"),
        ]


async def test_now_lines_and_stops_overtake_queued_lines() -> None:
    async with opened(ROOM_FOR_ONE) as stage:
        await stage.agents.start_run([start("explore", [WAIT]), start("plan", [WAIT], [WAIT])], [WAIT])
        stage.schedule("@to plan-1 one", "@to plan-1 two", "@to main three", "@to explore-1 stop")
        assert stage.sender.queued_count == 2
        await stage.release("explore-1")
        assert stage.agents.active == ["main", "plan-1"]
        stage.schedule("@to plan-1 !!four")
        await stage.agents.wait_blocked()
        await stage.agents.finish_run()
        assert [text for text, _ in stage.delivered_to] == ["one", "!!four", "two", "three"]
        assert (stage.unsent, stage.refused) == ([], []), "the stop of a child discards no line"


@pytest.mark.parametrize("stop", ["stop", "@to main stop"])
async def test_a_stop_of_the_run_discards_queued_lines(stop: str) -> None:
    async with opened(ROOM_FOR_ONE) as stage:
        await stage.agents.start_run([start("explore", [WAIT])])
        stage.schedule("@to explore-1 one", "@to explore-1 two", "@to main three", stop)
        assert stage.unsent == ["@to explore-1 two", "@to main three"]
        await stage.agents.finish_run()


@pytest.mark.parametrize(
    ("kinds", "line", "delivered_to"),
    [
        # The parent reads the line of an agent that has no iteration left.
        ('{"explore": {"max_iterations": 1}}', "one", [("one", "main"), ("three", "plan-1")]),
        ("{}", "stop", [("three", "plan-1")]),
    ],
    ids=["no iteration left", "stopped"],
)
async def test_queued_lines_of_an_ended_agent_are_refused(
    kinds: str, line: str, delivered_to: list[tuple[str, str]]
) -> None:
    async with opened(make_settings(agents=True, inbox_size=1, kinds=kinds)) as stage:
        await stage.agents.start_run([start("explore", [WAIT]), start("plan", [WAIT])], [WAIT])
        stage.schedule(f"@to explore-1 {line}", "@to explore-1 two", "@to plan-1 three")
        await stage.release("explore-1")
        assert (stage.sender.queued_count, stage.refused) == (0, ["S1"])
        [refused] = stage.agents.session.of(events.LineRefused)
        assert "main, plan-1" in refused.reason
        await stage.agents.finish_run()
        assert stage.delivered_to == delivered_to
