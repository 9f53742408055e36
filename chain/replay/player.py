"""Runs a recorded session again: lets what came from outside happen once more, each thing where it was.

Models and tools answer in the order of the record, one whenever nothing else goes on, and so come the acts of the user.
An act that came in the very step of what an agent did is done in that step: before the agent looks for it.
"""

from __future__ import annotations

import math

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from chain.chain import Chain
from chain.journal import records
from chain.replay.actors import Actors
from chain.replay.acts import Acts, Attempts
from chain.replay.script import Script

MAX_JUMPS = 100
"""How often time may pass before the replay goes on: a call is made again after a pause, a few times at most."""


class Player:
    """Plays one part of a journal with a chain that was opened with these actors."""

    def __init__(self, script: Script, actors: Actors, clock: MockClock, attempts: Attempts) -> None:
        self._script = script
        self._actors = actors
        self._tape = actors.tape
        self._clock = clock
        self._attempts = attempts
        self._left = list(script.concerned)
        """The acts that are still to be done."""
        self._is_acting = False
        self._jumps = 0
        self._acts: Acts

    async def play(self, chain: Chain) -> None:
        """Play it to its end, or to the first difference."""
        self._acts = Acts(self._script, self._actors, chain, self._attempts)
        self._actors.journal.before_look = self._before_look
        self._tape.is_slow = True  # so that what came while an agent waited for the disk finds it there again
        self._actors.before_asking = self._acts.be_there_for_questions
        try:
            while not self._tape.is_over:
                await wait_all_tasks_blocked()
                self._go_on()
        finally:
            self._actors.leave()

    # ------------------------------------------------------------------------------------- when nothing else goes on

    def _go_on(self) -> None:
        """Let the first thing happen of those that can happen now."""
        if self._tape.is_over:
            return
        self._prepare()
        act, synced = self._next_act(), self._tape.synced
        wait = min(self._actors.waits.values(), default=math.inf)
        pause = min((self._tape.head(agent) for agent in self._tape.failed), default=math.inf)
        is_next = wait == self._tape.first or (act is not None and self._has_come(act))
        if synced is not None and not is_next:
            self._tape.synced = None
            synced.set()
        elif self._act(min(wait, pause)):
            pass
        elif wait < math.inf and wait <= pause:
            self._actors.release(int(wait))
            self._jumps = 0
        elif pause == math.inf or not self._let_time_pass():
            self._tape.part()

    def _act(self, end: float) -> bool:
        """Do the first act, if it came before an entry, and what came in the same moment. Whether there was any.

        A model that waits for the turn of that very act shows its text before it.
        """
        has_acted = False
        while (n := self._next_act()) is not None and n <= end:
            if (has_acted or n == end) and not self._has_come(n):
                break
            self._do(n)
            has_acted = True
        return has_acted

    def _next_act(self) -> int | None:
        return next(filter(self._acts.can_be_done, self._left), None)

    def _let_time_pass(self) -> bool:
        """Let time pass to the end of a pause before a call is made again."""
        left = trio.lowlevel.current_statistics().seconds_to_next_deadline
        if self._jumps == MAX_JUMPS or left == math.inf:
            return False
        self._jumps += 1
        self._clock.jump(max(left, 0.0))
        return True

    # ------------------------------------------------------------------------------------------ in the step of an agent

    def _before_look(self, agent: str) -> None:
        """Do what an agent is to find when it looks now."""
        if self._is_acting or self._tape.is_over:
            return
        self._prepare()
        while (n := self._due(agent)) is not None:
            self._do(n)

    def _due(self, agent: str) -> int | None:
        """The next act for an agent, or one before it, if its moment has come."""
        last = next((n for n in self._left if agent in self._script.concerned[n]), None)
        if last is None or not self._has_come(last):
            return None
        return next(n for n in self._left if n == last or self._has_come(n))

    def _has_come(self, n: int) -> bool:
        """Whether all agents that an act concerns are where they were when it came."""
        entry = self._script.entries[n]
        early = isinstance(entry.record, records.Interrupted) and entry.record.by == "time"  # it is recorded afterwards
        looks = self._actors.journal.looks
        is_there = all(
            self._tape.head(each) >= n
            and (looks.get(each, 0) >= entry.looks.get(each, 0) - early or self._tape.is_behind(each, n))
            for each in self._script.concerned[n]
        )
        return is_there and self._acts.can_be_done(n)

    def _prepare(self) -> None:
        # A run that began, and a change of the plan, may have come by themselves.
        self._left = [n for n in self._left if not self._tape.is_done(n)]
        self._acts.be_there_for_questions()

    def _do(self, n: int) -> None:
        self._left.remove(n)
        self._tape.mark(n)
        self._is_acting = True
        if why := self._acts.do(self._script.entries[n].record):
            self._tape.part(n, why)
        self._is_acting = False
