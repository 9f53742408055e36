"""The lines of a session, as front ends use them."""

from __future__ import annotations

from typing import Literal

from chain.agent.tree import AgentTree
from chain.events import Origin, Receipt
from chain.lines.accepted import AcceptedLine
from chain.lines.inbox import find_waiting_line
from chain.lines.parse import Line, Urgency, parse_line
from chain.lines.receipts import Ledger, LineOutcomes
from chain.session.line_router import IncomingLine, LineRouter, SubmitResult


class SessionLines:
    """The interface of a session's lines: waiting lines, receipts, and checks of lines that are not sent yet."""

    def __init__(self, line_router: LineRouter, tree: AgentTree, ledger: Ledger) -> None:
        self._line_router = line_router
        self._tree = tree
        self._ledger = ledger

    @property
    def waiting(self) -> tuple[AcceptedLine, ...]:
        """The waiting lines of all agents, in the order of acceptance."""
        return self._tree.waiting

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        """The latest receipt of every line so far."""
        return self._ledger.receipts

    def settled(self) -> LineOutcomes:
        """Return and clear the outcomes of lines since the last result or the last call of this method."""
        return self._ledger.settled()

    def find(self, id: str) -> AcceptedLine:
        """Return the waiting line with this id, ignoring case. Raise ``UserError`` if there is none."""
        return find_waiting_line(self.waiting, id)

    def last_waiting(self, origin: Origin = "prompt") -> str | None:
        """Return the id of the latest line of this origin that ``drop`` can still remove, or ``None``."""
        return self._tree.last_waiting(origin)

    def drop(self, id: str, reason: str = "") -> str:
        """Drop a waiting line, ignoring the case of its id, and return its text.

        Raise ``UserError`` if no such line waits, or if a running tool has acted on the line.
        """
        return self._tree.drop(id, reason).line.text

    def target(self, text: str = "", *, to: str = "") -> str:
        """Return the name of the agent that a line would go to now.

        Raise ``UserError`` if ``to`` names an agent that is not at work.
        """
        return self._line_router.target(IncomingLine(parse_line(text), to=to)).name

    def has_room(self, text: str, *, urgency: Urgency = "next", local: bool = True, to: str = "") -> bool:
        """Return whether a line can be submitted now: its agent's inbox has room, and the agent's run is not stopping.

        Return ``True`` also if no run is active, or if the line will be refused because of its address.
        """
        return self._line_router.has_room(IncomingLine(parse_line(text, urgency=urgency, local=local), to=to))

    def needs_no_room(self, text: str, *, urgency: Urgency, to: str) -> Literal["stop", "now"] | None:
        """Return how the active run would accept a line although the inbox is full.

        ``stop``: the line stops the run, because it is a stop phrase or by a rule. ``now``: the line cancels the work
        and is delivered with all waiting lines. ``None``: the line would be refused, or no run is active.
        """
        return self._line_router.needs_no_room(IncomingLine(parse_line(text, urgency=urgency, local=False), to=to))

    async def wait_for_change(self) -> None:
        """Wait until an inbox may have room, or the chain is closed. Callers must check which of both happened."""
        await self._ledger.room.wait()

    def refuse(self, text: str, reason: str, *, id: str = "", origin: Origin = "prompt") -> SubmitResult:
        """Refuse a text that cannot be read as a line, and publish the reason to the sender."""
        return self._line_router.refuse(IncomingLine(Line(text, "redirect", text), id, origin), reason)

    def mark_unsent(self, written: str, reason: str, *, id: str = "") -> None:
        """Report that a script or a pipe will not send a line. The next result lists the line.

        ``written`` is the line as the script contains it, with its time. ``id`` is the sender's id; it may be empty.
        """
        main = self._tree.main
        self._ledger.mark_unsent(written, reason, main.name, id=id, iteration=main.iteration)
