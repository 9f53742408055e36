"""Runs a recorded session again: gives everybody their cue in the order of the record.

The record holds what came from outside (lines, answers, interrupts, replies of models, results of tools) and what the
chain made of it. The director does the first in its turn, and waits for the second. Between two of its steps everything
comes to a standstill, so that nothing depends on how fast anything is. When the chain does not come to what is next:

1. the disk goes on, where the record shows that it was quick, or that the next act followed what waits for it
2. one asks who will wait behind the open question
3. time passes, if the record says that it ran out
4. one goes on that had come further before a user kept it from that (``unrecorded``)
5. what came from outside is done, but for what was done in the step of an event, which is not told yet
6. one goes on whose turn it is (``turns``), or else time passes that ran out
7. one goes on that has no place on record, or the disk
8. what came from outside is done all the same
9. time passes, if a call may be made again
10. the replay is stuck, which is a difference like any other
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Literal

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events, records
from chain.records import SYNCED, Record, Unknown
from chain.session.feed import moment_of
from chain.session.replay.actors import Actors, Asked, Running
from chain.session.replay.acts import Acts, Attempts, Replayable
from chain.session.replay.script import Script, Who
from chain.session.replay.unrecorded import Unrecorded
from chain.wording import INTERRUPTED, MAIN, SKIPPED

MAX_JUMPS = 100
"""How often time may pass before the replay goes on: a call is made again after a pause, a few times at most."""

_IN_ORDER = frozenset(
    {
        "agent_ended",
        "agent_started",
        "answer",
        "line_queued",
        "plan_changed",
        "question",
        "receipt",
        "result",
        "run_started",
        "user_interruption",
    }
)
"""The events that are told behind acknowledgements."""


class Director:
    """Plays one part of a journal with a chain that was opened with these actors."""

    def __init__(self, script: Script, actors: Actors, clock: MockClock, attempts: Attempts) -> None:
        self._script = script
        self._actors = actors
        self._tape = actors.tape
        self._turns = actors.turns
        self._clock = clock
        self._attempts = attempts
        self._done: set[int] = set()
        """The entries that were brought about."""
        self._answered: set[str] = set()
        """The calls whose results were told."""
        self._jumps = 0
        self._chain: Replayable
        self._acts: Acts
        self._behind_disk = [n for n in script.users if self._waits_for_disk(n)]
        self._unrecorded = Unrecorded(script)
        actors.begins = self._begins
        actors.turns.is_due = self._is_due
        actors.turns.fails_later = self._fails_later

    async def play(self, chain: Replayable) -> None:
        """Play it to its end, or to the first difference."""
        self._chain = chain
        self._acts = Acts(self._script, self._actors, chain, self._attempts)
        chain.listen(self._hear)
        self._turns.enter()
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

    def _next(self) -> int | None:
        return None if self._tape.difference is not None else self._tape.next

    def _go_on(self, n: int) -> bool:
        """Do one thing that lets the replay go on to an entry. Whether there was any."""
        self._acts.be_there_for_questions(n)
        cause = self._cause(n)
        if (self._needs_quick_disk(n) or self._waits_for_disk(cause)) and self._turns.end_sync():
            return True
        if self._chain.open_question is not None and self._actors.queue_up():
            return True
        out_of_time = self._out_of_time(n)
        # Whoever was cut before, and did not end until the time ran out, must not end first.
        if out_of_time is not None and out_of_time not in self._done and self._let_time_pass():
            self._done.add(out_of_time)
            return True
        if cause is not None and self._let_begin(cause):
            return True
        if cause is not None and (not self._upon(cause) or self._tells_piece(cause)):
            return self._tape.next != n or self._bring_about_all(cause)
        whose = self._whose(n)
        if whose is not None and self._turns.go_on(whose):
            return True
        if out_of_time is not None and self._let_time_pass():
            return True
        if self._turns.go_on_anyhow("" if whose is None else whose.agent, n):
            return True
        if cause is not None:
            return self._bring_about_all(cause)
        return (bool(self._tape.failed) and self._let_time_pass()) or self._turns.go_on_in_vain()

    def _whose(self, n: int) -> Who | None:
        """Whose turn it is: who writes an entry, or tells the event in whose step it was written."""
        cause = self._cause(n)
        if cause is None:
            return self._script.who(n)
        kind, agent, _, id = (*self._upon(cause).split(" "), "", "", "", "")[:4]
        return Who(agent, id if kind.startswith("tool_") else "") if agent else None

    def _is_due(self, who: Who) -> bool:
        n = self._next()
        if n is None or not self._tape.is_due(n) or self._script.entries[n].upon.endswith(SYNCED):
            return False
        whose = self._whose(n)
        return whose is not None and who.is_part_of(whose)

    def _hear(self, event: events.Event) -> None:
        """Do what was done in the step of an event."""
        if isinstance(event, events.ToolResult):
            self._answered.add(event.id)
        moment = ""
        while not self._tape.is_off and (n := self._next()) is not None:
            cause = self._cause(n)
            if cause is None:
                return
            moment = moment or moment_of(event)
            if self._upon(cause) != moment:
                return
            self._acts.be_there_for_questions(n)
            self._bring_about(cause)

    def _upon(self, n: int) -> str:
        """The event in whose step an entry was written; empty for one that is not on record itself."""
        upon = self._script.entries[n].upon.removesuffix(SYNCED)
        kind, _, rest = upon.partition(" ")
        is_left_out = kind == "line_refused" or (kind == "receipt" and rest.endswith((" refused", " unsent")))
        return "" if is_left_out else upon

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
        kind, agent, _, id = (*self._upon(n).split(" "), "", "", "", "")[:4]
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

    # ------------------------------------------------------------------------------------------- what had begun before

    def _let_begin(self, n: int) -> bool:
        """Let one go on that had begun, or failed, before a user kept it from that. Whether there was any."""
        late = self._late(n)
        line = self._script.entries[n].record
        if isinstance(line, records.Line) and self._unrecorded.cuts_tools(n) and self._turns.is_between(line.agent):
            late.append(line.agent)
        return any(self._turns.go_on_early(agent) for agent in late)

    def _late(self, n: int) -> list[str]:
        """The agents of calls that are not as far as they were on record when a user kept them from more."""
        keeps_from, record = self._keeps_from(n), self._script.entries[n].record
        whose = record.agent if isinstance(record, records.Line) and record.kind != "stop" else ""
        return [
            agent
            for id, agent in (self._unrecorded.begun(n) if keeps_from else ())
            if id not in self._answered and not (keeps_from == "starting" and id in self._turns.begun)
            if agent == (whose or agent)
        ]

    def _fails_later(self, call_id: str) -> bool:
        """Whether a call that has begun to fail is to wait for what a user does next."""
        n = self._next()
        cause = None if n is None else self._cause(n)
        is_kept = cause is not None and self._keeps_from(cause) == "starting"
        return is_kept and cause is not None and any(id == call_id for id, _ in self._unrecorded.begun(cause))

    def _keeps_from(self, n: int) -> Literal["", "starting", "ending"]:
        """What an act of the user's at a moment of its own keeps calls from, if it does."""
        return "" if self._upon(n) else self._unrecorded.keeps_from(n)

    def _needs_quick_disk(self, n: int) -> bool:
        """Whether an answer is on the disk by an entry, or what a user hears and acts on next waited for no disk."""
        if n in self._unrecorded.quick:
            return True
        at = bisect_left(self._behind_disk, n)
        return at < len(self._behind_disk) and not self._script.entries[self._behind_disk[at]].upon.endswith(SYNCED)

    def _waits_for_disk(self, n: int | None) -> bool:
        """Whether an entry is of the step of an event that only the disk lets be told, if its agent has come so far."""
        return n is not None and (self._is_in_order(n) or self._script.entries[n].upon.endswith(SYNCED))

    def _is_in_order(self, n: int | None) -> bool:
        """Whether an entry is of the step of an event that is told behind acknowledgements."""
        return n is not None and self._upon(n).partition(" ")[0] in _IN_ORDER

    # ---------------------------------------------------------------------------------------------------------- causes

    def _cause(self, n: int) -> int | None:
        """What has to be done from outside so that an entry comes; ``None`` if nothing, or if it was done."""
        record = self._script.entries[n].record
        match record:
            case records.Answer(decision="withdrawn"):
                # An interrupt is recorded behind what it withdraws, and what is done on hearing of that.
                found = next((m for m in self._outside(n + 1) if not _is_upon_answer(self._upon(m), record.id)), None)
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
            if found is not None and not self._may_follow(found):
                found = None
        return True

    def _may_follow(self, n: int) -> bool:
        """Whether what a user did may have been in the step of what was done before it."""
        is_alone = bool(self._late(n)) or self._unrecorded.cuts_tools(n)
        return self._script.is_user(n) and not self._upon(n) and not is_alone

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

    def _out_of_time(self, n: int) -> int | None:
        """The entry that tells of time that ran out before this one, which is it or tells of what is left undone."""
        entries = self._script.entries
        for m in range(n, len(entries)):
            record = entries[m].record
            if isinstance(record, records.Interrupted):
                return m if record.by == "time" else None
            if not _is_left_undone(record):
                return None
        return None

    def _let_time_pass(self) -> bool:
        """Let time pass to the next limit, or to the end of a pause before a call is made again."""
        left = trio.lowlevel.current_statistics().seconds_to_next_deadline
        if self._jumps == MAX_JUMPS or left == float("inf"):
            return False
        self._jumps += 1
        self._clock.jump(max(left, 0.0))
        return True


def _is_upon_answer(upon: str, question: str) -> bool:
    kind, _, _, id = (*upon.split(" "), "", "", "", "")[:4]
    return kind == "answer" and id == question


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
