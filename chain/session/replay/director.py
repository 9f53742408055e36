"""Runs a recorded session again: gives everybody their cue in the order of the record.

The record holds what came from outside (lines, answers, interrupts, replies of models, results of tools) and what the
chain made of it. The director does the first in its turn, and waits for the second. Between two of its steps everything
comes to a standstill, so that nothing depends on how fast anything is. When the chain does not come to what is next:

1. what came from outside is done, in the step of the event in which it was done, where the record names one
2. one pause is ended (``actors``)
3. time passes, if the record says that it ran out, or that a call was made again
4. the replay is stuck, which is a difference like any other
"""

from __future__ import annotations

from collections.abc import Iterator, Set

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events, records
from chain.records import Record, Unknown
from chain.session.feed import moment_of
from chain.session.replay.actors import Actors, Asked, Running
from chain.session.replay.acts import Acts, Replayable
from chain.session.replay.script import Script
from chain.wording import INTERRUPTED, MAIN, SKIPPED

MAX_JUMPS = 100
"""How often time may pass before the replay goes on: a call is made again after a pause, a few times at most."""

_TOLD_IN_ORDER: dict[str, tuple[type, ...]] = {
    "user_interruption": (records.Message,),
    "receipt": (records.Receipt,),
    "run_started": (records.Line, records.Result, records.Receipt),
    "agent_started": (records.AgentStarted,),
    "agent_ended": (records.AgentEnded,),
    "plan_changed": (records.TaskAdded, records.TaskClosed, records.PlanReplaced, records.PlanRestored),
    "question": (records.Question,),
    "answer": (records.Answer,),
    "result": (records.Result,),
}
"""The events that are told behind acknowledgements, and after which records they are if there are none to wait for."""


