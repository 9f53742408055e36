"""Runs a recorded session again: does what came from outside once more, each act where it was.

Whenever nothing else goes on, the next model or tool in the order of the record answers, or the next act of the user is
done. An act that came in the very step of what an agent did is done in that step, before the agent looks for it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import get_args

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from chain.chain import Answerer, Chain
from chain.errors import PlanError, UserError
from chain.journal import records
from chain.journal.records import Record, Unknown
from chain.lines.parse import Urgency
from chain.lines.receipts import origin_of
from chain.replay.actors import Actors, RecordedModel
from chain.retries import Retries
from chain.text.wording import MAIN

_URGENCIES: dict[str, Urgency] = {each: each for each in get_args(Urgency)}

MAX_JUMPS = 100
"""How often time may pass before the replay goes on: a call is made again after a pause, a few times at most."""


class Player:
    """Plays one part of a journal with a chain that was opened with these actors.

    ``retries`` says how often a model is asked again, by its name; ``None``: as often as the one before.
    """

    def __init__(
        self, chain: Chain, actors: Actors, clock: MockClock, retries: Callable[[str], Retries | None]
    ) -> None:
        self._chain = chain
        self._actors = actors
        self._script = actors.script
        self._tape = actors.tape
        self._clock = clock
        self._retries = retries
        self._acts = deque(actors.script.concerned)
        self._answerer: Answerer | None = None
        self._presences = deque(actors.script.presences)
        self._is_acting = False
        self._jumps = 0

    async def play(self) -> None:
        """Play it to its end, or to the first difference."""
        self._actors.journal.before_look = self._before_look
        self._tape.is_slow = True  # so that what came while an agent waited for the disk finds it there again
        self._actors.before_asking = self._be_there_for_questions
        try:
            while True:
                await wait_all_tasks_blocked()
                if self._tape.is_over:
                    break
                self._go_on()
        finally:
            self._actors.leave()

    # ------------------------------------------------------------------------------------- when nothing else goes on

    def _go_on(self) -> None:
        """Do the first thing of those that can be done now."""
        self._be_there_for_questions()
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
            for turn, at in self._actors.waits.items():
                if at == wait:
                    turn.set()
            self._jumps = 0
        elif pause == math.inf or not self._let_time_pass():
            self._tape.miss()

    def _act(self, end: float) -> bool:
        """Do the first act, if it came before the entry ``end``, and those of the same moment. Whether there was any.

        At that very entry a model may wait, which shows its text before the act.
        """
        has_acted = False
        while (n := self._next_act()) is not None and n <= end:
            if (has_acted or n == end) and not self._has_come(n):
                break
            self._do(n)
            has_acted = True
        return has_acted

    def _next_act(self) -> int | None:
        # The beginning of a run, and a change of the plan, may have come by themselves.
        return next(filter(self._can_be_done, self._tape.left(self._acts)), None)

    def _let_time_pass(self) -> bool:
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
        self._be_there_for_questions()
        while (n := self._due(agent)) is not None:
            self._do(n)

    def _due(self, agent: str) -> int | None:
        """The next act that concerns an agent, if its moment has come, or one before it whose moment has come too."""
        concerned = self._script.concerned
        last = next((n for n in self._tape.left(self._acts) if agent in concerned[n]), None)
        if last is None or not self._has_come(last):
            return None
        return next(n for n in self._tape.left(self._acts) if n == last or self._has_come(n))

    def _has_come(self, n: int) -> bool:
        """Whether all agents that an act concerns are where they were when it came."""
        entry = self._script.entries[n]
        early = isinstance(entry.record, records.Interrupted) and entry.record.by == "time"  # it is recorded afterwards
        looks = self._actors.journal.looks
        is_there = all(
            self._tape.head(each) >= n
            and (looks.get(each, 0) >= entry.looks.get(each, 0) - early or self._tape.latest.get(each, -1) > n)
            for each in self._script.concerned[n]
        )
        return is_there and self._can_be_done(n)

    # --------------------------------------------------------------------------------------------- what the user did

    def _do(self, n: int) -> None:
        self._tape.mark(n)
        self._is_acting = True
        try:
            why = self._redo(self._script.entries[n].record)
        except UserError as error:
            why = f"It cannot be dropped: {error}."
        except PlanError as error:
            why = f"The plan cannot be changed so: {error}."
        if why:
            self._tape.miss(n, why)
        self._is_acting = False

    def _redo(self, record: Record | Unknown) -> str:
        """Do what a record tells of. Why a line is not accepted today, as a sentence; empty for all else.

        Raises ``UserError`` for a line that cannot be dropped, ``PlanError`` for a change that the plan refuses.
        """
        match record:
            case records.Line():
                return self._say(record)
            case records.Answer():
                self._answer(record)
            case records.Interrupted(by="time", agent=agent):
                node = self._actors.node(agent)
                if node is not None and node.run is not None:
                    node.run.scope.cancel()  # as its deadline does
            case records.Interrupted(by="exit"):
                self._chain.leave()
            case records.Interrupted():
                self._chain.interrupt()
            case records.Receipt(id=id, reason=reason):
                self._chain.drop(id, reason)
            case records.Model(name=name):
                self._chain.use_model(RecordedModel(name), retries=self._retries(name))
            case records.CompactionAsked(focus=focus):
                self._chain.compact(focus)
            case records.TaskAdded(text, by):
                self._chain.plan.add(text, by)
            case records.TaskClosed(number, state, reason, by):
                self._chain.plan.close(number, state, by, reason)
            case records.PlanReplaced(texts, by):
                self._chain.plan.replace_all(texts, by)
            case _:
                self._chain.run_waiting()
        return ""

    def _can_be_done(self, n: int) -> bool:
        """Whether what an entry tells of is possible as things stand."""
        is_running = self._chain.is_running
        match self._script.entries[n].record:
            case records.Line(agent=agent, kind=kind, effect=effect):
                is_for_run = effect == "waits" or kind == "stop"
                return is_running == is_for_run and self._actors.node(agent) is not None
            case records.Answer(id=id):
                return self._chain.open_question == id
            case records.RunBegun():
                return not is_running
            case records.Interrupted(agent=agent):
                return is_running and self._actors.node(agent) is not None
            case records.TaskAdded() | records.TaskClosed() | records.PlanReplaced() as change:
                return change.by == "user" or any(each.agent == change.by for each in self._actors.running.values())
            case _:
                return True

    def _be_there_for_questions(self) -> None:
        """Have somebody who can answer, or nobody, as it was at the next question."""
        asked = next(self._tape.left(self._presences), None)
        if self._chain.open_question is not None or asked is None:
            return
        if not self._script.asked[asked].is_open:
            self._leave()
        elif self._answerer is None:
            self._answerer = self._chain.answering()

    def _say(self, record: records.Line) -> str:
        chain, text, id, origin = self._chain, record.text, record.id, origin_of(record)
        # What made it urgent was a rule, which does so again, or its sender, by its text or by other means.
        urgency = "next" if record.by_rule else _URGENCIES.get(record.urgency, "next")
        to = record.agent
        if record.kind == "stop" and to == MAIN and chain.needs_no_room(text, urgency=urgency, to="") == "stop":
            to = ""  # it was for all, and whosever rule made it a stop, it is on record as one for the main agent
        if record.kind == "verbatim" and not text.startswith(" "):
            said = chain.start(text, id=id, origin=origin)
        else:
            said = chain.submit(text, urgency=urgency, id=id, local=False, origin=origin, to=to, images=record.images)
        is_heard = record.kind == "guidance" and id in self._script.heard
        if is_heard and (node := self._actors.node(record.agent)) is not None:
            others = {each.on_record for each in node.inbox.waiting()} - {id}
            node.inbox.adjustments(others)  # a tool read it, sooner or later
        return f"The line is not accepted: {said.message}." if said.what in ("refused", "nothing") else ""

    def _answer(self, record: records.Answer) -> None:
        options = self._script.question(record.id).options
        if record.by == "nobody":
            self._leave()
        elif record.decision == "allowed":
            self._chain.answer(record.id, "a" if record.is_for_always else "y")
        elif record.text in options:
            self._chain.answer(record.id, str(options.index(record.text) + 1))
        else:
            self._chain.answer(record.id, record.text or "n")

    def _leave(self) -> None:
        answerer, self._answerer = self._answerer, None
        if answerer is not None:
            answerer.close()
