"""Lines on their way into a chain when nobody types them: each at its moment, and held back while there is no room.

Held lines keep their order. A stop passes by them, as it does when a person types it, and what it passes by was meant
for the run that it stops: those lines are never sent, and reported.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import trio

from chain import events
from chain.chain import Chain, Submitted
from chain.lines import parse_line
from cli.moments import After, AtDone, Moment, Now, fires

_GOES_ON = ("done", "cancelled")
"""Endings after which a held line may start the next run: nothing was to be waited for, or it came after the stop."""


@dataclass(frozen=True, slots=True, eq=False)
class Outgoing:
    """A line, its moment, and the whole as it was written."""

    moment: Moment
    text: str
    written: str
    urgent: bool = False
    id: str = ""

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
        self._held: deque[Outgoing] = deque()
        self._missed: list[Outgoing] = []
        self._news = trio.Event()
        self._drained = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._closed = False
        chain.listen(self._on_event)

    @property
    def held(self) -> int:
        """How many lines wait for room."""
        return len(self._held)

    @property
    def left(self) -> tuple[Outgoing, ...]:
        """The lines that were not sent: if nothing more is to come, they never will be."""
        return (*self._missed, *self._at_moment, *self._held)

    @property
    def unsent(self) -> tuple[str, ...]:
        """The same as they were written."""
        return tuple(line.written for line in self.left)

    def miss(self, line: Outgoing) -> None:
        """Take note of a line that came too late to be sent."""
        self._missed.append(line)

    def close(self) -> None:
        """Send nothing more."""
        self._closed = True

    def take(self, line: Outgoing) -> None:
        """Send a line now, or keep it for its moment."""
        match line.moment:
            case Now():
                self._send(line)
            case After(seconds):
                assert self._nursery is not None, "run() comes first"
                self._at_moment.append(line)
                self._nursery.start_soon(self._send_later, line, seconds)
            case _:
                self._at_moment.append(line)

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
                self._drained.set()

    async def drain(self) -> None:
        """Wait until nothing is held."""
        while self._held:
            if self._drained.is_set():
                self._drained = trio.Event()
            await self._drained.wait()

    def _on_event(self, event: events.Event) -> None:
        if self._closed:
            return
        for line in [line for line in self._at_moment if fires(line.moment, event)]:
            if isinstance(line.moment, AtDone) and self._chain.is_running:
                continue  # another run has begun: this line's own comes after it
            self._at_moment.remove(line)
            self._send(line)

    async def _send_later(self, line: Outgoing, seconds: float) -> None:
        await trio.sleep(seconds)
        self._at_moment.remove(line)
        self._send(line)

    def _send(self, line: Outgoing) -> None:
        if parse_line(line.text, local=False).kind == "stop" and self._chain.is_running:
            self._missed.extend(self._held)
            self._held.clear()
            self._submit(line)
        elif self._held or not self._chain.has_room:
            self._held.append(line)
            self._news.set()
        else:
            self._submit(line)

    def _release(self, line: Outgoing) -> None:
        """Send a line that was held, unless the run that it was held for ended in a way that gives lines back."""
        last = self._chain.last_status
        if self._chain.is_running or last is None or last.startswith(_GOES_ON) or isinstance(line.moment, AtDone):
            self._submit(line)
        else:
            self._missed.append(line)

    def _submit(self, line: Outgoing) -> None:
        if not line.may_start and not self._chain.is_running:
            self._missed.append(line)
            return
        answer = self._chain.submit(line.text, urgent=line.urgent, id=line.id, local=False)
        self._on_answer(line, answer)
