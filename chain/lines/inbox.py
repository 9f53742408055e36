"""The bounded inbox in which an agent's lines wait for a safe point: a view of ``Lines.waiting`` with a limit.

A line is refused if the inbox is full. There are exceptions: a now line may exceed the limit, since it empties the
queue, and so may the lines that a finished agent passes to its parent. Lines of jobs are not counted.

A line that is taken from an inbox no longer waits there, but is still in ``Lines.waiting``, marked as ``is_leaving``,
until it is delivered or settled.

A trio memory channel is not usable here: a follow-up stays in the inbox while the lines behind it are delivered, and a
line can be dropped from the middle, moved to another agent, or read by a running tool before it is delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter

from chain.errors import JournalError, UserError
from chain.events import Origin
from chain.lines.accepted import AcceptedLine, job_line
from chain.lines.parse import Adjustment, Line
from chain.lines.receipts import Ledger
from chain.text.wording import FULL


class Inbox:
    """The bounded inbox of one agent. ``size`` is its limit in lines. ``room`` is set when an inbox may have room."""

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
        """Whether the number of waiting lines, without lines of jobs, has reached ``size``."""
        return self._counted_lines >= self.size

    @property
    def is_overfull(self) -> bool:
        """Whether the inbox contains too many lines even for a now line: twice ``size``."""
        return self._counted_lines >= 2 * self.size

    @property
    def _counted_lines(self) -> int:
        return sum(accepted.line.kind != "job" for accepted in self.waiting())

    @property
    def has_urgent(self) -> bool:
        """Whether an urgent line or a now line waits."""
        return any(accepted.line.skips_tools for accepted in self.waiting())

    @property
    def has_now(self) -> bool:
        """Whether a now line waits."""
        return any(accepted.line.urgency == "now" for accepted in self.waiting())

    def put(
        self, line: Line, *, id: str = "", origin: Origin = "prompt", iteration: int = 0, by_rule: bool = False
    ) -> AcceptedLine | str:
        """Accept a line for this agent and return it, or refuse it and return the reason.

        This is one step without an ``await`` (SPEC section 3).
        """
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

    def put_job(self, text: str, job: str, *, iteration: int = 0) -> AcceptedLine:
        """Accept the line about the end of a job, even if the inbox is full. Raise ``JournalError`` if this fails."""
        place = len(self) + 1
        return self._ledger.accept(
            job_line(text), self.agent, origin="job", iteration=iteration, waiting=place, job=job
        )

    def hand_over(self, target: Inbox, *, iteration: int = 0) -> tuple[AcceptedLine, ...]:
        """Move all waiting lines, and taken lines that were not delivered, to another inbox. Return the moved lines."""
        lines = self.all_lines()
        merged = sorted((*target.waiting(), *lines), key=attrgetter("number"))
        for accepted in lines:
            self._ledger.readdress(accepted, target.agent, waiting=merged.index(accepted) + 1, iteration=iteration)
        return lines

    def waiting(self) -> tuple[AcceptedLine, ...]:
        """Return the waiting lines in the order of acceptance."""
        return tuple(a for a in self._lines.waiting if a.record.agent == self.agent and not a.is_leaving)

    def all_lines(self) -> tuple[AcceptedLine, ...]:
        """Return the waiting lines, and taken lines that are neither delivered nor settled yet."""
        return tuple(a for a in self._lines.waiting if a.record.agent == self.agent)

    def drain(self) -> tuple[AcceptedLine, ...]:
        """Take all waiting lines except follow-ups, and return them in the order of acceptance."""
        return self._take(lambda a: a.line.kind != "follow-up")

    def take_follow_up(self) -> AcceptedLine | None:
        """Take and return the oldest follow-up; ``None`` if none waits."""
        oldest = next((a for a in self.waiting() if a.line.kind == "follow-up"), None)
        self._take(lambda a: a is oldest)
        return oldest

    def drain_todos(self) -> tuple[AcceptedLine, ...]:
        """Take and return the todo lines, which need no model call."""
        return self._take(lambda a: a.line.kind == "todo")

    def drain_all(self) -> tuple[AcceptedLine, ...]:
        """Take and return all waiting lines."""
        return self._take(lambda _: True)

    def drop(self, id: str, *, iteration: int = 0, reason: str = "") -> AcceptedLine:
        """Drop a waiting line and return it.

        Raise ``UserError`` if no line with this id waits, or if a running tool has acted on the line.
        """
        accepted = find_waiting_line(self.waiting(), id)
        if accepted.is_used:
            raise UserError(f"a running tool has acted on {accepted.id} already, so this line cannot be dropped")
        self._ledger.settle(accepted, "dropped", iteration=iteration, reason=reason)
        return accepted

    def use_adjustments(self, seen: set[str]) -> tuple[Adjustment, ...]:
        """Return the adjustments of the waiting lines whose ids are not in ``seen``. Add these ids to ``seen``.

        The lines stay in the inbox, but can no longer be dropped.
        """
        new = [a for a in self.waiting() if a.line.adjustment is not None and a.on_record not in seen]
        for accepted in new:
            seen.add(accepted.on_record)
            accepted.is_used = True
        return tuple(a.line.adjustment for a in new if a.line.adjustment is not None)

    def _take(self, wanted: Callable[[AcceptedLine], bool]) -> tuple[AcceptedLine, ...]:
        """Take the waiting lines for which ``wanted`` returns true, and return them."""
        taken = tuple(a for a in self.waiting() if wanted(a))
        for accepted in taken:
            accepted.is_leaving = True
        if taken:
            self.room.set()
        return taken


def find_waiting_line(lines: Sequence[AcceptedLine], id: str) -> AcceptedLine:
    """Return the line with this id, ignoring case. Raise ``UserError`` if there is none."""
    wanted = id.strip()
    found = [a for a in lines if a.id == wanted] or [a for a in lines if a.id.casefold() == wanted.casefold()]
    if not found:
        ids = ", ".join(a.id for a in lines)
        waiting = f"only {ids} is" if len(lines) == 1 else f"the waiting lines are {ids}"
        raise UserError(f"{wanted} is not waiting; {waiting}" if ids else "no line is waiting")
    return found[0]
