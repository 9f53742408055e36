"""The bounded channel in which an agent's lines wait for a safe point.

A line for which it has no room is refused. The bound is for lines that come in: a now line, which empties the queue,
and what an agent leaves to the one above it need no room. Where the channel has none for them they wait beside it, and
new lines are refused until all of these have room again.

A trio channel cannot be looked into, so all that waits is also in ``_waiting``: the channel holds the oldest of it, as
many as it has room for, and what is beside it is in ``_waiting`` alone.

Accepting a line is one synchronous step (SPEC section 3), so it is never half done: room, an id, a record, a place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter

import trio

from chain.errors import JournalError, UserError
from chain.events import Origin
from chain.lines.parse import Adjustment, Line
from chain.lines.receipts import Accepted, Ledger
from chain.signal import Signal
from chain.text.wording import FULL


class Inbox:
    """The bounded channel of one agent.

    ``room`` is set when lines have left any of a session's inboxes, or what else kept lines back is over.
    """

    def __init__(self, ledger: Ledger, *, agent: str, size: int = 10, room: Signal | None = None) -> None:
        self.agent = agent
        self.size = size
        self.room = room or Signal()
        self._ledger = ledger
        self._send, self._receive = trio.open_memory_channel[Accepted](size)
        self._waiting: tuple[Accepted, ...] = ()
        """All that waits, in the order of acceptance."""

    def __len__(self) -> int:
        return len(self._waiting)

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
        return any(accepted.line.skips_tools for accepted in self._waiting)

    @property
    def has_now(self) -> bool:
        """Whether a now line waits."""
        return any(accepted.line.urgency == "now" for accepted in self._waiting)

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
            accepted = self._ledger.accept(
                line, self.agent, id=id, origin=origin, iteration=iteration, by_rule=by_rule, waiting=place
            )
        except JournalError as error:
            return refuse(str(error))
        self._waiting += (accepted,)
        if place <= self.size:
            self._send.send_nowait(accepted)
        return accepted

    def restore(self, accepted: Accepted) -> None:
        """Let a line wait that was accepted by an earlier process. All of them are put back in their order."""
        self._fill((*self._waiting, accepted))

    def hand_over(self, to: Inbox, undelivered: Iterable[Accepted] = (), *, iteration: int = 0) -> tuple[Accepted, ...]:
        """Move all that waits here, and what is ``undelivered``, to another agent's inbox; returns what was moved.

        There it is merged in the order of acceptance, and keeps its urgency. One step, without an await.
        """
        left = sorted((*undelivered, *self.drain_all()), key=attrgetter("number"))
        if not left:
            return ()
        merged = sorted((*to._waiting, *left), key=attrgetter("number"))
        to._fill(merged)
        return tuple(
            self._ledger.readdress(accepted, to.agent, waiting=merged.index(accepted) + 1, iteration=iteration)
            for accepted in left
        )

    def drain(self) -> tuple[Accepted, ...]:
        """Remove and return all waiting lines but the follow-ups, in the order of acceptance."""
        return self._drain(lambda a: a.line.kind != "follow-up")

    def next_follow_up(self) -> Accepted | None:
        """Remove and return the oldest follow-up, if one waits."""
        oldest = next((a for a in self._waiting if a.line.kind == "follow-up"), None)
        self._drain(lambda a: a is oldest)
        return oldest

    def drain_todos(self) -> tuple[Accepted, ...]:
        """Remove and return the todo lines, which need no model call."""
        return self._drain(lambda a: a.line.kind == "todo")

    def drain_all(self) -> tuple[Accepted, ...]:
        """Remove and return everything that waits."""
        return self._drain(lambda _: True)

    def drop(self, id: str, *, iteration: int = 0, reason: str = "") -> Accepted:
        """Remove one line for good; the case of its id does not matter.

        Raises ``UserError`` when no such line waits, or when a running tool has acted on it already.
        """
        accepted = find_waiting_line(self._waiting, id)
        if accepted.was_used:
            raise UserError(f"a running tool has acted on {accepted.id} already, so it cannot be dropped any more")
        self._drain(lambda a: a is accepted)
        self._ledger.settle(accepted, "dropped", iteration=iteration, reason=reason)
        return accepted

    def waiting(self) -> tuple[Accepted, ...]:
        """What waits, in order; it stays."""
        return self._waiting

    def adjustments(self, seen: set[str]) -> tuple[Adjustment, ...]:
        """The adjustments of the waiting lines whose ids on record are not in ``seen``, which gains them.

        The lines stay: the model is still to read them. But a tool has acted on them now.
        """
        new = [a for a in self._waiting if a.line.adjustment is not None and a.on_record not in seen]
        for accepted in new:
            seen.add(accepted.on_record)
            accepted.was_used = True
        return tuple(a.line.adjustment for a in new if a.line.adjustment is not None)

    def _drain(self, wanted: Callable[[Accepted], bool]) -> tuple[Accepted, ...]:
        drained = tuple(a for a in self._waiting if wanted(a))
        if drained:
            self._fill(a for a in self._waiting if not wanted(a))
            self.room.set()
        return drained

    def _fill(self, lines: Iterable[Accepted]) -> None:
        """Let these wait, and nothing else."""
        self._waiting = tuple(lines)
        with suppress(trio.WouldBlock):
            while True:
                self._receive.receive_nowait()
        for accepted in self._waiting[: self.size]:
            self._send.send_nowait(accepted)


def find_waiting_line(lines: Sequence[Accepted], id: str) -> Accepted:
    """The line with this id, whose case does not matter. Raises ``UserError`` if none of these has it."""
    wanted = id.strip()
    found = [a for a in lines if a.id == wanted] or [a for a in lines if a.id.casefold() == wanted.casefold()]
    if not found:
        held = ", ".join(a.id for a in lines)
        those = f"only {held} waits" if len(lines) == 1 else f"waiting are {held}"
        raise UserError(f"{wanted} does not wait; {those}" if held else "nothing waits")
    return found[0]
