"""Lines that nobody types, for agents: each at the moment of its agent, and none is lost when that agent is gone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest
import trio
from support.agents import WAIT, Call, Family, family, starts
from support.sessions import settings

from chain import events
from chain.config.load import Settings
from chain.text.wording import NO_USER_TO_CHOOSE
from cli.input.moments import parse_moment
from cli.input.sender import Sender

SMALL = settings(agents=True, inbox_size=1)
"""One line may wait for each agent."""


@dataclass
class Sending:
    """A family, and the sender of its lines."""

    agents: Family
    sender: Sender
    count: int = 0

    def schedule(self, *lines: str) -> None:
        for line in lines:
            say = parse_moment(line, strict=True)
            self.sender.schedule(replace(say, id=f"S{self.count}"))
            self.count += 1

    @property
    def delivered(self) -> list[tuple[str, str, str | None, int]]:
        """Every line but the query that a model has: its text, the agent, the point, the iteration."""
        receipts = self.agents.session.chain.lines.receipts[1:]
        return [(r.text, r.agent, r.point, r.iteration) for r in receipts if r.state == "delivered"]

    @property
    def unsent(self) -> list[tuple[str, str]]:
        told = [r for r in self.agents.session.of(events.Receipt) if r.state == "unsent"]
        return [(r.text, r.reason) for r in told]

    @property
    def refused(self) -> list[str]:
        return [e.id for e in self.agents.session.of(events.LineRefused)]


@asynccontextmanager
async def opened(use: Settings | None = None) -> AsyncIterator[Sending]:
    async with family(use=use) as agents, trio.open_nursery() as nursery:
        sender = Sender(agents.session.chain, lambda line, answer: None)
        await nursery.start(sender.run)
        yield Sending(agents, sender)
        nursery.cancel_scope.cancel()


AT = {
    "@to explore-1 @home": ("explore-1", "D", 1),
    "@to EXPLORE-1 say": ("explore-1", "D", 1),
    "@iteration 1 @to explore-1 say": ("explore-1", "D", 1),
    "@iteration 2 @to explore-1 say": ("explore-1", "D", 2),
    "@iteration 3 @to explore-1 say": ("explore-1", "B", 3),
    "@iteration 2 say": ("main", "D", 2),
    "@iteration 2 @to main say": ("main", "D", 2),
    "@answer @to explore-1 say": ("explore-1", "B", 3),
    "@answer say": ("main", "B", 3),
    "@done @to explore-1 say": ("main", "D", 1),
    "@tool wait say": ("explore-1", "D", 1),
    "@tool wait @to main say": ("main", "D", 1),
    "@tool explore say": ("explore-1", "A", 0),
    "@tool explore @to explore-1 say": ("explore-1", "A", 0),
    "@tool explore @to main say": ("main", "D", 1),
    "@tool explore !say": ("explore-1", "A", 0),
}


@pytest.mark.parametrize(("line", "landed"), AT.items(), ids=AT)
async def test_a_line_goes_to_its_agent_at_the_moment_of_that_agent(line: str, landed: tuple[str, str, int]) -> None:
    async with opened() as stage:
        if line.startswith("@to "):
            await stage.agents.begin([starts("explore", [WAIT], [WAIT])], [WAIT])
            stage.schedule(line)
        else:
            stage.schedule(line)
            await stage.agents.begin([starts("explore", [WAIT], [WAIT])], [WAIT])
        await stage.agents.finish()

        assert [(agent, point, iteration) for _, agent, point, iteration in stage.delivered] == [landed]
        assert (stage.unsent, stage.refused, stage.sender.waiting) == ([], [], ())


async def test_what_follows_an_agent_that_ended_goes_to_the_agent_above_it() -> None:
    async with opened() as stage:
        stage.schedule("@done @to explore-1 say", "@done after all")
        await stage.agents.begin([starts("agent", [starts("explore")], [WAIT])])
        await stage.agents.finish()
        await stage.agents.session.chain.wait_idle()

        assert stage.delivered == [("say", "agent-1", "D", 1), ("after all", "main", "start", 0)]


async def test_a_moment_below_main_never_starts_a_run() -> None:
    async with opened() as stage:
        stage.schedule("@done @to explore-1 say", "@answer @to explore-1 more")
        await stage.agents.begin([starts("explore", [WAIT])])
        stage.agents.session.interrupt()
        await stage.agents.session.chain.wait_idle()
        stage.sender.discard()

        assert len(stage.agents.session.of(events.RunStarted)) == 1
        states = {r.text: r.state for r in stage.agents.session.chain.lines.receipts[1:]}
        assert states == {"say": "returned"}
        assert [text for text, _ in stage.unsent] == ["@answer @to explore-1 more"]


async def test_at_a_tool_that_starts_no_agent_the_line_goes_as_its_result_comes() -> None:
    async with opened() as stage:
        stage.schedule("@tool explore say", "@tool explore second")
        nothing: Call = ["explore", {"task": " "}]
        await stage.agents.begin([nothing])
        await stage.agents.finish()

        assert stage.delivered == [("say", "main", "D", 1), ("second", "main", "D", 1)]


async def test_a_stop_before_the_agent_is_there_leaves_its_line_unsent() -> None:
    async with opened() as stage:
        chain = stage.agents.session.chain
        chain.listen(lambda e: chain.submit("stop") and None if isinstance(e, events.ToolCall) else None)
        stage.schedule("@tool explore say")
        await stage.agents.begin([starts("explore")])
        await chain.wait_idle()

        assert [text for text, _ in stage.unsent] == ["@tool explore say"]
        assert stage.delivered == []


# -------------------------------------------------------------------------------------------------------- questions

ASK: Call = ["ask_user_question", {"question": "Which?", "options": ["left", "right"]}]
PAIR = [starts("explore", [ASK]), starts("plan", [ASK])]

ANSWERED = {
    "each its own": (["@question @to plan-1 left", "@question @to explore-1 right"], "right", "left", 0),
    "an open one first, in order": (["@question right", "@question left"], "right", "left", 0),
    "one for another agent is passed over": (["@question @to plan-1 left", "@question right"], "right", "left", 0),
    "nobody answers the other one": (["@question @to PLAN-1 left"], NO_USER_TO_CHOOSE, "left", 0),
    "what is for nobody is left": (["@question @to agent-1 x", "@question right"], "right", NO_USER_TO_CHOOSE, 1),
}


@pytest.mark.parametrize(("lines", "explorer", "planner", "left"), ANSWERED.values(), ids=ANSWERED)
async def test_an_answer_with_an_address_is_for_the_questions_of_that_agent(
    lines: list[str], explorer: str, planner: str, left: int
) -> None:
    async with opened() as stage:
        stage.schedule(*lines)
        await stage.agents.begin(PAIR)
        await stage.agents.finish()

        for agent, answer in (("explore-1", explorer), ("plan-1", planner)):
            ((text, _),) = stage.agents.results(agent)
            assert answer in text
        assert len(stage.sender.waiting) == left
        stage.sender.discard()
        assert [text for text, _ in stage.unsent] == lines[:left]


async def test_an_answer_that_comes_later_is_for_the_agent_that_asks() -> None:
    async with opened() as stage:
        with stage.agents.session.chain.answering():
            await stage.agents.begin(PAIR)
            stage.schedule("@question @to plan-1 left")
            await stage.agents.quiet()
            assert stage.agents.session.chain.questions.asker == "explore-1"
            stage.schedule("@question @to explore-1 right")
            await stage.agents.finish()

        assert [(e.agent, e.text) for e in stage.agents.session.of(events.Answer)] == [
            ("explore-1", "right"),
            ("plan-1", "left"),
        ]


# ------------------------------------------------------------------------------------------------------------- room


async def test_held_lines_keep_their_order_whoever_they_are_for() -> None:
    async with opened(SMALL) as stage:
        await stage.agents.begin([starts("explore", [WAIT], [WAIT]), starts("plan", [WAIT])], [WAIT])
        stage.schedule("@to explore-1 one", "@to explore-1 two", "@to plan-1 three", "@to main four")
        assert stage.sender.queued_count == 3
        stage.agents.waiters.let_go("explore-1")
        await stage.agents.quiet()
        assert stage.sender.queued_count == 0
        await stage.agents.finish()

        assert [(text, agent) for text, agent, *_ in stage.delivered] == [
            ("one", "explore-1"),
            ("two", "explore-1"),
            ("three", "plan-1"),
            ("four", "main"),
        ]


async def test_now_lines_and_stops_pass_by_what_is_held_and_a_childs_stop_overtakes_nothing() -> None:
    async with opened(SMALL) as stage:
        await stage.agents.begin([starts("explore", [WAIT]), starts("plan", [WAIT], [WAIT])], [WAIT])
        stage.schedule("@to plan-1 one", "@to plan-1 two", "@to main three", "@to explore-1 stop")
        assert stage.sender.queued_count == 2
        stage.agents.waiters.let_go("explore-1")
        await stage.agents.quiet()
        assert stage.agents.at_work == ["main", "plan-1"]
        stage.schedule("@to plan-1 !!four")
        await stage.agents.quiet()
        await stage.agents.finish()

        assert [text for text, *_ in stage.delivered] == ["one", "!!four", "two", "three"]
        assert (stage.unsent, stage.refused) == ([], [])


@pytest.mark.parametrize("stop", ["stop", "@to main stop"])
async def test_a_stop_of_the_run_overtakes_what_is_held_for_any_agent(stop: str) -> None:
    async with opened(SMALL) as stage:
        await stage.agents.begin([starts("explore", [WAIT])])
        stage.schedule("@to explore-1 one", "@to explore-1 two", "@to main three", stop)
        assert [text for text, _ in stage.unsent] == ["@to explore-1 two", "@to main three"]
        await stage.agents.finish()


async def test_a_held_line_whose_agent_is_gone_is_refused_and_holds_nobody_up() -> None:
    use = settings(agents=True, inbox_size=1, kinds='{"explore": {"max_iterations": 1}}')
    async with opened(use) as stage:
        await stage.agents.begin([starts("explore", [WAIT]), starts("plan", [WAIT])], [WAIT])
        stage.schedule("@to explore-1 one", "@to explore-1 two", "@to plan-1 three")
        stage.agents.waiters.let_go("explore-1")
        await stage.agents.quiet()
        assert stage.refused == ["S1"]
        (refused,) = stage.agents.session.of(events.LineRefused)
        assert "main, plan-1" in refused.reason
        await stage.agents.finish()

        # What had room is read by the agent above, since its own had no reply left to read it with.
        assert [(text, agent) for text, agent, *_ in stage.delivered] == [("one", "main"), ("three", "plan-1")]


async def test_the_end_of_an_agent_that_leaves_no_lines_wakes_the_sender() -> None:
    async with opened(SMALL) as stage:
        await stage.agents.begin([starts("explore", [WAIT]), starts("plan", [WAIT])])
        stage.schedule("@to explore-1 stop", "@to explore-1 too late")
        assert stage.sender.queued_count == 1
        stage.agents.waiters.let_go("explore-1")
        await stage.agents.quiet()
        assert stage.agents.at_work == ["main", "plan-1"]
        assert (stage.sender.queued_count, stage.refused) == (0, ["S1"])
        await stage.agents.finish()


async def test_a_moments_line_for_an_agent_that_is_not_there_is_refused_and_counts() -> None:
    async with opened() as stage:
        stage.schedule("@iteration 1 @to explore-7 say", "@tool wait @to explore-7 say", "@after 0 @to plan-7 say")
        await stage.agents.begin([WAIT])
        await stage.agents.finish()

        # The iterations of an agent that never is are no moment.
        assert sorted(stage.refused) == ["S1", "S2"]
        assert stage.sender.waiting == ("@iteration 1 @to explore-7 say",)
        assert stage.agents.session.chain.runs.exit_code() == 3
