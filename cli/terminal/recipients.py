"""The recipient of a typed line: the agent of its address, ``/to AGENT TEXT``, or else the chain's default target.

An address is not a command: the text after it and one space is an ordinary line, which may begin with a marker.
"""

from __future__ import annotations

from chain.chain import Chain
from chain.lines.parse import parse_line
from chain.text.wording import MAIN
from cli.input.address import unfinished_address
from cli.show.toolbar import Recipient

LONGEST_PREFIX = 200
"""How many characters are parsed at every key, to recognise a plan command or a follow-up."""


class Recipients:
    """A snapshot of the agents and their waiting lines, for the toolbar.

    Only trio's thread may call ``update``. Any thread may call the other methods.
    """

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._snapshot = MAIN, {MAIN: 0}
        """The target of a line without an address, and the number of waiting lines of each agent at work."""

    def update(self) -> None:
        """Read the agents at work, and how many lines wait for each."""
        self._snapshot = self._chain.lines.target(), waiting_by_agent(self._chain)

    @property
    def waiting(self) -> int:
        """The number of waiting lines of all agents."""
        return sum(self._snapshot[1].values())

    def find(self, typed: str) -> Recipient:
        """Return the recipient of a typed text. An unfinished address without an agent's name counts as plain text."""
        target, waiting = self._snapshot
        name, text = unfinished_address(typed)
        found = next((agent for agent in waiting if agent.casefold() == name.casefold()), "")
        if not name or not (found or text.strip()):
            # Plan commands and follow-ups always go to main. Only the beginning is parsed, since a paste may be long.
            is_for_main = parse_line(typed[:LONGEST_PREFIX]).kind in ("todo", "follow-up")
            target = MAIN if is_for_main else target
            return Recipient(target, typed, waiting.get(target, 0))
        return Recipient(found, text, waiting.get(found, 0), is_addressed=True)


def waiting_by_agent(chain: Chain) -> dict[str, int]:
    """Return the number of waiting lines of each agent that a line can be addressed to."""
    return {view.name: view.waiting for view in chain.agents if view.state == "executing" or view.name == MAIN}


def take_back(chain: Chain, id: str, reason: str) -> str:
    """Drop a waiting line and return its text, with an address if the line would otherwise go to another agent.

    ``reason`` is shown in the line's receipt. Raise ``UserError`` if the line no longer waits.
    """
    accepted = chain.lines.find(id)
    text = chain.lines.drop(accepted.id, reason)
    return text if chain.lines.target(text) == accepted.agent else f"/to {accepted.agent} {text}"
