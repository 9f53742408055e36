"""Sends scripted and piped lines to a chain, each at its moment. Queues lines while the chain's queue is full.

The queued lines are sent in order, even if they go to different agents. A ``!!`` line is sent before queued lines. A
stop of the whole run discards the queued lines, since they were meant for that run. A stop of a child agent does not.
A line that can no longer be sent is reported at once.

Lines with ``@question`` answer questions in order. A line with an address answers only questions of that agent. While
a line with ``@question`` waits, the sender is registered with the chain as an answerer of these questions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sized
from dataclasses import replace

import trio

from chain import events
from chain.chain import Answerer, Chain, SubmitResult
from chain.concurrency.wakeup import Wakeup
from chain.lines.parse import MAX_LINE
from cli.input.moments import MOMENT_EVENTS, After, AtAgent, AtQuestion, Now, ScheduledLine, is_due, is_same_agent

MAX_WAITING = 1_000
"""Maximum lines that wait for room in the chain's queue. As many lines may wait for their moments."""

MAX_WAITING_CHARS = 20 * MAX_LINE
"""Maximum characters of all lines that wait for room. All lines that wait for their moments may have as many."""

_COMPLETE = ("done", "cancelled")
"""How the statuses begin after which a queued line may start the next run. A stop has discarded earlier lines."""

OVERTAKEN = "a stop came while it waited for room"
RUN_ENDED = "the run ended before there was room for it"
TOO_LATE = "its moment was in a run that has ended"
TOO_MANY_LINES = "too many lines are waiting for their moments"
NO_ROOM = "the program ended before there was room for it"
NO_MOMENT = "its moment did not come"
DROPPED = "it was dropped before it was sent"


