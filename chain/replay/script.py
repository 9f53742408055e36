"""What one process recorded, for those who run it again: each agent's own course, and what came of each call. Pure.

An agent's course is what it did and what was done to it, in their order. The courses of different agents are not
ordered among each other: who was first is followed nowhere.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

from chain.journal import records
from chain.journal.records import Entry, Record, Unknown
from chain.messages import Message, ToolResult
from chain.plan import Task, changed
from chain.text.wording import INTERRUPTED, MAIN, SKIPPED
from chain.tools.tool import Preview

SOME_TEXT = " "
"""Stands for text that was shown and is not on record. It is blank, since what was not is kept."""


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """What a model call came to: how it ended (``None``: it was cut), its reply, what was shown of it.

    ``end`` is the entry that tells how it ended. ``was_late``: the text was shown after the user stopped the agent, and
    before the call was cut.
    """

    end: int | None
    ended: records.RequestEnded | None
    message: Message | None
    shown: str
    was_answering: bool = False
    was_late: bool = False


class Script:
    """What one process recorded, with the ``rows`` of the journal before it and the lines in them."""

    def __init__(self, entries: Sequence[Entry], rows: Sequence[bytes], old_lines: Set[str] = frozenset()) -> None:
        self.entries = entries
        self.rows = rows
        self.courses: defaultdict[str, list[int]] = defaultdict(list)
        """By agents, the entries of their courses."""
        self.started: dict[str, int] = {}
        """By tool calls, the entries that start them."""
        self.finished: dict[str, int] = {}
        """By tool calls, the entries that end them."""
        self.asked: list[int] = []
        """The entries of the questions."""
        self.calls: dict[str, Sequence[str]] = {}
        """By tool calls, the ids of all calls of the reply."""
        self.is_side_by_side = False
        """Whether calls ran at the same time, so that the record holds only which of them happened to be first."""
        self.behind: dict[int, int] = {}
        """By what came in the very step of a delivery, too late for it, the entries of its message."""
        self.has_plan = False
        """Whether the plan was changed."""
        self._old_lines = old_lines
        self._lines: dict[str, int] = {}
        self._results: dict[str, ToolResult] = {}
        self._questions: defaultdict[str, list[int]] = defaultdict(list)
        self._answers: dict[str, records.Answer] = {}
        self._places: dict[str, int] = {}
        """By questions, their entries."""
        self._ends: defaultdict[str, list[int]] = defaultdict(list)
        """By agents, the entries that end their runs."""
        self._runs: list[int] = []
        self._running: defaultdict[str, set[str]] = defaultdict(set)
        self.gone: set[str] = set()
        """The lines that were dropped, or done by code, or acted on by a tool."""
        for n, entry in enumerate(entries):
            self._add(n, entry.record)
            if (agent := self._course_of(n)) is not None:
                if isinstance(entry.record, records.Message) and entry.record.point not in (None, "start"):
                    self._note_late(n, entry.record)
                self.courses[agent].append(n)
            match entry.record:
                case records.Receipt(id=id, state="handled" | "dropped"):
                    self.gone.add(id)
                case _:
                    pass
        self.heard = frozenset(id for id, n in self._lines.items() if id in self.gone and self._is_guidance(n))
        """The guidance that a tool acted on, and that was never delivered."""

    def _add(self, n: int, record: Record | Unknown) -> None:
        match record:
            case records.Message(message=message, agent=agent):
                self._results.update({result.id: result for result in message.results})
                ids = [call.id for call in message.calls]
                self.calls.update((id, ids) for id in ids)
                self._running[agent].clear()
            case records.ToolStarted(id=id, agent=agent):
                self.started[id] = n
                self._running[agent].add(id)
                self.is_side_by_side = self.is_side_by_side or len(self._running[agent]) > 1
            case records.ToolFinished(id=id, agent=agent):
                self.finished[id] = n
                self._running[agent].discard(id)
            case records.Question(id=id, tool_call_id=call):
                self.asked.append(n)
                self._places[id] = n
                self._questions[call].append(n)
            case records.Answer(id=id):
                self._answers[id] = record
            case records.Line(id=id):
                if id not in self._old_lines:
                    self._lines.setdefault(id, n)
            case records.TaskAdded() | records.TaskClosed() | records.PlanReplaced():
                self.has_plan = True
            case records.AgentEnded(name=name):
                self._ends[name].append(n)
            case records.RunBegun():
                self._runs.append(n)
            case records.Result():
                self._ends[MAIN].append(n)
            case _:
                pass

    def _note_late(self, n: int, delivery: records.Message) -> None:
        for m in reversed(self.courses[delivery.agent]):
            line = self.entries[m].record
            if not self.is_outside(m):
                return
            if isinstance(line, records.Line) and line.id in delivery.line_ids:
                return
            if not (isinstance(line, records.Line) and line.kind == "follow-up"):
                self.behind[m] = n

    def _course_of(self, n: int) -> str | None:
        match self.entries[n].record:
            case records.Line(id=id, agent=agent):
                return agent if self._lines.get(id) == n else None
            case records.Receipt(state=state, agent=agent):
                return agent if state == "dropped" else None
            case records.TaskAdded() | records.TaskClosed() | records.PlanReplaced() as change:
                return None if change.line_id else MAIN if change.by == "user" else change.by
            case records.PlanRestored() | records.Session() | records.Answer(decision="withdrawn"):
                return None
            case record:
                return str(getattr(record, "agent", MAIN))

    def _is_guidance(self, n: int) -> bool:
        line = self.entries[n].record
        return isinstance(line, records.Line) and line.kind == "guidance"

    # --------------------------------------------------------------------------------------------------- the process

    @property
    def opening(self) -> records.Session:
        """How it was opened."""
        return next(e.record for e in self.entries if isinstance(e.record, records.Session))

    @property
    def plan(self) -> Sequence[Task]:
        """The plan that a new session began with."""
        for entry in self.entries[:2]:
            if isinstance(entry.record, records.PlanRestored) and not self.rows:
                return changed((), entry.record)
        return ()

    # --------------------------------------------------------------------------------------------------- the user

    def is_outside(self, n: int) -> bool:
        """Whether an entry tells of what came from outside, of what the journal shows by itself."""
        match self.entries[n].record:
            case records.Line() | records.Receipt() | records.Model():
                return True
            case records.Answer(id=id, by=by):
                return by == "user" or (by == "nobody" and self.question(id).is_open)
            case records.Interrupted(by=by):
                return by != "line"
            case records.TaskAdded() | records.TaskClosed() | records.PlanReplaced() as change:
                return change.by == "user"
            case _:
                return False

    def cuts(self, n: int) -> bool:
        """Whether what an entry tells of cuts the work in hand."""
        match self.entries[n].record:
            case records.Line(kind=kind, urgency=urgency, effect=effect):
                return kind == "stop" or (urgency == "now" and effect == "waits")
            case records.Interrupted():
                return True
            case _:
                return False

    def holds_up(self, n: int) -> bool:
        """Whether what an entry tells of keeps calls from starting."""
        line = self.entries[n].record
        return self.cuts(n) or (isinstance(line, records.Line) and line.urgency != "next" and line.effect == "waits")

    def hangs_on_moments(self, n: int) -> bool:
        """Whether what an entry tells of may hang on a moment that no record holds.

        That is so where calls ran side by side, and in a run in which something cut work, or kept calls from starting.
        """
        begin = max((m for m in self._runs if m <= n), default=0)
        end = next((m for m in self._ends[MAIN] if m >= n), len(self.entries))
        return self.is_side_by_side or any(self.is_outside(m) and self.holds_up(m) for m in range(begin, end))

    def iteration(self, n: int) -> int:
        """The iteration of the agent when a line came, or when it was cut; 0 for anything else."""
        record = self.entries[n].record
        return record.iteration if isinstance(record, records.Line | records.Interrupted) else 0

    # --------------------------------------------------------------------------------------------------- an agent

    def after(self, agent: str, n: int) -> Iterator[int]:
        """What follows an entry in an agent's course; the end of its run is the last."""
        ends, course = self._ends[agent], self.courses[agent]
        at = bisect_right(ends, n)
        end = ends[at] if at < len(ends) else None
        for m in course[bisect_right(course, n) :]:
            if end is not None and m > end:
                break
            yield m
            if m == end:
                return
        if end is not None:
            yield end

    def next_by_itself(self, agent: str, n: int) -> Record | Unknown | None:
        """The first record after an entry that is of what the agent did, or of its end."""
        own = (self.entries[m].record for m in self.after(agent, n) if not self.is_outside(m))
        return next(own, None)

    def last_calls(self, agent: str, n: int) -> Sequence[str]:
        """The calls of the last reply of an agent before an entry."""
        course = self.courses[agent]
        for at in range(bisect_right(course, n) - 1, -1, -1):
            record = self.entries[course[at]].record
            if isinstance(record, records.Message) and record.message.role == "assistant":
                return [call.id for call in record.message.calls]
        return ()

    def was_ended(self, agent: str, n: int) -> bool:
        """Whether an agent asked its model no more after an entry, since what ended it came from above."""
        for m in self.after(agent, n):
            match self.entries[m].record:
                case records.RequestSent():
                    return False
                case records.AgentEnded(name=name, status=status) if name == agent:
                    return status == "interrupted"
                case _:
                    pass
        return False

    def cuts_tools(self, n: int) -> bool:
        """Whether what an entry tells of is a now line that cut tools, or the look at what they would do."""
        line = self.entries[n].record
        if not isinstance(line, records.Line) or line.urgency != "now" or line.effect != "waits":
            return False
        for m in self.after(line.agent, n):
            match self.entries[m].record:
                case records.Interrupted(what=what, by=by):
                    return what == "tools" and by == "line"
                case records.RequestSent():
                    return False
                case _:
                    pass
        return False

    def lines_at_start(self, n: int) -> Sequence[int]:
        """The lines behind an entry that the run of the main agent began with, if one began there."""
        for m in self.after(MAIN, n):
            match self.entries[m].record:
                case records.Message(point="A", line_ids=ids):
                    return [k for id in ids if (k := self._lines.get(id, -1)) > n]
                case records.RequestSent() | records.Result():
                    return ()
                case _:
                    pass
        return ()

    def call(self, sent: int) -> RecordedCall:
        """What the model call came to that entry ``sent`` begins."""
        begun = self.entries[sent].record
        assert isinstance(begun, records.RequestSent)
        end: int | None = None
        ended: records.RequestEnded | None = None
        message: Message | None = None
        was_shown = was_answering = was_cut = False
        for n in self.after(begun.agent, sent):
            match self.entries[n].record:
                case records.RequestSent():
                    break
                case records.RequestEnded() as found:
                    end, ended = n, found
                    message, was_shown = message or found.message, found.was_shown
                case records.Message(message=said, point=point) if said.results or point is not None:
                    break
                case records.Interrupted(what=what):
                    was_answering = was_cut = was_answering or what == "answering"
                case records.Message(message=said) if said.role == "assistant":
                    message = message or said
                case records.Result(status=status, result=text):
                    shown = "" if message is None else message.text.strip()
                    is_named = bool(shown) and status == "cancelled" and text.startswith(shown)
                    if status.startswith("cancelled"):  # it was cut a moment later than the user stopped it
                        was_answering = is_named or status == "cancelled_during_synthesis"
                case records.AgentEnded(status="cancelled_during_synthesis"):
                    was_answering = True
                case _:
                    pass
        text = "" if message is None else message.text
        shown = text or (SOME_TEXT if was_shown or was_answering or was_cut else "")
        return RecordedCall(end, ended, message, shown, was_answering, was_cut and not was_answering)

    # ---------------------------------------------------------------------------------------------------------- tools

    def result(self, call_id: str) -> ToolResult | None:
        """What became of a tool call, if its tool gave a result that is known; ``None`` for one that was cut off."""
        found, at = self._results.get(call_id), self.finished.get(call_id)
        finished = None if at is None else self.entries[at].record
        if found is None and isinstance(finished, records.ToolFinished):
            found = ToolResult(call_id, finished.text, finished.is_error)
        is_stub = found is not None and found.is_error and found.text == INTERRUPTED
        return None if is_stub or at is None else found

    def fault(self, call_id: str) -> str:
        """Why a call failed before its tool was started; empty if it did not fail, or was only skipped."""
        found = self._results.get(call_id)
        failed = found is not None and found.is_error and call_id not in self.started
        return found.text if failed and found is not None and found.text != SKIPPED else ""

    def never_begins(self, call_id: str) -> bool:
        """Whether a call was neither started nor asked about, nor failed before: something held it up to its end."""
        return not (call_id in self.started or self._questions.get(call_id) or self.fault(call_id))

    def approval(self, call_id: str) -> int | None:
        """The entry of what was asked before a call started."""
        start = self.started.get(call_id, len(self.entries))
        return next((n for n in self._questions.get(call_id, ()) if n < start), None)

    def questions(self, call_id: str) -> Sequence[int]:
        """The entries of what a running tool asked, in order."""
        start = self.started.get(call_id, len(self.entries))
        return [n for n in self._questions.get(call_id, ()) if n > start]

    def question_at(self, n: int) -> records.Question:
        """The question of an entry."""
        found = self.entries[n].record
        assert isinstance(found, records.Question)
        return found

    def question(self, id: str) -> records.Question:
        """The question with this id."""
        return self.question_at(self._places[id])

    def preview(self, n: int) -> Preview:
        """What was shown with the question of an entry."""
        asked = self.question_at(n)
        return Preview(asked.preview, asked.subject, asked.preview, asked.always, asked.protections, asked.only_by_name)
