"""The bounded inbox in which an agent's lines wait for a safe point: a view of ``Lines.waiting`` with a limit.

A line is refused if the inbox is full. A now line, which empties the queue, and lines that a finished agent leaves to
its parent may exceed the limit. Lines of jobs need no room.

A trio memory channel cannot serve here: a follow-up stays while the lines behind it are delivered, and a line can be
dropped from the middle, be moved to another agent, or be read by a running tool before it is delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter

from chain.errors import JournalError, UserError
from chain.events import Origin
from chain.lines.accepted import Accepted, job_line
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
        """Whether there is no room for a line."""
        return self._taken_room >= self.size

    @property
    def is_overfull(self) -> bool:
        """Whether there is no room even for a now line."""
        return self._taken_room >= 2 * self.size

    @property
    def _taken_room(self) -> int:
        return sum(accepted.line.kind != "job" for accepted in self.waiting())

    @property
    def has_urgent(self) -> bool:
        """Whether an urgent or a now line waits."""
        return any(accepted.line.skips_tools for accepted in self.waiting())

    @property
    def has_now(self) -> bool:
        """Whether a now line waits."""
        return any(accepted.line.urgency == "now" for accepted in self.waiting())

    def put(
        self, line: Line, *, id: str = "", origin: Origin = "prompt", iteration: int = 0, by_rule: bool = False
    ) -> Accepted | str:
        """Accept a line for this agent, or refuse it and return why. One step without an ``await`` (SPEC section 3)."""
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

    def put_job(self, text: str, job: str, *, iteration: int = 0) -> Accepted:
        """Accept the line of a job's end, which needs no room. Raise ``JournalError``."""
        place = len(self) + 1
        return self._ledger.accept(
            job_line(text), self.agent, origin="job", iteration=iteration, waiting=place, job=job
        )

    def hand_over(self, to: Inbox, *, iteration: int = 0) -> tuple[Accepted, ...]:
        """Move all lines, also those taken and not delivered, to another inbox, and return them."""
        left = self.everything()
        merged = sorted((*to.waiting(), *left), key=attrgetter("number"))
        for accepted in left:
            self._ledger.readdress(accepted, to.agent, waiting=merged.index(accepted) + 1, iteration=iteration)
        return left

    def waiting(self) -> tuple[Accepted, ...]:
        """Return the waiting lines in the order of acceptance."""
        return tuple(a for a in self._lines.waiting if a.record.agent == self.agent and not a.is_leaving)

    def everything(self) -> tuple[Accepted, ...]:
        """Return the waiting lines and those that were taken and are not delivered or settled yet."""
        return tuple(a for a in self._lines.waiting if a.record.agent == self.agent)

    def drain(self) -> tuple[Accepted, ...]:
        """Take all waiting lines except follow-ups, in the order of acceptance."""
        return self._take(lambda a: a.line.kind != "follow-up")

    def next_follow_up(self) -> Accepted | None:
        """Take the oldest follow-up, or return ``None``."""
        oldest = next((a for a in self.waiting() if a.line.kind == "follow-up"), None)
        self._take(lambda a: a is oldest)
        return oldest

    def drain_todos(self) -> tuple[Accepted, ...]:
        """Take the todo lines, which need no model call."""
        return self._take(lambda a: a.line.kind == "todo")

    def drain_all(self) -> tuple[Accepted, ...]:
        """Take all waiting lines."""
        return self._take(lambda _: True)

    def drop(self, id: str, *, iteration: int = 0, reason: str = "") -> Accepted:
        """Drop a waiting line. Raise ``UserError`` if it does not wait, or if a running tool has acted on it."""
        accepted = find_waiting_line(self.waiting(), id)
        if accepted.was_used:
            raise UserError(f"a running tool has acted on {accepted.id} already, so it cannot be dropped any more")
        self._ledger.settle(accepted, "dropped", iteration=iteration, reason=reason)
        return accepted

    def adjustments(self, seen: set[str]) -> tuple[Adjustment, ...]:
        """Return the adjustments of waiting lines whose ids are not in ``seen``, and add these. The lines stay."""
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
    """Return the line with this id, ignoring case. Raise ``UserError`` if there is none."""
    wanted = id.strip()
    found = [a for a in lines if a.id == wanted] or [a for a in lines if a.id.casefold() == wanted.casefold()]
    if not found:
        held = ", ".join(a.id for a in lines)
        those = f"only {held} waits" if len(lines) == 1 else f"waiting are {held}"
        raise UserError(f"{wanted} does not wait; {those}" if held else "nothing waits")
    return found[0]
