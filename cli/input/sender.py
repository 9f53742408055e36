"""Sends scripted and piped lines to a chain: each at its moment, and queued here while the chain's queue is full.

Queued lines are sent in order, also to different agents. A ``!!`` line does not wait for them. A stop of the whole run
discards them, since they were meant for that run; a stop of a child agent does not. A line that can no longer be sent
is reported at once.

Lines for ``@question`` answer questions in order; with an address only those of that agent. While there is such a line,
its questions count as answerable.
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
from cli.input.moments import MOMENT_EVENTS, After, AtAgent, AtQuestion, Now, ScheduledLine, fires, is_same_agent

AHEAD = 1_000
"""Lines that may wait for room, so that a later stop is still read; as many may wait for their moments."""

AHEAD_CHARS = 20 * MAX_LINE
"""Characters of the lines that may wait for room, and of the lines that may wait for their moments."""

_COMPLETE = ("done", "cancelled")
"""The statuses after which a queued line may start the next run: the run was done, or stopped before the line came."""

OVERTAKEN = "a stop came while it waited for room"
RUN_ENDED = "the run ended before there was room for it"
TOO_LATE = "its moment was in a run that has ended"
TOO_MANY_LINES = "too many lines are waiting for their moments"
NO_ROOM = "the program ended before there was room for it"
NO_MOMENT = "its moment did not come"
DROPPED = "it was dropped before it was sent"


class Sender:
    """A scheduler of lines for a chain. ``on_answer`` is called with the chain's answer to each line."""

    def __init__(self, chain: Chain, on_answer: Callable[[ScheduledLine, SubmitResult], object]) -> None:
        self._chain = chain
        self._on_answer = on_answer
        self._scheduled: list[ScheduledLine] = []
        self._held: deque[ScheduledLine] = deque()
        self._scheduled_chars = self._held_chars = 0
        """Running totals, so that the cost of a line does not depend on how many wait."""
        self._has_held = Wakeup()
        self._progress = Wakeup()
        """Set when a line was sent or a run ended."""
        self._nursery: trio.Nursery | None = None
        self._answerers: dict[str, Answerer] = {}
        """The registrations as an answerer, by agent; an empty name stands for all agents."""
        self._closed = False
        self._is_paused = False
        self._resumed = Wakeup()
        self._listen_to(chain)

    @property
    def queued_count(self) -> int:
        """The number of lines that wait for room."""
        return len(self._held)

    @property
    def has_place(self) -> bool:
        """Whether the sender accepts another line to wait."""
        return not (_is_full(self._held, self._held_chars) or _is_full(self._scheduled, self._scheduled_chars))

    @property
    def waiting(self) -> tuple[str, ...]:
        """The source texts of the lines that wait for their moment or for room."""
        return tuple(line.written for line in (*self._scheduled, *self._held))

    def report_unsent(self, line: ScheduledLine, reason: str) -> None:
        """Report that a line will not be sent."""
        self._chain.lines.mark_unsent(line.written, reason, id=line.id)

    def discard(self, why_held: str = RUN_ENDED) -> None:
        """Discard and report all lines that wait. ``why_held`` is the reason for those that wait for room."""
        waiting = [*((line, NO_MOMENT) for line in self._scheduled), *((line, why_held) for line in self._held)]
        self._scheduled.clear()
        self._held.clear()
        self._scheduled_chars = self._held_chars = 0
        self._count_answers()
        for line, reason in waiting:
            self.report_unsent(line, reason)

    def drop(self, id: str) -> bool:
        """Discard and report the line with its sender's ``id``. Return whether there was one."""
        line = next((line for line in (*self._held, *self._scheduled) if id and line.id == id), None)
        if line is None:
            return False
        if line in self._held:
            self._held.remove(line)
            self._held_chars -= len(line.text)
            self._progress.set()
        else:
            self._unschedule(line)
            self._count_answers()
        self.report_unsent(line, DROPPED)
        return True

    def close(self) -> None:
        """Stop sending lines when their moments come."""
        self._closed = True

    def pause(self) -> None:
        """Queue all lines until ``resume``."""
        self._is_paused = True

    def resume(self, chain: Chain) -> None:
        """Resume sending, to this chain. If it is another one, no run may be active in the previous chain."""
        if chain is not self._chain:
            for answerer in self._answerers.values():
                answerer.close()
            self._answerers.clear()
            self._chain = chain
            self._listen_to(chain)
            self._count_answers()
        self._is_paused = False
        self._resumed.set()

    def _listen_to(self, chain: Chain) -> None:
        chain.listen(lambda event: self._on_event(event) if chain is self._chain else None)

    def schedule(self, line: ScheduledLine) -> None:
        """Send a line now, or store it until its moment."""
        if isinstance(line.moment, Now):
            self._send(line)
        elif len(line.text) > MAX_LINE:
            self._submit_at_once(line)  # it is too long, and is refused whatever its moment
        else:
            self._scheduled.append(line)
            self._scheduled_chars += len(line.text)
            if isinstance(line.moment, AtQuestion):
                self._count_answers()
                self._answer_open()
            if isinstance(line.moment, After):
                assert self._nursery is not None, "run() comes first"
                self._nursery.start_soon(self._send_later, line, line.moment.seconds)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send queued lines whenever the chain has room. Never returns."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            while True:
                await self._has_held.wait()
                while self._held:
                    while self._held and self._has_room(self._held[0]):
                        self._release(self._held.popleft())
                    # A stop may have emptied the queue meanwhile.
                    if self._held:
                        await (self._resumed.wait() if self._is_paused else self._chain.lines.wait_for_change())
                self._progress.set()

    async def drain(self) -> None:
        """Wait until no line is queued for room."""
        while self._held:
            await self._progress.wait()

    async def wait_for_place(self) -> None:
        """Wait until ``has_place``, so that an endless input is not read faster than it is sent."""
        if _is_full(self._held, self._held_chars):
            await self.drain()
        while _is_full(self._scheduled, self._scheduled_chars):
            may_come = self._held or any(isinstance(line.moment, After) for line in self._scheduled)
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
        for line in [line for line in self._scheduled if fires(line.moment, event, line.to)]:
            if line.follows_run and self._chain.is_running:
                continue  # another run has begun: the line is sent after that one
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
            line = next((line for line in self._scheduled if self._answers(line)), None)
            if line is None:
                break
            self._unschedule(line)
            answer = self._chain.answer(id, line.text, origin=line.origin)
            if answer.what == "answered":
                break
            self.report_unsent(line, answer.message)
        self._count_answers()

    def _answers(self, line: ScheduledLine) -> bool:
        return isinstance(line.moment, AtQuestion) and (
            not line.to or is_same_agent(self._chain.questions.asker or "", line.to)
        )

    def _count_answers(self) -> None:
        """Register as an answerer of the questions for which a line waits, and unregister from all others."""
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
        passes = self._chain.lines.needs_no_room(line.text, urgency=line.urgency, to=line.to)
        if passes == "stop" and line.is_for_all:
            overtaken, self._held, self._held_chars = self._held, deque(), 0
            for each in overtaken:
                self.report_unsent(each, OVERTAKEN)
        elif passes is None and len(line.text) <= MAX_LINE and (self._held or not self._has_room(line)):
            # A line that is too long is refused, for which it needs no room.
            self._held.append(line)
            self._held_chars += len(line.text)
            self._has_held.set()
            return
        self._submit(line)

    def _has_room(self, line: ScheduledLine) -> bool:
        has_room = self._chain.lines.has_room(line.text, urgency=line.urgency, local=False, to=line.to)
        return has_room and not self._is_paused

    def _release(self, line: ScheduledLine) -> None:
        """Send a queued line, unless the run that it waited for ended in a way that returns lines."""
        self._held_chars -= len(line.text)
        last = self._chain.runs.last_status
        if self._chain.is_running or last is None or last.startswith(_COMPLETE) or line.follows_run:
            self._submit(line)
        else:
            self.report_unsent(line, RUN_ENDED)

    def _submit(self, line: ScheduledLine) -> None:
        if not line.may_start and not self._chain.is_running:
            self.report_unsent(line, TOO_LATE)
        else:
            self._submit_at_once(line)

    def _submit_at_once(self, line: ScheduledLine) -> None:
        answer = self._chain.submit(
            line.text, urgency=line.urgency, id=line.id, local=False, origin=line.origin, to=line.to
        )
        self._on_answer(line, answer)


def _is_full(lines: Sized, chars: int) -> bool:
    return len(lines) >= AHEAD or chars >= AHEAD_CHARS