class Sender:
    """A scheduler of lines for a chain. ``on_submit`` is called with each submitted line and the chain's result."""

    def __init__(self, chain: Chain, on_submit: Callable[[ScheduledLine, SubmitResult], object]) -> None:
        self._chain = chain
        self._on_submit = on_submit
        self._scheduled: list[ScheduledLine] = []
        self._queued: deque[ScheduledLine] = deque()
        self._scheduled_chars = self._queued_chars = 0
        """The total characters of the waiting lines."""
        self._has_queued = Wakeup()
        self._progress = Wakeup()
        """Set when a line was sent or a run ended."""
        self._nursery: trio.Nursery | None = None
        self._answerers: dict[str, Answerer] = {}
        """The registrations as an answerer by agent; an empty name stands for all agents."""
        self._closed = False
        self._is_paused = False
        self._resumed = Wakeup()
        self._listen_to(chain)

    @property
    def queued_count(self) -> int:
        """The number of lines that wait for room."""
        return len(self._queued)

    @property
    def has_capacity(self) -> bool:
        """Whether one more line may wait for room, and one more for its moment."""
        return not (_is_full(self._queued, self._queued_chars) or _is_full(self._scheduled, self._scheduled_chars))

    @property
    def waiting(self) -> tuple[str, ...]:
        """The lines that wait for their moment or for room, as they were written."""
        return tuple(line.written for line in (*self._scheduled, *self._queued))

    def report_unsent(self, line: ScheduledLine, reason: str) -> None:
        """Report that a line will not be sent."""
        self._chain.lines.mark_unsent(line.written, reason, id=line.id)

    def discard(self, queue_reason: str = RUN_ENDED) -> None:
        """Discard and report all waiting lines. ``queue_reason`` is reported for lines that wait for room."""
        waiting = [*((line, NO_MOMENT) for line in self._scheduled), *((line, queue_reason) for line in self._queued)]
        self._scheduled.clear()
        self._queued.clear()
        self._scheduled_chars = self._queued_chars = 0
        self._update_answerers()
        for line, reason in waiting:
            self.report_unsent(line, reason)

    def drop(self, id: str) -> bool:
        """Discard and report the waiting line with this id. Return whether there was one."""
        line = next((line for line in (*self._queued, *self._scheduled) if id and line.id == id), None)
        if line is None:
            return False
        if line in self._queued:
            self._queued.remove(line)
            self._queued_chars -= len(line.text)
            self._progress.set()
        else:
            self._unschedule(line)
            self._update_answerers()
        self.report_unsent(line, DROPPED)
        return True

    def close(self) -> None:
        """Stop sending lines that wait for an event, such as ``@tool``. Queued and ``@after`` lines are still sent."""
        self._closed = True

    def pause(self) -> None:
        """Queue lines until ``resume``, except those that need no room, such as stops."""
        self._is_paused = True

    def resume(self, chain: Chain) -> None:
        """Resume sending lines, to ``chain`` from now on. A different previous chain must have no active run."""
        if chain is not self._chain:
            for answerer in self._answerers.values():
                answerer.close()
            self._answerers.clear()
            self._chain = chain
            self._listen_to(chain)
            self._update_answerers()
        self._is_paused = False
        self._resumed.set()

    def _listen_to(self, chain: Chain) -> None:
        chain.listen(lambda event: self._on_event(event) if chain is self._chain else None)

    def schedule(self, line: ScheduledLine) -> None:
        """Send a line now, or store it until its moment."""
        if isinstance(line.moment, Now):
            self._send(line)
        elif len(line.text) > MAX_LINE:
            self._submit(line)  # refused because of its length
        else:
            self._scheduled.append(line)
            self._scheduled_chars += len(line.text)
            if isinstance(line.moment, AtQuestion):
                self._update_answerers()
                self._answer_open()
            if isinstance(line.moment, After):
                assert self._nursery is not None, "run() comes first"
                self._nursery.start_soon(self._send_later, line, line.moment.seconds)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send queued lines whenever the chain has room. Never returns."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            while True:
                await self._has_queued.wait()
                while self._queued:
                    while self._queued and self._has_room(self._queued[0]):
                        self._release(self._queued.popleft())
                    # A stop may have emptied the queue meanwhile.
                    if self._queued:
                        await (self._resumed.wait() if self._is_paused else self._chain.lines.wait_for_change())
                self._progress.set()

    async def drain(self) -> None:
        """Wait until no line waits for room."""
        while self._queued:
            await self._progress.wait()

    async def wait_for_capacity(self) -> None:
        """Wait until ``has_capacity``. If too many lines wait for moments that cannot come, discard the oldest ones."""
        if _is_full(self._queued, self._queued_chars):
            await self.drain()
        while _is_full(self._scheduled, self._scheduled_chars):
            may_come = self._queued or any(isinstance(line.moment, After) for line in self._scheduled)
            if self._chain.is_running or may_come:
                await self._progress.wait()
            else:
                # No moment can come unless more lines are read, so the oldest line makes room for them.
                oldest = self._scheduled[0]
                self._unschedule(oldest)
                self.report_unsent(oldest, TOO_MANY_LINES)

    def _on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Result):
            self._progress.set()
        if self._closed:
            return
        if isinstance(event, events.Question):
            self._answer_open()
        if not isinstance(event, MOMENT_EVENTS):
            return
        for line in [line for line in self._scheduled if is_due(line.moment, event, line.to)]:
            if line.is_after_run and self._chain.is_running:
                continue  # another run has begun, and the line is sent after its end
            if isinstance(event, events.ToolCall) and self._chain.starts_agent(event):
                self._scheduled[self._scheduled.index(line)] = replace(line, moment=AtAgent(event.id))
                continue
            self._unschedule(line)
            if isinstance(event, events.AgentEnded):
                # The parent reads the lines that an ended agent did not, in the same run.
                line = replace(line, moment=AtAgent(event.parent_id), to=event.agent)
            self._send(line)

    def _answer_open(self) -> None:
        while (id := self._chain.questions.open_id) is not None:
            line = next((line for line in self._scheduled if self._is_answer(line)), None)
            if line is None:
                break
            self._unschedule(line)
            answer = self._chain.answer(id, line.text, origin=line.origin)
            if answer.what == "answered":
                break
            self.report_unsent(line, answer.message)
        self._update_answerers()

    def _is_answer(self, line: ScheduledLine) -> bool:
        return isinstance(line.moment, AtQuestion) and (
            not line.to or is_same_agent(self._chain.questions.asker or "", line.to)
        )

    def _update_answerers(self) -> None:
        """Register as an answerer for each agent whose question a line waits for, and for no other agent."""
        wanted = {line.to.casefold() for line in self._scheduled if isinstance(line.moment, AtQuestion)}
        for agent in wanted - self._answerers.keys():
            self._answerers[agent] = self._chain.answering(agent)
        for agent in self._answerers.keys() - wanted:
            # Closing one may open another question, which may change ``_answerers``.
            if (answerer := self._answerers.pop(agent, None)) is not None:
                answerer.close()

    async def _send_later(self, line: ScheduledLine, seconds: float) -> None:
        await trio.sleep(seconds)
        if line in self._scheduled:
            self._unschedule(line)
            self._send(line)

    def _unschedule(self, line: ScheduledLine) -> None:
        self._scheduled.remove(line)
        self._scheduled_chars -= len(line.text)
        self._progress.set()

    def _send(self, line: ScheduledLine) -> None:
        """Submit a line, or queue it until there is room. If it stops the whole run, discard the queued lines."""
        passes = self._chain.lines.needs_no_room(line.text, urgency=line.urgency, to=line.to)
        if passes == "stop" and line.is_for_main:
            overtaken, self._queued, self._queued_chars = self._queued, deque(), 0
            for each in overtaken:
                self.report_unsent(each, OVERTAKEN)
        elif passes is None and len(line.text) <= MAX_LINE and (self._queued or not self._has_room(line)):
            # A line that is too long is refused, for which it needs no room.
            self._queued.append(line)
            self._queued_chars += len(line.text)
            self._has_queued.set()
            return
        self._submit_unless_late(line)

    def _has_room(self, line: ScheduledLine) -> bool:
        has_room = self._chain.lines.has_room(line.text, urgency=line.urgency, local=False, to=line.to)
        return has_room and not self._is_paused

    def _release(self, line: ScheduledLine) -> None:
        """Submit a line from the queue, or report it as unsent if no run is active and the last was not ``_COMPLETE``.

        A line for the end of a run is always submitted.
        """
        self._queued_chars -= len(line.text)
        last = self._chain.runs.last_status
        if self._chain.is_running or last is None or last.startswith(_COMPLETE) or line.is_after_run:
            self._submit_unless_late(line)
        else:
            self.report_unsent(line, RUN_ENDED)

    def _submit_unless_late(self, line: ScheduledLine) -> None:
        if not line.can_start_run and not self._chain.is_running:
            self.report_unsent(line, TOO_LATE)
        else:
            self._submit(line)

    def _submit(self, line: ScheduledLine) -> None:
        answer = self._chain.submit(
            line.text, urgency=line.urgency, id=line.id, local=False, origin=line.origin, to=line.to
        )
        self._on_submit(line, answer)


def _is_full(lines: Sized, chars: int) -> bool:
    return len(lines) >= MAX_WAITING or chars >= MAX_WAITING_CHARS
