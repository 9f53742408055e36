"""The tree of agents that ``/agents`` shows. Pure, plain text with ASCII signs, as the answers to commands are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chain.text.wording import MAIN, counted
from cli.show.children import STEP
from cli.show.text import columns, cut, flat

if TYPE_CHECKING:
    from chain.chain import AgentView

MARK = "..."


def tree_rows(agents: Sequence[AgentView], width: int, *, now: float) -> list[str]:
    """A row for each agent at work, further in than its parent's, and one for each that can be asked again.

    Rows have at most ``width`` columns; what an agent was asked for comes last, and is cut first.
    """
    working = _in_order([agent for agent in agents if not _can_be_asked(agent)])
    names = [" " * min(STEP * depth, width // 4) + flat(agent.name) for depth, agent in working]
    room = max(map(columns, names), default=0)
    facts = [_facts(agent, now) for _, agent in working]
    rows = [
        _row(name, room, says, agent.task, width) for name, says, (_, agent) in zip(names, facts, working, strict=True)
    ]
    finished = [agent for agent in agents if _can_be_asked(agent)]
    if finished:
        rows.append(cut("Finished, can be asked again:", width, MARK))
    room = STEP + max((columns(flat(agent.name)) for agent in finished), default=0)
    return rows + [_row(" " * STEP + flat(agent.name), room, "", agent.task, width) for agent in finished]


def _can_be_asked(agent: AgentView) -> bool:
    # The main agent's run may be over as well, but lines go to it without being asked for.
    return agent.state == "finished" and agent.name != MAIN


def _in_order(agents: Sequence[AgentView]) -> list[tuple[int, AgentView]]:
    """Each agent after its parent, with its depth. One whose parent is not among them stands at the edge."""
    known = {agent.name for agent in agents}
    below: dict[str, list[AgentView]] = {}
    for agent in agents:
        below.setdefault(agent.parent if agent.parent in known else "", []).append(agent)
    found: list[tuple[int, AgentView]] = []
    left = [(0, agent) for agent in reversed(below.pop("", []))]
    while left:
        depth, agent = left.pop()
        found.append((depth, agent))
        left += [(depth + 1, child) for child in reversed(below.pop(agent.name, []))]
    return found


def _facts(agent: AgentView, now: float) -> str:
    if agent.state == "finished":
        return "idle"
    parts = [_duration(now - agent.since)]
    if agent.iteration:
        parts.append(f"{agent.iteration}/{agent.max_iterations}")
    if agent.state == "completing":
        parts.append("ends")
    if agent.waiting:
        parts.append(f"{counted(agent.waiting, 'line')} waiting")
    return ", ".join([*parts, counted(agent.tokens, "token")])


def _row(name: str, room: int, facts: str, task: str, width: int) -> str:
    head = name + " " * (room - columns(name))
    return cut("  ".join(part for part in (head, facts, flat(task)) if part), width, MARK).rstrip()


def _duration(seconds: float) -> str:
    whole = max(int(seconds), 0)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60} s"
