"""The bounded channel in which an agent's lines wait for a safe point.

The bound holds for lines that come in. What an agent leaves that ends goes to the agent above it, whatever room there
is, and new lines are refused there until there is room again.

Accepting a line is one synchronous step (SPEC section 3): check for room, give it an id, record it, send it. Nothing
can come in between, so a line is never half accepted.

A trio channel cannot be looked into, so what has to be known without receiving (an urgent line waits) is kept beside
it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter

import trio

from chain.errors import JournalError, UserError
from chain.events import Origin
from chain.lines.parse import Adjustment, Line
from chain.lines.receipts import Accepted, Ledger, Refused
from chain.text.wording import FULL


class Room:
    """Tells those who wait for room that there may be some, in any of a session's inboxes."""

    def __init__(self) -> None:
        self._changed = trio.Event()
        self._is_closed = False

    async def wait_for_change(self) -> None:
        """Wait until lines have left a channel, or ``wake`` is called; never for nothing, nor once it is closed."""
        if self._changed.is_set() and not self._is_closed:
            self._changed = trio.Event()
        await self._changed.wait()

    def wake(self) -> None:
        """Wake who waits for a change: what keeps lines back may be over without one having left."""
        self._changed.set()

    def close(self) -> None:
        """Let nobody wait from now on: nothing will change any more."""
        self._is_closed = True
        self._changed.set()


