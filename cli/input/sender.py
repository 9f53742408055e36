"""Lines on their way into a chain when nobody types them: each at its moment, and held back while there is no room.

Held lines keep their order. A stop passes by them, as it does when a person types it, and what it passes by was meant
for the run that it stops: those lines are never sent. A line that can no longer be sent is told of in the step in which
that is so, with the reason.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import trio

from chain import events
from chain.chain import Chain, Submitted
from chain.events import Origin
from chain.lines.parse import MAX_LINE, Urgency
from cli.input.moments import BRINGS_MOMENTS, After, AtDone, Moment, Now, fires

AHEAD = 1_000
"""Lines that may wait for room in the channel, far enough to see a stop; and as many may wait for their moments."""

AHEAD_CHARS = 20 * MAX_LINE
"""Characters of the lines that wait for room, and of those that wait for their moments."""

_GOES_ON = ("done", "cancelled")
"""Endings after which a held line may start the next run: nothing was to be waited for, or it came after the stop."""

OVERTAKEN = "a stop overtook it while it waited for room"
RUN_ENDED = "the run ended before there was room for it"
TOO_LATE = "the run of its moment had ended"
TOO_MANY = "too many lines waited for their moments"
NO_ROOM = "the program was ended before there was room for it"
NO_MOMENT = "its moment did not come"


@dataclass(frozen=True, slots=True, eq=False)
class Outgoing:
    """A line, its moment, and the whole as it was written; ``origin`` is where it came from."""

    moment: Moment
    text: str
    written: str
    urgency: Urgency = "next"
    id: str = ""
    origin: Origin = "script"

    @property
    def may_start(self) -> bool:
        """Whether it may start a run; a moment inside a run is over when the run is."""
        return isinstance(self.moment, Now | AtDone | After)


class Sender:
    """Sends lines to a chain; ``on_answer`` hears what became of each at once."""

    def __init__(self, chain: Chain, on_answer: Callable[[Outgoing, Submitted], None]) -> None:
        self._chain = chain
        self._on_answer = on_answer
        self._at_moment: list[Outgoing] = []
        self._at_moment_chars = 0
        self._held: deque[Outgoing] = deque()
        self._held_chars = 0
        self._news = trio.Event()
        self._moved = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._closed = False
        chain.listen(self._on_event)

    @property
    def held(self) -> int:
        """How many lines wait for room."""
        return len(self._held)

    @property
    def waiting(self) -> tuple[str, ...]:
        """The lines that wait for their moment or for room, as they were written."""
        return tuple(line.written for line in (*self._at_moment, *self._held))

    def miss(self, line: Outgoing, reason: str) -> None:
        """Tell that a line will not be sent."""
        self._chain.never_sent(line.written, reason, id=line.id)

    def give_up(self, why_held: str = RUN_ENDED) -> None:
        """Tell that nothing of what waits will be sent: nothing is to come that could bring its moment, or room."""
        waiting = [*((line, NO_MOMENT) for line in self._at_moment), *((line, why_held) for line in self._held)]
        self._at_moment.clear()
        self._held.clear()
        self._at_moment_chars = self._held_chars = 0
        for line, reason in waiting:
            self.miss(line, reason)

    def close(self) -> None:
        """Send nothing more."""
        self._closed = True

    def take(self, line: Outgoing) -> None:
        """Send a line now, or keep it for its moment."""
        if isinstance(line.moment, Now):
            self._send(line)
        elif len(line.text) > MAX_LINE:
            self._submit_at_once(line)  # it is refused, so no moment is waited for
        else:
            self._at_moment.append(line)
            self._at_moment_chars += len(line.text)
            if isinstance(line.moment, After):
                assert self._nursery is not None, "run() comes first"
                self._nursery.start_soon(self._send_later, line, line.moment.seconds)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send what is held as room comes."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            while True:
                await self._news.wait()
                self._news = trio.Event()
                while self._held:
                    await self._chain.wait_for_room()
                    # The stop that came meanwhile may have emptied the queue.
                    while self._held and self._chain.has_room:
                        self._release(self._held.popleft())
                self._moved.set()

    async def drain(self) -> None:
        """Wait until nothing is held."""
        while self._held:
            await self._wait_moved()

    async def wait_for_place(self) -> None:
        """Wait until another line can be taken, so that whoever writes without end waits too."""
        if self.held >= AHEAD or self._held_chars >= AHEAD_CHARS:
            await self.drain()
        while len(self._at_moment) >= AHEAD or self._at_moment_chars >= AHEAD_CHARS:
            may_come = self._held or any(isinstance(line.moment, After) for line in self._at_moment)
            if self._chain.is_running or may_come:
                await self._wait_moved()
            else:
                # Only lines that are still to be read can bring a moment now: the oldest gives way to them.
                oldest = self._at_moment[0]
                self._its_moment_came(oldest)
                self.miss(oldest, TOO_MANY)

    async def _wait_moved(self) -> None:
        """Wait until a line has gone, or a run has ended."""
        if self._moved.is_set():
            self._moved = trio.Event()
        await self._moved.wait()

    def _on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Result):
            self._moved.set()
        if self._closed or not isinstance(event, BRINGS_MOMENTS):
            return
        for line in [line for line in self._at_moment if fires(line.moment, event)]:
            if isinstance(line.moment, AtDone) and self._chain.is_running:
                continue  # another run has begun: this line's own comes after it
            self._its_moment_came(line)
            self._send(line)

    async def _send_later(self, line: Outgoing, seconds: float) -> None:
        await trio.sleep(seconds)
        if line in self._at_moment:
            self._its_moment_came(line)
            self._send(line)

    def _its_moment_came(self, line: Outgoing) -> None:
        self._at_moment.remove(line)
        self._at_moment_chars -= len(line.text)
        self._moved.set()

    def _send(self, line: Outgoing) -> None:
        if self._chain.would_stop(line.text, local=False):
            held, self._held, self._held_chars = self._held, deque(), 0
            for overtaken in held:
                self.miss(overtaken, OVERTAKEN)
            self._submit(line)
        elif len(line.text) <= MAX_LINE and (self._held or not self._chain.has_room):
            self._held.append(line)
            self._held_chars += len(line.text)
            self._news.set()
        else:
            self._submit(line)  # also what is too long: it needs no room to be refused

    def _release(self, line: Outgoing) -> None:
        """Send a line that was held, unless the run that it was held for ended in a way that gives lines back."""
        self._held_chars -= len(line.text)
        last = self._chain.last_status
        if self._chain.is_running or last is None or last.startswith(_GOES_ON) or isinstance(line.moment, AtDone):
            self._submit(line)
        else:
            self.miss(line, RUN_ENDED)

    def _submit(self, line: Outgoing) -> None:
        if not line.may_start and not self._chain.is_running:
            self.miss(line, TOO_LATE)
        else:
            self._submit_at_once(line)

    def _submit_at_once(self, line: Outgoing) -> None:
        answer = self._chain.submit(line.text, urgency=line.urgency, id=line.id, local=False, origin=line.origin)
        self._on_answer(line, answer)
