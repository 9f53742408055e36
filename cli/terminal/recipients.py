"""Which agent a typed line goes to: the one of its address, ``/to AGENT TEXT``, or else the one that the chain names.

An address is a part of the line and no command: what follows it after one space is a line like any other, with its own
marker. A line that is taken back has an address where it would go to another agent without it.
"""

from __future__ import annotations

from chain.chain import Chain
from chain.lines.parse import parse_line
from chain.text.wording import MAIN
from cli.input.address import begun_address
from cli.show.toolbar import Recipient

LONGEST_PREFIX = 200
"""Characters that tell whether a line is a plan command or a follow-up; they are parsed at every key."""


class Recipients:
    """The agents, as the row below the prompt needs them. Only ``update`` has to be called in trio's thread."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._standing = MAIN, {MAIN: 0}
        """Who a line without an address goes to, and how many lines wait for each agent at work."""

    def update(self) -> None:
        """Adapt to the agents that are at work now."""
        self._standing = self._chain.lines.target(), waiting_by_agent(self._chain)

    @property
    def waiting(self) -> int:
        """How many lines wait, for whichever agent."""
        return sum(self._standing[1].values())

    def of(self, typed: str) -> Recipient:
        """Who a text would go to. While the name is being typed, and no agent has it yet, it counts as no address."""
        target, waiting = self._standing
        name, text = begun_address(typed)
        found = next((agent for agent in waiting if agent.casefold() == name.casefold()), "")
        if not name or not (found or text.strip()):
            # The beginning of a line decides whether it is the main agent's whoever is at work; a paste may be long.
            is_for_main = parse_line(typed[:LONGEST_PREFIX]).kind in ("todo", "follow-up")
            target = MAIN if is_for_main else target
            return Recipient(target, typed, waiting.get(target, 0))
        return Recipient(found, text, waiting.get(found, 0), is_addressed=True)


def waiting_by_agent(chain: Chain) -> dict[str, int]:
    """The agents that a line can be addressed to, and how many lines wait for each."""
    return {view.name: view.waiting for view in chain.agents if view.state == "executing" or view.name == MAIN}


def take_back(chain: Chain, id: str, reason: str) -> str:
    """Drop a waiting line, and return it as one types it for the agent that it waited for. Raises ``UserError``."""
    accepted = chain.lines.find(id)
    text = chain.lines.drop(accepted.id, reason)
    return text if chain.lines.target(text) == accepted.agent else f"/to {accepted.agent} {text}"