class Inbox:
    """The bounded channel of one agent. ``room`` is what the inboxes of a session share."""

    def __init__(self, ledger: Ledger, *, agent: str, size: int = 10, room: Room | None = None) -> None:
        self.agent = agent
        self.size = size
        self.room = room or Room()
        self._ledger = ledger
        # A channel cannot make an exception for what another agent leaves, so the bound is kept in ``put``.
        self._send, self._receive = trio.open_memory_channel[Accepted](math.inf)
        self._urgent = self._now = 0
        self._adjusted: set[str] = set()

    def __len__(self) -> int:
        return self._receive.statistics().current_buffer_used

    @property
    def is_full(self) -> bool:
        """Whether the next line would be refused."""
        return len(self) >= self.size

    @property
    def has_urgent(self) -> bool:
        """Whether a line waits that skips tools: an urgent or a now line."""
        return self._urgent > 0

    @property
    def has_now(self) -> bool:
        """Whether a now line waits."""
        return self._now > 0

    def put(
        self, line: Line, *, id: str = "", origin: Origin = "prompt", iteration: int = 0, by_rule: bool = False
    ) -> Accepted | Refused:
        """Accept a line for this agent, or refuse it; one step, without an await."""
        refuse = partial(self._ledger.refuse, line, self.agent, len(self), id=id, origin=origin, iteration=iteration)
        if problem := self._ledger.problem(line, id):
            return refuse(problem)
        # A now line empties the queue, so it needs no room of its own; still there is an end to how many may wait.
        if len(self) >= (2 * self.size if line.urgency == "now" else self.size):
            return refuse(FULL)
        try:
            accepted = self._ledger.accept(
                line, self.agent, id=id, origin=origin, iteration=iteration, by_rule=by_rule, waiting=len(self) + 1
            )
        except JournalError as error:
            return refuse(str(error))
        self._send.send_nowait(accepted)
        self._count([accepted])
        return accepted

    def restore(self, accepted: Accepted) -> None:
        """Let a line wait that was accepted by an earlier process. All of them are put back in their order."""
        self._send.send_nowait(accepted)
        self._count([accepted])

    def hand_over(self, to: Inbox, stranded: Iterable[Accepted] = (), *, iteration: int = 0) -> tuple[Accepted, ...]:
        """Move all that waits here, and what is ``stranded``, to another agent's inbox; returns what was moved.

        There it is merged in the order of acceptance, and keeps its urgency. One step, without an await.
        """
        left = sorted((*stranded, *self.drain_all()), key=attrgetter("number"))
        if not left:
            return ()
        merged = sorted((*to._receive_all(), *left), key=attrgetter("number"))
        places = {accepted.number: place for place, accepted in enumerate(merged, 1)}
        moved = tuple(
            self._ledger.readdress(accepted, to.agent, waiting=places[accepted.number], iteration=iteration)
            for accepted in left
        )
        to._adjusted |= {accepted.on_record for accepted in moved if self.was_used(accepted)}
        to._send_back(merged)
        to._count(moved)
        return moved

    def drain(self) -> tuple[Accepted, ...]:
        """Remove and return all waiting lines but the follow-ups, in the order of acceptance."""
        return self._drain(lambda a: a.line.kind != "follow-up")

    def next_follow_up(self) -> Accepted | None:
        """Remove and return the oldest follow-up, if one waits."""
        found = False

        def is_oldest(accepted: Accepted) -> bool:
            nonlocal found
            wanted = not found and accepted.line.kind == "follow-up"
            found = found or wanted
            return wanted

        drained = self._drain(is_oldest)
        return drained[0] if drained else None

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
        accepted = find(self.waiting(), id)
        if self.was_used(accepted):
            raise UserError(f"a running tool has acted on {accepted.id} already, so it cannot be dropped any more")
        self._drain(lambda a: a is accepted)
        self._ledger.settle(accepted, "dropped", iteration=iteration, reason=reason)
        return accepted

    def waiting(self) -> tuple[Accepted, ...]:
        """What waits, in order; it stays."""
        every = self._receive_all()
        self._send_back(every)
        return every

    def adjustments(self, seen: set[str]) -> tuple[Adjustment, ...]:
        """The adjustments of the waiting lines whose ids on record are not in ``seen``, which gains them.

        The lines stay: the model is still to read them. But a tool has acted on them, so from now on ``was_used`` is
        true of each.
        """
        new = [a for a in self.waiting() if a.line.adjustment is not None and a.on_record not in seen]
        seen.update(a.on_record for a in new)
        self._adjusted.update(a.on_record for a in new)
        return tuple(a.line.adjustment for a in new if a.line.adjustment is not None)

    def was_used(self, accepted: Accepted) -> bool:
        """Whether a running tool has read the line's adjustment."""
        return accepted.on_record in self._adjusted

    def _drain(self, wanted: Callable[[Accepted], bool]) -> tuple[Accepted, ...]:
        every = self._receive_all()
        chosen = [wanted(a) for a in every]
        self._send_back(a for a, leaves in zip(every, chosen, strict=True) if not leaves)
        drained = tuple(a for a, leaves in zip(every, chosen, strict=True) if leaves)
        if drained:
            self._count(drained, -1)
            self.room.wake()
        return drained

    def _count(self, lines: Iterable[Accepted], by: int = 1) -> None:
        """Lines that skip tools have come, or gone."""
        for accepted in lines:
            self._urgent += by * accepted.line.skips_tools
            self._now += by * (accepted.line.urgency == "now")

    def _receive_all(self) -> tuple[Accepted, ...]:
        every = []
        while True:
            try:
                every.append(self._receive.receive_nowait())
            except trio.WouldBlock:
                return tuple(every)

    def _send_back(self, lines: Iterable[Accepted]) -> None:
        for accepted in lines:
            self._send.send_nowait(accepted)


def find(lines: Sequence[Accepted], id: str) -> Accepted:
    """The line with this id, whose case does not matter. Raises ``UserError`` if none of these has it."""
    wanted = id.strip()
    found = [a for a in lines if a.id == wanted] or [a for a in lines if a.id.casefold() == wanted.casefold()]
    if not found:
        held = ", ".join(a.id for a in lines)
        those = f"only {held} waits" if len(lines) == 1 else f"waiting are {held}"
        raise UserError(f"{wanted} does not wait; {those}" if held else "nothing waits")
    return found[0]
