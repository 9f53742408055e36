"""Commands about agents, and about lines that wait for them, on real chains."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.agents import WAIT, Call, Family, family, starts
from support.sessions import settings

from chain.errors import UserError
from cli.input.address import split_address
from cli.terminal.recipients import Recipients, take_back
from cli.terminal.slash import TAKEN_BACK, CommandAnswer, Commands

USE = settings(agents=True)
PAIR = [starts("explore", [WAIT]), starts("plan", [WAIT])]
DEEP = [starts("agent", [starts("agent", [starts("explore", [WAIT])])]), starts("plan", answer="Found.")]


@asynccontextmanager
async def working(*steps: list[Call]) -> AsyncIterator[tuple[Family, Commands]]:
    """Agents at work in these steps; at the end they are let go."""
    async with family(use=USE, interactive=True) as agents:
        await agents.begin(*steps)
        yield agents, Commands(agents.session.chain, USE)
        await agents.finish()


def rows(answer: CommandAnswer) -> list[str]:
    assert not answer.keeps, answer
    return answer.text.split("\n")


async def test_the_queue_shows_whom_a_line_waits_for() -> None:
    async with working(PAIR) as (agents, commands):
        agents.send("use B")
        agents.send("!use C", to="plan-1")
        agents.send("use D", to="main")
        agents.send("todo: add x")
        shown = [" ".join(row.split()) for row in rows(commands.run("/queue"))]
        assert shown == [
            "L2 line for explore-1 use B",
            "L3 urgent line for plan-1 !use C",
            "L4 line use D",
            "L5 todo todo: add x",
        ]


async def test_lines_that_wait_for_children_are_dropped_edited_and_shown_as_others_are() -> None:
    async with working(PAIR) as (agents, commands):
        chain = agents.session.chain
        for text, to in (("one", ""), ("two", "plan-1"), ("todo: add x", "plan-1"), ("four", "main")):
            agents.send(text, to)
        assert "[+] add x (waiting, L4)" in rows(commands.run("/todo"))
        assert commands.run("/drop l2") == CommandAnswer()
        assert commands.run("/edit L3").edit == "/to plan-1 two"
        assert commands.run("/drop L9").keeps
        assert [a.id for a in chain.lines.waiting] == ["L4", "L5"]
        latest = chain.lines.last_waiting()
        assert latest == "L5"
        assert take_back(chain, latest, TAKEN_BACK) == "/to main four", "as Up does"
        assert commands.run("/drop") == CommandAnswer()
        assert chain.lines.waiting == ()
    states = [r.state for r in agents.session.chain.lines.receipts[1:]]
    assert states == ["dropped"] * 4


BACK = {
    "it would go there again": ("use B", "", "use B"),
    "it would go there without its address too": ("use B", "explore-1", "use B"),
    "with its marker": ("!use B", "main", "/to main !use B"),
    "with its space": (" stop", "plan-1", "/to plan-1  stop"),
    "of several rows": ("use\nB", "plan-1", "/to plan-1 use\nB"),
    "a plan command for main": ("todo: add x", "", "todo: add x"),
    "a plan command for another": ("todo: add x", "plan-1", "/to plan-1 todo: add x"),
    "a follow-up": ("then: more", "", "then: more"),
}


@pytest.mark.parametrize(("text", "to", "back"), BACK.values(), ids=BACK)
async def test_a_line_that_is_taken_back_is_as_one_types_it_for_its_agent(text: str, to: str, back: str) -> None:
    async with working(PAIR) as (agents, commands):
        agent = agents.send(text, to)
        before = agents.session.chain.lines.waiting[0].line
        assert commands.run("/edit").edit == back
        address, line = split_address(back)
        assert agents.send(line, address) == agent
        assert agents.session.chain.lines.waiting[0].line == before


async def test_a_line_whose_agent_has_ended_comes_back_for_the_one_that_it_waits_for_now() -> None:
    use = settings(agents=True, kinds='{"explore": {"max_iterations": 1}}')
    async with family(use=use, interactive=True) as agents:
        await agents.begin([starts("explore", [WAIT]), starts("plan", [WAIT])])
        assert agents.send("use B") == "explore-1"
        agents.waiters.let_go("explore-1")
        await agents.quiet()
        assert Commands(agents.session.chain, use).run("/edit L2").edit == "/to main use B"
        await agents.finish()


async def test_agents_shows_the_tree() -> None:
    async with working(DEEP) as (agents, commands):
        agents.send("one")
        agents.send("two")
        shown = rows(commands.run("/agents", width=200))
        names = ["main", "agent-1", "agent-2", "explore-1", "plan-1"]
        found = [next(row for row in shown if f" {name} " in f" {row} ") for name in names]
        assert sorted(found, key=shown.index) == found, "each below the one that started it, and then the finished"
        places = [row.index(name) for row, name in zip(found, names, strict=True)]
        assert places[:4] == sorted(set(places[:4])), "the further down, the further in"
        assert "2 lines" in found[3]
        assert "1/20" in found[3]
        assert "answer" in found[4], "the task is in the row"


async def test_agents_shows_one_by_name() -> None:
    async with working(PAIR) as (_, commands):
        (row,) = [row for row in rows(commands.run("/agents PLAN-1", width=300)) if "plan-1" in row]
        assert "steps" in row
        assert "explore-1" not in row
        answer = commands.run("/agents plan-7")
        assert answer.keeps
        assert "main, explore-1, plan-1" in answer.text


async def test_agents_without_a_run_shows_those_that_can_be_asked() -> None:
    async with family(use=USE, interactive=True) as agents:
        commands = Commands(agents.session.chain, USE)
        assert rows(commands.run("/agents")) == ["No agent is at work."]
        await agents.begin([starts("explore")])
        await agents.finish()
        (row,) = [row for row in rows(commands.run("/agents")) if "explore-1" in row]
        assert "explore-1" in row
        assert commands.completions("/agents e") == ["/agents explore-1"]
        assert commands.completions("/to e") == []


async def test_an_address_without_a_line_stays_with_how_to_write_it() -> None:
    async with working(PAIR) as (_, commands):
        for typed in ("/to", "/to explore-1", "/TO explore-1  "):
            answer = commands.run(typed)
            assert answer.keeps
            assert "/to AGENT TEXT" in answer.text
            assert "main, explore-1, plan-1" in answer.text
        answer = commands.run("/to explore-1 /status")
        assert answer.keeps
        assert "command" in answer.text


COMPLETED = {
    "/to ": ["/to main ", "/to explore-1 ", "/to plan-1 "],
    "/TO P": ["/to plan-1 "],
    "/to explore-1": ["/to explore-1 "],
    "/to explore-1 ": [],
    "/to explore-1 use": [],
    "/agents ": ["/agents main", "/agents explore-1", "/agents plan-1"],
    "/ag": ["/agents"],
}


async def test_names_are_completed() -> None:
    async with working(PAIR) as (_, commands):
        for typed, lines in COMPLETED.items():
            assert commands.completions(typed) == lines, typed


# ------------------------------------------------------------------------------------------------------ addresses


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


async def test_the_recipient_is_known_while_a_line_is_typed() -> None:
    async with working(PAIR) as (agents, _):
        agents.send("one")
        agents.send("two", to="plan-1")
        agents.send("three", to="plan-1")
        recipients = Recipients(agents.session.chain)
        recipients.update()
        for typed, expected in RECIPIENTS.items():
            found = recipients.of(typed)
            assert (found.agent, found.text, found.is_addressed) == expected
            assert found.waiting == {"explore-1": 1, "plan-1": 2}.get(found.agent, 0)
        assert recipients.waiting == 3


async def test_the_recipient_is_the_one_that_the_line_then_goes_to() -> None:
    async with family(use=USE, interactive=True) as agents:
        recipients = Recipients(agents.session.chain)
        assert recipients.of("x").agent == "main"
        await agents.begin(DEEP, [WAIT])
        for name in ("explore-1", "main"):
            recipients.update()
            assert recipients.of("x").agent == agents.send("x") == name
            agents.waiters.let_go("explore-1")
            await agents.quiet()
        assert recipients.of("/to explore-1 x").agent == ""
        await agents.finish()


async def test_a_line_that_does_not_wait_cannot_be_taken_back() -> None:
    async with working(PAIR) as (agents, _):
        with pytest.raises(UserError):
            take_back(agents.session.chain, "L1", TAKEN_BACK)