class Director:
    """Plays one part of a journal with a chain that was opened with these actors.

    What a user did is done as late as the record allows; of the entries ``early`` it is done as early.
    """

    def __init__(self, script: Script, actors: Actors, clock: MockClock, early: Set[int] = frozenset()) -> None:
        self._early = early
        self._script = script
        self._actors = actors
        self._tape = actors.tape
        self._clock = clock
        self._done: set[int] = set()
        """The entries that were brought about."""
        self._jumps = 0
        self._chain: Replayable
        self._acts: Acts
        actors.begins = self._begins
        actors.is_quick = self._is_quick

    async def play(self, chain: Replayable) -> None:
        """Play it to its end, or to the first difference."""
        self._chain = chain
        self._acts = Acts(self._script, self._actors, chain)
        chain.listen(self._hear)
        self._actors.enter()
        try:
            while True:
                await wait_all_tasks_blocked()
                n = self._next()
                if n is None:
                    break
                before = self._tape.next
                if not self._go_on(n):
                    self._tape.part(n)
                    break
                if self._tape.next != before:
                    self._jumps = 0
        finally:
            self._actors.leave()

    @property
    def others(self) -> list[int]:
        """The entries of what the user may have done at another moment, if the replay parted from the record by that.

        It is what was done last, or what is to come next.
        """
        n = self._tape.next
        done = next((m for m in sorted(self._done, reverse=True) if self._script.is_user(m)), None)
        late = None if n is None else self._script.next_user(n)
        return [m for m in (late, done) if m is not None and m not in self._early]

    def _next(self) -> int | None:
        return None if self._tape.difference is not None else self._tape.next

    def _go_on(self, n: int) -> bool:
        """Do one thing that lets the replay go on to an entry. Whether there was any."""
        self._acts.be_there_for_questions(n)
        if self._needs_quick_disk(n) and self._actors.end_sync():
            return True
        entry = self._script.entries[n]
        cause = self._cause(n)
        if self._is_out_of_time(n) and self._let_time_pass():
            return True
        if cause is not None and (not self._upon(cause) or self._tells_piece(cause)):
            return self._tape.next != n or self._bring_about_all(cause)
        if cause is not None and self._actors.end_sync():
            return True
        if self._actors.end_pause(str(getattr(entry.record, "agent", MAIN))):
            return True
        if cause is not None:
            return self._bring_about_all(cause)
        return bool(self._tape.failed) and self._let_time_pass()

    def _hear(self, event: events.Event) -> None:
        """Do what was done in the step of an event."""
        moment = ""
        while not self._tape.is_off and (n := self._next()) is not None:
            cause = self._cause(n)
            if cause is None:
                return
            moment = moment or moment_of(event)
            upon = self._upon(cause)
            if upon != moment and (upon or cause not in self._early or not self._script.is_user(cause)):
                return
            self._acts.be_there_for_questions(n)
            self._bring_about(cause)

    def _upon(self, n: int) -> str:
        """The event in whose step an entry was written; empty for one that is not on record itself."""
        upon = self._script.entries[n].upon
        return "" if upon.startswith("line_refused ") or upon.endswith((" refused", " unsent")) else upon

    def _begins(self, called: Running | Asked) -> None:
        """A tool or a model call begins."""
        n = self._next()
        cause = None if n is None else self._cause(n)
        if cause is not None:
            self._tells_piece(cause)
        if isinstance(called, Running):
            self._acts.give_guidance(called)

    def _tells_piece(self, n: int) -> bool:
        """Let the piece of a reply, of progress or of news be told in whose step an entry was written, if it is one."""
        kind, agent, _, id = (*self._script.entries[n].upon.split(" "), "", "", "", "")[:4]
        actors = self._actors
        if kind == "tool_progress" and id in actors.running:
            actors.running[id].context.report("")
        elif kind in ("text_delta", "thinking_delta") and agent in actors.asked:
            actors.asked[agent].tell("text" if kind == "text_delta" else "thinking")
        elif kind == "usage" and agent in actors.asked and actors.asked[agent].call.ended is not None:
            # It is told between the reply and the record of it.
            actors.asked[agent].end()
            end = self._script.end_of(agent, n)
            self._done.update([] if end is None else [end])
        else:
            return False
        return True

    def _is_quick(self) -> bool:
        """Whether nothing waits for the disk at all: so it is tried for an event that has to wait for it."""
        n = self._next()
        m = None if n is None else self._script.next_user(n)
        return m is not None and m in self._early and not self._is_told_in_order(m)

    def _needs_quick_disk(self, n: int) -> bool:
        """Whether the next thing that a user did was in the step of an event that had to wait for no disk."""
        m = self._script.next_user(n)
        return m is not None and self._is_told_in_order(m) != (m in self._early)

    def _is_told_in_order(self, n: int) -> bool:
        """Whether an entry is of the step of an event that was told right after the record of it."""
        entries, upon = self._script.entries, self._script.entries[n].upon
        before = next((entries[m].record for m in range(n - 1, -1, -1) if not upon or entries[m].upon != upon), None)
        return isinstance(before, _TOLD_IN_ORDER.get(upon.partition(" ")[0], ()))

    # ---------------------------------------------------------------------------------------------------------- causes

    def _cause(self, n: int) -> int | None:
        """What has to be done from outside so that an entry comes; ``None`` if nothing, or if it was done."""
        record = self._script.entries[n].record
        match record:
            case records.Answer(decision="withdrawn"):
                # An interrupt is recorded behind what it withdraws, and what is done on hearing of that.
                upon = f"answer {record.agent} "
                outside = (m for m in self._outside(n + 1) if not self._script.entries[m].upon.startswith(upon))
                found = next(outside, None)
                is_interrupt = found is not None and _is_interrupt(self._script.entries[found].record)
                return found if is_interrupt and found not in self._done else None
            case _ if n in self._done or not self._is_outside(n):
                return None
            case _:
                return n

    def _outside(self, start: int) -> Iterator[int]:
        return (n for n in range(start, len(self._script.entries)) if self._is_outside(n))

    def _is_outside(self, n: int) -> bool:
        """Whether an entry came from outside, as far as that can be done now."""
        match self._script.entries[n].record:
            case records.RequestEnded(agent=agent):
                return agent in self._actors.asked
            case records.ToolFinished(id=id):
                return id in self._actors.running and self._script.result(id) is not None
            case records.TaskAdded() | records.TaskClosed() | records.PlanReplaced() as change if not change.line_id:
                running = self._actors.running.values()
                return change.by == "user" or any(each.context.agent == change.by for each in running)
            case records.Message(agent=agent, point=point):
                return agent == MAIN and point in ("start", "A") and not self._chain.is_running
            case _:
                return self._script.is_user(n)

    def _bring_about_all(self, n: int) -> bool:
        """Do what an entry tells of, and in the same step what follows without anything between. Always true."""
        found: int | None = n
        while found is not None:
            self._bring_about(found)
            left = self._next()
            found = None if left is None else self._cause(left)
            if found is not None and (self._upon(found) or not self._script.is_user(found)):
                found = None
        return True

    def _bring_about(self, n: int) -> None:
        """Do what an entry tells of."""
        self._done.add(n)
        record = self._script.entries[n].record
        self._show_before(record)
        match record:
            case records.RequestEnded(agent=agent):
                self._actors.asked[agent].end()
            case records.ToolFinished(id=id):
                self._actors.running[id].cue.given.set()
            case _:
                if why := self._acts.do(record):
                    self._tape.part(n, why)

    def _show_before(self, record: Record | Unknown) -> None:
        """Show what of replies under way had been shown by then, as far as the record tells."""
        match record:
            case records.Interrupted(agent=agent, what="answering") if agent in self._actors.asked:
                self._actors.asked[agent].show()
            case records.Line():
                for asked in self._actors.asked.values():
                    if asked.call.was_answering:
                        asked.show()
            case _:
                pass

    # ------------------------------------------------------------------------------------------------------------ time

    def _is_out_of_time(self, n: int) -> bool:
        """Whether the time ran out before this entry: it tells of that, or of what is left undone by it."""
        entries = self._script.entries
        for m in range(n, len(entries)):
            record = entries[m].record
            if isinstance(record, records.Interrupted):
                return record.by == "time"
            if not _is_left_undone(record):
                return False
        return False

    def _let_time_pass(self) -> bool:
        """Let time pass to the next limit, or to the end of a pause before a call is made again."""
        left = trio.lowlevel.current_statistics().seconds_to_next_deadline
        if self._jumps == MAX_JUMPS or left == float("inf"):
            return False
        self._jumps += 1
        self._clock.jump(max(left, 0.0))
        return True


def _is_interrupt(record: Record | Unknown) -> bool:
    return isinstance(record, records.Interrupted) and record.by == "user"


def _is_left_undone(record: Record | Unknown) -> bool:
    """Whether a record is of an agent whose work was cut off."""
    match record:
        case records.ToolFinished():
            return True
        case records.Message(message=message):
            return message.role == "assistant" or any(r.text in (INTERRUPTED, SKIPPED) for r in message.results)
        case records.AgentEnded(status=status):
            return status in ("limit_reached", "interrupted")
        case records.Answer(decision=decision):
            return decision == "withdrawn"
        case _:
            return False
