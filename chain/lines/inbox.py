"""The bounded channel in which an agent's lines wait for a safe point.

Accepting a line is one synchronous step (SPEC section 3): check for room, give it an id, record it, send it. Nothing
can come in between, so a line is never half accepted.

A trio channel cannot be looked into, so what has to be known without receiving (an urgent line waits) is kept beside
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import trio

from chain import events
from chain.errors import JournalError, UserError
from chain.events import Origin
from chain.lines.parse import Adjustment, Line
from chain.lines.receipts import Accepted, Emit, Journal, Ledger, Refused, adjustment_view
from chain.wording import FULL


class Inbox:
    """The bounded channel of one agent."""

    def __init__(self, ledger: Ledger, journal: Journal, emit: Emit, *, agent: str, size: int = 10) -> None:
        self.agent = agent
        self.size = size
        self._ledger = ledger
        self._journal = journal
        self._emit = emit
        self._send, self._receive = trio.open_memory_channel[Accepted](2 * size)
        self._urgent = self._now = 0
        self._adjusted: set[str] = set()
        self._room = trio.Event()

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

    async def wait_for_change(self) -> None:
        """Wait until lines have left the channel, or ``wake`` is called; never for nothing."""
        if self._room.is_set():
            self._room = trio.Event()
        await self._room.wait()

    def wake(self) -> None:
        """Wake who waits for a change: what keeps lines back may be over without one having left."""
        self._room.set()

    def put(self, line: Line, *, id: str = "", origin: Origin = "prompt", iteration: int = 0) -> Accepted | Refused:
        """Accept a line for this agent, or refuse it; one step, without an await."""
        refuse = partial(self._ledger.refuse, line, self.agent, len(self), id=id, origin=origin, iteration=iteration)
        if problem := self._ledger.problem(line, id):
            return refuse(problem)
        # A now line empties the queue, so it needs no room of its own; still there is an end to how many may wait.
        if len(self) >= (2 * self.size if line.urgency == "now" else self.size):
            return refuse(FULL)
        try:
            accepted = self._ledger.accept(line, self.agent, id=id, origin=origin)
        except JournalError as error:
            return refuse(str(error))
        self._send.send_nowait(accepted)
        self._urgent += line.skips_tools
        self._now += line.urgency == "now"
        queued = events.LineQueued(
            agent=self.agent,
            iteration=iteration,
            id=accepted.id,
            text=line.text,
            kind=line.kind,
            urgency=line.urgency,
            target_agent=self.agent,
            waiting=len(self),
            origin=origin,
            adjustment=adjustment_view(line),
        )
        self._journal.acknowledge(lambda: self._emit(queued))
        return accepted

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
        every = self.waiting()
        wanted = id.strip()
        found = [a for a in every if a.id == wanted] or [a for a in every if a.id.casefold() == wanted.casefold()]
        if not found:
            held = ", ".join(a.id for a in every)
            those = f"only {held} waits" if len(every) == 1 else f"waiting are {held}"
            raise UserError(f"{wanted} does not wait; {those}" if held else "nothing waits")
        accepted = found[0]
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
        """The adjustments of the waiting lines whose ids are not in ``seen``, which gains them.

        The lines stay: the model is still to read them. But a tool has acted on them, so from now on ``was_used`` is
        true of each.
        """
        new = [a for a in self.waiting() if a.line.adjustment is not None and a.id not in seen]
        seen.update(a.id for a in new)
        self._adjusted.update(a.id for a in new)
        return tuple(a.line.adjustment for a in new if a.line.adjustment is not None)

    def was_used(self, accepted: Accepted) -> bool:
        """Whether a running tool has read the line's adjustment."""
        return accepted.id in self._adjusted

    def _drain(self, wanted: Callable[[Accepted], bool]) -> tuple[Accepted, ...]:
        every = self._receive_all()
        chosen = [wanted(a) for a in every]
        self._send_back(a for a, leaves in zip(every, chosen, strict=True) if not leaves)
        drained = tuple(a for a, leaves in zip(every, chosen, strict=True) if leaves)
        if drained:
            self._urgent -= sum(a.line.skips_tools for a in drained)
            self._now -= sum(a.line.urgency == "now" for a in drained)
            self.wake()
        return drained

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
