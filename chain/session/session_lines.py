"""The lines of a session, as front ends see them."""

from __future__ import annotations

from typing import Literal

from chain.agent.tree import AgentTree
from chain.events import Origin, Receipt
from chain.lines.accepted import Accepted
from chain.lines.inbox import find_waiting_line
from chain.lines.parse import Line, Urgency, parse_line
from chain.lines.receipts import Ledger, Settled
from chain.session.intake import Intake, Sent, Submitted


class SessionLines:
    """The waiting lines of a session and their receipts, and what would become of a line that is not sent yet."""

    def __init__(self, intake: Intake, tree: AgentTree, ledger: Ledger) -> None:
        self._intake = intake
        self._tree = tree
        self._ledger = ledger

    @property
    def waiting(self) -> tuple[Accepted, ...]:
        """The waiting lines of all agents, in the order of acceptance."""
        return self._tree.waiting

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        """The latest receipt of every line so far."""
        return self._ledger.receipts

    def settled(self) -> Settled:
        """Return the receipts of the lines settled since the last result, or since this was last called."""
        return self._ledger.settled()

    def find(self, id: str) -> Accepted:
        """Return the waiting line with this id, ignoring case. Raise ``UserError`` if there is none."""
        return find_waiting_line(self.waiting, id)

    def last_waiting(self, origin: Origin = "prompt") -> str | None:
        """Return the id of the latest line of this origin that ``drop`` would still remove."""
        return self._tree.last_waiting(origin)

    def drop(self, id: str, reason: str = "") -> str:
        """Remove a waiting line, ignoring the case of its id, and return it as it was typed.

        Raise ``UserError`` if no such line waits, or if a running tool has acted on it already.
        """
        return self._tree.drop(id, reason).line.text

    def target(self, text: str = "", *, to: str = "") -> str:
        """Return the agent that a line would go to now. Raise ``UserError`` for an agent that is not at work."""
        return self._intake.target(Sent(parse_line(text), to=to)).name

    def has_room(self, text: str, *, urgency: Urgency = "next", local: bool = True, to: str = "") -> bool:
        """Return whether there is room for a line, and no run is about to stop."""
        return self._intake.has_room(Sent(parse_line(text, urgency=urgency, local=local), to=to))

    def needs_no_room(self, text: str, *, urgency: Urgency, to: str) -> Literal["stop", "now"] | None:
        """Return how the active run would accept a line although its inbox is full; ``None`` if it would not.

        ``stop``: it ends the run, by its words or by a rule. ``now``: it cuts the work and empties the inbox.
        """
        return self._intake.needs_no_room(Sent(parse_line(text, urgency=urgency, local=False), to=to))

    async def wait_for_change(self) -> None:
        """Wait until an inbox may have room or the chain has closed. Check again afterwards: it may have none."""
        await self._ledger.room.wait()

    def refuse(self, text: str, reason: str, *, id: str = "", origin: Origin = "prompt") -> Submitted:
        """Publish to its sender why something that was meant as a line, and cannot be read as one, is not accepted."""
        return self._intake.refuse(Sent(Line(text, "redirect", text), id, origin), reason)

    def never_sent(self, written: str, reason: str, *, id: str = "") -> None:
        """Record that a script or a pipe will not send a line any more; the next result lists it.

        ``written`` is the line as it was written, its moment included, and ``id`` is its sender's own, if it has one.
        """
        main = self._tree.main
        self._ledger.never_sent(written, reason, main.name, id=id, iteration=main.iteration)
