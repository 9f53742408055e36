"""Commands about agents, addresses, and lines that wait for an agent, on real chains."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.agents import WAIT, AgentSession, Call, open_agents, start
from support.commands import answer_rows
from support.sessions import make_settings

from chain.errors import UserError
from cli.input.address import split_address
from cli.show.toolbar import Recipient
from cli.terminal.recipients import Recipients, take_back
from cli.terminal.slash import TAKEN_BACK, CommandAnswer, Commands

SETTINGS = make_settings(agents=True)
TWO_AGENTS = [start("explore", [WAIT]), start("plan", [WAIT])]
"""A step that starts ``explore-1`` and ``plan-1``, both of which wait."""
AGENTS_OF_AGENTS = [start("agent", [start("agent", [start("explore", [WAIT])])]), start("plan", answer="Found.")]
"""A step that starts ``agent-1``, which starts ``agent-2``, which starts ``explore-1``; and ``plan-1``, which ends."""


@asynccontextmanager
async def working_agents(*steps: list[Call]) -> AsyncIterator[tuple[AgentSession, Commands]]:
    """Yield agents at work on these steps and the commands, and let the agents end afterwards."""
    async with open_agents(settings=SETTINGS, interactive=True) as agents:
        await agents.start_run(*steps)
        yield agents, Commands(agents.session.chain, SETTINGS)
        await agents.finish_run()


async def test_waiting_lines_are_shown_and_edited_by_agent() -> None:
    async with working_agents(TWO_AGENTS) as (agents, commands):
        chain = agents.session.chain
        for text, to in (("one", ""), ("!two", "plan-1"), ("todo: add x", "plan-1"), ("four", "main")):
            agents.send(text, to)
        queue = [" ".join(row.split()) for row in answer_rows(commands.run("/queue"))]
        assert queue == [
            "L2 line for explore-1 one",
            "L3 urgent line for plan-1 !two",
            "L4 todo for plan-1 todo: add x",
            "L5 line four",
        ]
        assert "[+] add x (waiting, L4)" in answer_rows(commands.run("/todo"))
        assert commands.run("/drop l2") == CommandAnswer()
        assert commands.run("/edit L3").edit == "/to plan-1 !two"
        assert take_back(chain, chain.lines.last_waiting() or "", TAKEN_BACK) == "/to main four"
        assert commands.run("/drop") == CommandAnswer()  # L4, the only one left
        assert chain.lines.waiting == ()
        with pytest.raises(UserError):
            take_back(chain, "L1", TAKEN_BACK)  # the query of the run


TAKEN_BACK_LINES = {
    "default recipient": ("use B", "", "use B"),
    "default recipient, addressed": ("use B", "explore-1", "use B"),
    "marker": ("!use B", "main", "/to main !use B"),
    "space": (" stop", "plan-1", "/to plan-1  stop"),
    "several rows": ("use\nB", "plan-1", "/to plan-1 use\nB"),
    "plan command for main": ("todo: add x", "", "todo: add x"),
    "plan command for another": ("todo: add x", "plan-1", "/to plan-1 todo: add x"),
    "follow-up": ("then: more", "", "then: more"),
}


@pytest.mark.parametrize(("text", "to", "edited"), TAKEN_BACK_LINES.values(), ids=TAKEN_BACK_LINES)
async def test_a_taken_back_line_keeps_its_agent(text: str, to: str, edited: str) -> None:
    async with working_agents(TWO_AGENTS) as (agents, commands):
        agent = agents.send(text, to)
        (before,) = agents.session.chain.lines.waiting
        assert commands.run("/edit").edit == edited
        address, line = split_address(edited)
        assert agents.send(line, address) == agent
        (after,) = agents.session.chain.lines.waiting
        assert after.line == before.line


async def test_a_line_for_an_ended_agent_moves_up() -> None:
    settings = make_settings(agents=True, kinds='{"explore": {"max_iterations": 1}}')
    async with open_agents(settings=settings, interactive=True) as agents:
        await agents.start_run(TWO_AGENTS)
        assert agents.send("use B") == "explore-1"
        agents.waiters.release("explore-1")
        await agents.wait_blocked()
        assert Commands(agents.session.chain, settings).run("/edit L2").edit == "/to main use B"
        await agents.finish_run()


async def test_agents_shows_each_agent_below_its_parent() -> None:
    async with working_agents(AGENTS_OF_AGENTS) as (agents, commands):
        agents.send("one")
        agents.send("two")
        main, agent_1, agent_2, explore_1, _heading, plan_1 = answer_rows(commands.run("/agents", width=200))
        assert main.startswith("main ")
        assert agent_1.startswith("  agent-1 ")
        assert agent_2.startswith("    agent-2 ")
        assert re.match(r"      explore-1 .* 1/20, 2 lines waiting", explore_1)
        assert plan_1.startswith("  plan-1 "), "finished agents are last"


async def test_agents_with_a_name_shows_this_agent() -> None:
    async with working_agents(AGENTS_OF_AGENTS) as (_, commands):
        shown = commands.run("/agents EXPLORE-1", width=200).text
        assert "explore-1" in shown
        assert "plan-1" not in shown
        unknown = commands.run("/agents plan-7")
        assert unknown.is_rejected
        assert "main, agent-1, agent-2, explore-1" in unknown.text


async def test_agents_after_a_run_shows_finished_ones() -> None:
    async with open_agents(settings=SETTINGS, interactive=True) as agents:
        commands = Commands(agents.session.chain, SETTINGS)
        await agents.start_run([start("explore")])
        await agents.finish_run()
        assert "explore-1" in commands.run("/agents").text
        assert commands.completions("/agents e") == ["/agents explore-1"]
        assert commands.completions("/to e") == []


COMPLETIONS = {
    "/to ": ["/to main ", "/to explore-1 ", "/to plan-1 "],
    "/TO P": ["/to plan-1 "],
    "/to explore-1": ["/to explore-1 "],
    "/to explore-1 ": [],
    "/to explore-1 use": [],
    "/agents ": ["/agents main", "/agents explore-1", "/agents plan-1"],
}


async def test_names_of_agents_are_completed() -> None:
    async with working_agents(TWO_AGENTS) as (_, commands):
        for typed, lines in COMPLETIONS.items():
            assert commands.completions(typed) == lines, typed


async def test_an_incomplete_address_is_an_error() -> None:
    async with working_agents(TWO_AGENTS) as (_, commands):
        error = "write it as /to AGENT TEXT; lines can go to main, explore-1, plan-1"
        for typed in ("/to", "/TO explore-1  "):
            assert commands.run(typed) == CommandAnswer(error, is_rejected=True)
        assert "commands cannot be sent to an agent" in commands.run("/to explore-1 /status").text


RECIPIENTS = {
    "": ("explore-1", "", False),
    "use B": ("explore-1", "use B", False),
    "/to": ("explore-1", "/to", False),
    "/to pl": ("explore-1", "/to pl", False),
    "/to PLAN-1 ": ("plan-1", "", True),
    "/to plan-1 use B": ("plan-1", "use B", True),
    "/to main stop": ("main", "stop", True),
    "/to plan-7 use B": ("", "use B", True),
    "todo: add x": ("main", "todo: add x", False),
    "then: more": ("main", "then: more", False),
    "/to plan-1 todo: add x": ("plan-1", "todo: add x", True),
}
"""For each typed text, its agent, the text without the address, and whether it has an address."""


async def test_the_recipient_of_a_typed_text() -> None:
    async with working_agents(TWO_AGENTS) as (agents, _):
        for text, to in (("one", ""), ("two", "plan-1"), ("three", "plan-1")):
            agents.send(text, to)
        recipients = Recipients(agents.session.chain)
        recipients.update()
        for typed, (agent, text, is_addressed) in RECIPIENTS.items():
            waiting = {"explore-1": 1, "plan-1": 2}.get(agent, 0)  # a line without an address is for explore-1
            assert recipients.find(typed) == Recipient(agent, text, waiting, is_addressed)
        assert recipients.waiting == 3


@pytest.mark.parametrize(
    ("text", "name", "line"),
    [
        ("/to explore-1 use B", "explore-1", "use B"),
        ("/TO Explore-1 use B", "Explore-1", "use B"),
        ("/to explore-1 !now", "explore-1", "!now"),
        ("/to explore-1  stop", "explore-1", " stop"),
        ("/to   explore-1 use B", "explore-1", "use B"),
        ("/to explore-1\nuse\n B", "explore-1", "use\n B"),
        ("/to explore-1", "", "/to explore-1"),
        ("/to explore-1  ", "", "/to explore-1  "),
        ("/to", "", "/to"),
        ("/tool x y", "", "/tool x y"),
        (" /to main x", "", " /to main x"),
        ("to main x", "", "to main x"),
    ],
)
def test_an_address_is_split_from_its_line(text: str, name: str, line: str) -> None:
    assert split_address(text) == (name, line)


async def test_the_recipient_follows_the_agents_at_work() -> None:
    async with open_agents(settings=SETTINGS, interactive=True) as agents:
        recipients = Recipients(agents.session.chain)
        assert recipients.find("x").agent == "main"
        await agents.start_run(AGENTS_OF_AGENTS, [WAIT])
        for name in ("explore-1", "main"):
            recipients.update()
            assert recipients.find("x").agent == agents.send("x") == name
            agents.waiters.release("explore-1")  # it ends, and so do its ancestors up to main
            await agents.wait_blocked()
        assert recipients.find("/to explore-1 x").agent == ""
        await agents.finish_run()
