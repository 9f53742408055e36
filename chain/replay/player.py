"""Runs a recorded session again: puts in what came from outside, where each agent's course has it.

Models and tools answer by themselves from the record. What a user did is done at the first moment at which its agent's
course has come to it: in the step of an event of this agent where nothing is waited for before the next record, else
when nothing else goes on. What cuts work comes last of all that could be done then, so that everyone who is cut has
come to where it was. Nothing holds which of two agents was first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.chain import Chain
from chain.journal import records
from chain.replay.actors import Actors
from chain.replay.acts import Acts, Attempts
from chain.replay.script import Script
from chain.text.wording import MAIN

MAX_JUMPS = 100
"""How often time may pass before the replay goes on: a call is made again after a pause, a few times at most."""

_OVER = frozenset({"done", "truncated"})
"""How runs end in which no line waited at the last reply."""


class Player:
    """Plays one part of a journal with a chain that was opened with these actors."""

    def __init__(self, script: Script, actors: Actors, clock: MockClock, attempts: Attempts) -> None:
        self._script = script
        self._actors = actors
        self._tape = actors.tape
        self._clock = clock
        self._attempts = attempts
        self._iterations: dict[str, int] = {}
        self._is_acting = False
        self._jumps = 0
        self._chain: Chain
        self._acts: Acts
        actors.at_pause = self._at_pause

    async def play(self, chain: Chain) -> None:
        """Play it to its end, or to the first difference."""
        self._chain = chain
        self._acts = Acts(self._script, self._actors, chain, self._attempts)
        chain.listen(self._hear)
        try:
            while (n := self._next()) is not None:
                await wait_all_tasks_blocked()
                self._acts.be_there_for_questions()
                if self._next() is None:
                    break
                if not (self._actors.go_on() or self._act() or self._let_time_pass()):
                    self._tape.part(self._next() or n)
                elif self._next() != n:
                    self._jumps = 0
        finally:
            self._actors.leave()

    def _next(self) -> int | None:
        return None if self._tape.difference is not None else self._tape.next

    # ------------------------------------------------------------------------------------- when nothing else goes on

    def _act(self) -> bool:
        """Do one thing that came from outside, and what follows it at once. Whether there was any."""
        due = [(agent, n) for agent in self._script.courses if (n := self._due(agent)) is not None]
        if not due:
            return False
        # A cut comes last, and the cut of an agent before that of the one above.
        agent, n = min(due, key=lambda each: (self._script.cuts(each[1]), -self._depth(each[0])))
        if self._script.cuts(n) and self._tape.failed and self._let_time_pass(below=agent):
            return True
        self._do_all(agent)
        return True

    def _depth(self, agent: str) -> int:
        node = self._actors.node(agent)
        return 0 if node is None else node.depth

    def _due(self, agent: str) -> int | None:
        """What comes next in an agent's course, if it came from outside."""
        n = self._tape.head(agent)
        behind = None if n is None else self._script.behind.get(n)
        if n is None or (behind is not None and not self._tape.is_done(behind)):
            return None
        match self._script.entries[n].record:
            case records.RunBegun():
                return None if self._chain.is_running else n
            case records.TaskAdded() | records.TaskClosed() | records.PlanReplaced() as change if change.by != "user":
                return n if any(each.agent == change.by for each in self._actors.running.values()) else None
            case records.Line(effect=effect, kind=kind):
                is_for_later = self._chain.is_running and effect != "waits" and kind != "stop"
                return None if is_for_later else n
            case records.Answer(id=id):
                return n if self._script.is_outside(n) and self._chain.open_question == id else None
            case _:
                return n if self._script.is_outside(n) else None

    def _do_all(self, agent: str) -> None:
        """Do what comes next in an agent's course, as long as it came from outside."""
        while (n := self._due(agent)) is not None and self._next() is not None:
            self._do(n)
            if self._went_on(n) and (after := self._due(agent)) is not None and self._script.holds_up(after):
                return

    def _went_on(self, n: int) -> bool:
        """Whether an entry is an answer by which the call that had asked went on, before anything kept it from that."""
        answer = self._script.entries[n].record
        if not isinstance(answer, records.Answer):
            return False
        call = self._script.question(answer.id).tool_call_id
        has_begun = self._script.result(call) is not None or self._script.fault(call)
        return bool(has_begun) or (call in self._script.started and not self._script.questions(call))

    def _do(self, n: int) -> None:
        self._is_acting = True
        self._tape.mark(n)
        record = self._script.entries[n].record
        if why := self._acts.do(record):
            self._tape.part(n, why)
        elif isinstance(record, records.RunBegun) or (isinstance(record, records.Line) and record.effect == "starts"):
            self._do_at_start(n)
        elif isinstance(record, records.Interrupted) and record.by == "user":
            # Whatever comes until the run has ended finds nothing to do.
            for late in self._script.after(MAIN, n):
                record = self._script.entries[late].record
                is_line = isinstance(record, records.Line) and (record.effect == "waits" or record.kind == "stop")
                if (is_line or isinstance(record, records.Receipt)) and not self._tape.is_marked(late):
                    self._do(late)
        self._is_acting = False

    def _do_at_start(self, n: int) -> None:
        """Say what the run that began with an entry found waiting."""
        for waiting in self._script.lines_at_start(n):
            if not self._tape.is_marked(waiting):
                self._do(waiting)

    def _let_time_pass(self, below: str = "") -> bool:
        """Let time pass to the end of a pause before a call is made again, of an agent or of one below it."""
        failed = self._tape.failed
        if below and (node := self._actors.node(below)) is not None:
            failed = failed & {each.name for each in node.all() if each is not node}
        left = trio.lowlevel.current_statistics().seconds_to_next_deadline
        if not failed or self._jumps == MAX_JUMPS or left == float("inf"):
            return False
        self._jumps += 1
        self._clock.jump(max(left, 0.0))
        return True

    # ------------------------------------------------------------------------------------------ in the step of an event

    def _at_pause(self, agent: str) -> None:
        self._act_at_once(agent, lambda n: not self._is_later(agent, n))

    def _hear(self, event: events.Event) -> None:
        """Do what has to be done in the very step of an event."""
        if self._tape.is_off or self._is_acting:
            return
        self._acts.be_there_for_questions()
        agent = event.agent
        match event:
            case events.RunStarted():
                self._iterations[agent] = 0
                self._act_at_once(agent, lambda n: True)
                if (n := self._tape.head(agent)) is not None:
                    self._do_at_start(n - 1)
            case events.AgentStarted(name=name):
                self._iterations[name] = 0
                self._act_at_once(name, lambda n: True)
            case events.IterationStarted(iteration=iteration):
                self._iterations[agent] = iteration
                self._act_at_once(agent, lambda n: self._script.iteration(n) == iteration)
            case events.Reply(tool_calls=0):
                self._act_at_once(agent, lambda n: self._was_there(agent, n))
            case events.Reply() | events.ToolResult() | events.ToolCall():
                self._act_at_once(agent, lambda n: self._is_before_next_call(event, n))
            case events.Receipt(state="delivered"):
                # If the run is over already, nothing is waited for any more.
                self._act_at_once(agent, lambda n: not self._comes_to_pause(agent, n))
            case events.Result() | events.Receipt():
                if isinstance(event, events.Result):
                    self._iterations.clear()
                self._act_at_once(agent, lambda n: True)
            case events.Question():
                # A now line in this very step cuts the call that asks; a moment later it only withdraws the question.
                self._act_at_once(agent, self._script.cuts_tools)
            case events.PlanChanged() | events.Answer() | events.AgentEnded() | events.Error() | events.Notice():
                self._act_at_once(agent, lambda n: not self._script.holds_up(n) or not isinstance(event, events.Answer))
            case _:
                pass

    def _act_at_once(self, agent: str, may: Callable[[int], bool]) -> None:
        while (n := self._due(agent)) is not None and self._next() is not None and may(n):
            if not self._tape.is_first(agent, n):
                return  # an agent below has still to begin or to end
            if self._script.cuts(n) and (self._has_below(agent) or self._is_later(agent, n)):
                return
            self._do(n)

    def _is_later(self, agent: str, n: int) -> bool:
        """Whether what an entry tells of came in a later iteration than the one that the agent is in."""
        return self._script.iteration(n) > self._iterations.get(agent, 0)

    def _has_below(self, agent: str) -> bool:
        node = self._actors.node(agent)
        return node is not None and bool(node.below)

    def _comes_to_pause(self, agent: str, n: int) -> bool:
        """Whether an agent waits for the disk once more before what an entry tells of matters to it."""
        match self._script.next_by_itself(agent, self._script.behind.get(n, n)):
            case records.RequestSent():
                return True
            case records.Message(point=point):
                return point is not None
            case _:
                return False

    def _was_there(self, agent: str, n: int) -> bool:
        """Whether what an entry tells of came in time for the safe point behind a reply without calls."""
        record = self._script.entries[n].record
        is_drop = isinstance(record, records.Receipt)
        if not is_drop and (not isinstance(record, records.Line) or record.kind in ("stop", "follow-up")):
            return True
        if isinstance(record, records.Line) and record.id in self._script.gone:
            return True
        match self._script.next_by_itself(agent, n):
            case records.Result(status=status) | records.AgentEnded(status=status):
                # A todo line would have been carried out there at the latest.
                is_todo = isinstance(record, records.Line) and record.kind == "todo"
                return not is_todo and is_drop == (status in _OVER)
            case _:
                return True

    def _is_before_next_call(self, event: events.Event, n: int) -> bool:
        """Whether what an entry tells of has to be done before the next call of a reply begins.

        What keeps calls from starting, or cuts them, must not come too early: after a call that began, or failed.
        """
        script = self._script
        if isinstance(event, events.ToolCall):
            if not self._actors.stands_in(event.name):
                return not script.holds_up(n) or not script.result(event.id)
            following = self._after(event.id)
            return script.holds_up(n) and script.result(event.id) is None and all(map(script.never_begins, following))
        if not script.holds_up(n):
            return True
        if script.cuts_tools(n):
            return False
        is_reply = isinstance(event, events.Reply)
        following = script.last_calls(event.agent, n) if is_reply else self._after(getattr(event, "id", ""))
        return not following or script.never_begins(following[0])

    def _after(self, call_id: str) -> Sequence[str]:
        calls = self._script.calls.get(call_id, (call_id,))
        return calls[calls.index(call_id) + 1 :]
