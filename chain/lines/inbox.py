"""The bounded inbox in which an agent's lines wait for a safe point.

A line for which it has no room is refused. The bound is for lines that come in: a now line, which empties the queue,
and what an agent leaves to the one above it need no room. New lines are refused until all of these have room again.

The lines that wait are part of the session's state (``Lines.waiting``), and an inbox is a view of it with a bound. A
trio memory channel cannot serve here: a follow-up stays while the lines behind it are delivered, and a line can be
dropped from the middle, be moved to another agent, or be read by a running tool before it is delivered.

Accepting a line is one synchronous step (SPEC section 3), so it is never half done: room, an id, a record, a place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter

from chain.errors import JournalError, UserError
from chain.events import Origin
from chain.lines.accepted import Accepted
from chain.lines.parse import Adjustment, Line
from chain.lines.receipts import Ledger
from chain.text.wording import FULL


class Inbox:
    """The bounded inbox of one agent."""

    def __init__(self, ledger: Ledger, *, agent: str, size: int = 10) -> None:
        self.agent = agent
        self.size = size
        self.room = ledger.room
        self._ledger = ledger
        self._lines = ledger.lines

    def __len__(self) -> int:
        return len(self.waiting())

    @property
    def is_full(self) -> bool:
        """Whether the next line would be refused."""
        return len(self) >= self.size

    @property
    def is_overfull(self) -> bool:
        """Whether even a line that needs no room would be refused: there is an end to how many of these may wait."""
        return len(self) >= 2 * self.size

    @property
    def has_urgent(self) -> bool:
        """Whether a line waits that skips tools: an urgent or a now line."""
        return any(accepted.line.skips_tools for accepted in self.waiting())

    @property
    def has_now(self) -> bool:
        """Whether a now line waits."""
        return any(accepted.line.urgency == "now" for accepted in self.waiting())

    def put(
        self, line: Line, *, id: str = "", origin: Origin = "prompt", iteration: int = 0, by_rule: bool = False
    ) -> Accepted | str:
        """Accept a line for this agent, or refuse it and return why; one step, without an await."""
        refuse = partial(self._ledger.refuse, line, self.agent, len(self), id=id, origin=origin, iteration=iteration)
        if problem := self._ledger.problem(line, id):
            return refuse(problem)
        if self.is_full and (line.urgency != "now" or self.is_overfull):
            return refuse(FULL)
        place = len(self) + 1
        try:
            return self._ledger.accept(
                line, self.agent, id=id, origin=origin, iteration=iteration, by_rule=by_rule, waiting=place
            )
        except JournalError as error:
            return refuse(str(error))

    def hand_over(self, to: Inbox, *, iteration: int = 0) -> tuple[Accepted, ...]:
        """Move all lines to another agent's inbox, also those that were taken and not delivered. Return them.

        There they are merged in the order of acceptance, and keep their urgency. One step, without an await.
        """
        left = self.everything()
        merged = sorted((*to.waiting(), *left), key=attrgetter("number"))
        for accepted in left:
            self._ledger.readdress(accepted, to.agent, waiting=merged.index(accepted) + 1, iteration=iteration)
        return left

    def waiting(self) -> tuple[Accepted, ...]:
        """Return the lines that wait, in the order of acceptance. They stay."""
        return tuple(a for a in self._lines.waiting if a.record.agent == self.agent and not a.is_leaving)

    def everything(self) -> tuple[Accepted, ...]:
        """Return the lines that wait, with those that were taken and are neither delivered nor settled yet."""
        return tuple(a for a in self._lines.waiting if a.record.agent == self.agent)

    def drain(self) -> tuple[Accepted, ...]:
        """Take all waiting lines but the follow-ups, in the order of acceptance."""
        return self._take(lambda a: a.line.kind != "follow-up")

    def next_follow_up(self) -> Accepted | None:
        """Take the oldest follow-up, if one waits."""
        oldest = next((a for a in self.waiting() if a.line.kind == "follow-up"), None)
        self._take(lambda a: a is oldest)
        return oldest

    def drain_todos(self) -> tuple[Accepted, ...]:
        """Take the todo lines, which need no model call."""
        return self._take(lambda a: a.line.kind == "todo")

    def drain_all(self) -> tuple[Accepted, ...]:
        """Take everything that waits."""
        return self._take(lambda _: True)

    def drop(self, id: str, *, iteration: int = 0, reason: str = "") -> Accepted:
        """Remove one line for good; the case of its id does not matter.

        Raise ``UserError`` when no such line waits, or when a running tool has acted on it already.
        """
        accepted = find_waiting_line(self.waiting(), id)
        if accepted.was_used:
            raise UserError(f"a running tool has acted on {accepted.id} already, so it cannot be dropped any more")
        self._ledger.settle(accepted, "dropped", iteration=iteration, reason=reason)
        return accepted

    def adjustments(self, seen: set[str]) -> tuple[Adjustment, ...]:
        """Return the adjustments of the waiting lines whose ids on record are not in ``seen``, which gains them.

        The lines stay: the model is still to read them. But a tool has acted on them now.
        """
        new = [a for a in self.waiting() if a.line.adjustment is not None and a.on_record not in seen]
        for accepted in new:
            seen.add(accepted.on_record)
            accepted.was_used = True
        return tuple(a.line.adjustment for a in new if a.line.adjustment is not None)

    def _take(self, wanted: Callable[[Accepted], bool]) -> tuple[Accepted, ...]:
        taken = tuple(a for a in self.waiting() if wanted(a))
        for accepted in taken:
            accepted.is_leaving = True
        if taken:
            self.room.set()
        return taken


def find_waiting_line(lines: Sequence[Accepted], id: str) -> Accepted:
    """Return the line with this id, whose case does not matter. Raise ``UserError`` if none of these has it."""
    wanted = id.strip()
    found = [a for a in lines if a.id == wanted] or [a for a in lines if a.id.casefold() == wanted.casefold()]
    if not found:
        held = ", ".join(a.id for a in lines)
        those = f"only {held} waits" if len(lines) == 1 else f"waiting are {held}"
        raise UserError(f"{wanted} does not wait; {those}" if held else "nothing waits")
    return found[0]
