"""Commands about agents, addresses, and lines that wait for an agent, on real chains."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.agents import WAIT, Call, Family, family, start
from support.commands import rows
from support.sessions import settings

from chain.errors import UserError
from cli.input.address import split_address
from cli.terminal.recipients import Recipients, take_back
from cli.terminal.slash import TAKEN_BACK, CommandAnswer, Commands

USE = settings(agents=True)
PAIR = [start("explore", [WAIT]), start("plan", [WAIT])]
DEEP = [start("agent", [start("agent", [start("explore", [WAIT])])]), start("plan", answer="Found.")]


@asynccontextmanager
async def working(*steps: list[Call]) -> AsyncIterator[tuple[Family, Commands]]:
    """Yield agents at work in these steps, and end them at the end."""
    async with family(use=USE, interactive=True) as agents:
        await agents.begin(*steps)
        yield agents, Commands(agents.session.chain, USE)
        await agents.finish()


async def test_waiting_lines_are_shown_and_edited_by_agent() -> None:
    async with working(PAIR) as (agents, commands):
        chain = agents.session.chain
        for text, to in (("one", ""), ("!two", "plan-1"), ("todo: add x", "plan-1"), ("four", "main")):
            agents.send(text, to)
        assert [" ".join(row.split()) for row in rows(commands.run("/queue"))] == [
            "L2 line for explore-1 one",
            "L3 urgent line for plan-1 !two",
            "L4 todo for plan-1 todo: add x",
            "L5 line four",
        ]
        assert "[+] add x (waiting, L4)" in rows(commands.run("/todo"))
        assert commands.run("/drop l2") == CommandAnswer()
        assert commands.run("/edit L3").edit == "/to plan-1 !two"
        assert take_back(chain, chain.lines.last_waiting() or "", TAKEN_BACK) == "/to main four"
        assert commands.run("/drop") == CommandAnswer()
        assert chain.lines.waiting == ()
        with pytest.raises(UserError):
            take_back(chain, "L1", TAKEN_BACK)


BACK = {
    "default recipient": ("use B", "", "use B"),
    "default recipient, addressed": ("use B", "explore-1", "use B"),
    "marker": ("!use B", "main", "/to main !use B"),
    "space": (" stop", "plan-1", "/to plan-1  stop"),
    "several rows": ("use\nB", "plan-1", "/to plan-1 use\nB"),
    "plan command for main": ("todo: add x", "", "todo: add x"),
    "plan command for another": ("todo: add x", "plan-1", "/to plan-1 todo: add x"),
    "follow-up": ("then: more", "", "then: more"),
}


@pytest.mark.parametrize(("text", "to", "back"), BACK.values(), ids=BACK)
async def test_a_taken_back_line_keeps_its_agent(text: str, to: str, back: str) -> None:
    async with working(PAIR) as (agents, commands):
        agent = agents.send(text, to)
        before = agents.session.chain.lines.waiting[0].line
        assert commands.run("/edit").edit == back
        address, line = split_address(back)
        assert agents.send(line, address) == agent
        assert agents.session.chain.lines.waiting[0].line == before


async def test_a_line_of_an_ended_agent_moves_up() -> None:
    use = settings(agents=True, kinds='{"explore": {"max_iterations": 1}}')
    async with family(use=use, interactive=True) as agents:
        await agents.begin([start("explore", [WAIT]), start("plan", [WAIT])])
        assert agents.send("use B") == "explore-1"
        agents.waiters.release("explore-1")
        await agents.quiet()
        assert Commands(agents.session.chain, use).run("/edit L2").edit == "/to main use B"
        await agents.finish()


async def test_agents_shows_the_tree_or_one() -> None:
    async with working(DEEP) as (agents, commands):
        agents.send("one")
        agents.send("two")
        shown = rows(commands.run("/agents", width=200))
        names = ["main", "agent-1", "agent-2", "explore-1", "plan-1"]
        found = [next(row for row in shown if f" {name} " in f" {row} ") for name in names]
        assert sorted(found, key=shown.index) == found, "each below its parent, the finished one last"
        indents = [row.index(name) for row, name in zip(found, names, strict=True)][:4]
        assert indents == sorted(set(indents))
        assert "2 lines" in found[3]
        assert "1/20" in found[3]
        one = "\n".join(rows(commands.run("/agents EXPLORE-1", width=200)))
        assert "explore-1" in one
        assert "plan-1" not in one
        unknown = commands.run("/agents plan-7")
        assert unknown.is_rejected
        assert "main, agent-1, agent-2, explore-1" in unknown.text


async def test_agents_after_a_run_shows_finished_ones() -> None:
    async with family(use=USE, interactive=True) as agents:
        commands = Commands(agents.session.chain, USE)
        await agents.begin([start("explore")])
        await agents.finish()
        assert "explore-1" in commands.run("/agents").text
        assert commands.completions("/agents e") == ["/agents explore-1"]
        assert commands.completions("/to e") == []


COMPLETED = {
    "/to ": ["/to main ", "/to explore-1 ", "/to plan-1 "],
    "/TO P": ["/to plan-1 "],
    "/to explore-1": ["/to explore-1 "],
    "/to explore-1 ": [],
    "/to explore-1 use": [],
    "/agents ": ["/agents main", "/agents explore-1", "/agents plan-1"],
}

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


async def test_addresses_are_completed_and_recognised_while_typed() -> None:
    async with working(PAIR) as (agents, commands):
        for typed, lines in COMPLETED.items():
            assert commands.completions(typed) == lines, typed
        for typed in ("/to", "/TO explore-1  "):
            assert commands.run(typed) == CommandAnswer(
                "write it as /to AGENT TEXT; lines can go to main, explore-1, plan-1", is_rejected=True
            )
        assert "commands cannot be sent to an agent" in commands.run("/to explore-1 /status").text
        for text, to in (("one", ""), ("two", "plan-1"), ("three", "plan-1")):
            agents.send(text, to)
        recipients = Recipients(agents.session.chain)
        recipients.update()
        for typed, expected in RECIPIENTS.items():
            found = recipients.find(typed)
            assert (found.agent, found.text, found.is_addressed) == expected
            assert found.waiting == {"explore-1": 1, "plan-1": 2}.get(found.agent, 0)
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
    async with family(use=USE, interactive=True) as agents:
        recipients = Recipients(agents.session.chain)
        assert recipients.find("x").agent == "main"
        await agents.begin(DEEP, [WAIT])
        for name in ("explore-1", "main"):
            recipients.update()
            assert recipients.find("x").agent == agents.send("x") == name
            agents.waiters.release("explore-1")
            await agents.quiet()
        assert recipients.find("/to explore-1 x").agent == ""
        await agents.finish()
