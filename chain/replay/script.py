"""What one process recorded, for those who run it again: each agent's own course, and what came of each call. Pure.

An agent's course is what it did, and what was done to it from outside, in their order. What came from outside is an
*act*; its record says how often each agent had looked for such things before it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import pairwise

from chain.journal import records
from chain.journal.records import Entry
from chain.messages import Message, Text, ToolCall, ToolResult, assistant
from chain.plan import Task, tasks_after
from chain.text.wording import INTERRUPTED, MAIN, SKIPPED
from chain.tools.named_files import Attachments, LineContent
from chain.tools.tool import Preview

SOME_TEXT = " "
"""Stands for text that was shown and is not on record. It is blank, since what was not is kept."""


@dataclass(slots=True)
class RecordedToolCall:
    """What is on record of a tool call: the entries that start and end it, and what was asked before it and by it.

    ``began`` is the entry of the agent that it started, or of its change of the plan. ``answer`` is the result that the
    model was given, by the entry ``answered``.
    """

    started: int | None = None
    finished: int | None = None
    approval: int | None = None
    questions: list[int] = field(default_factory=list)
    began: int | None = None
    answered: int | None = None
    answer: ToolResult | None = None

    @property
    def result(self) -> ToolResult | None:
        """What its tool gave back; ``None`` if it was cut off."""
        found = None if self.finished is None else self.answer
        return None if found is None or (found.is_error and found.text == INTERRUPTED) else found

    @property
    def fault(self) -> str:
        """Why it failed before its tool was started; empty if it did not fail, or was only skipped."""
        found = self.answer if self.started is None else None
        return found.text if found is not None and found.is_error and found.text != SKIPPED else ""

    @property
    def did_first(self) -> int | None:
        """The entry of the first thing that it did once it was started; ``None``: nothing, until it was cut."""
        ended = None if self.result is None else self.finished
        return next(iter(self.questions), ended if self.began is None else self.began)


@dataclass(frozen=True, slots=True)
class RecordedModelCall:
    """What a model call came to: how it ended (``None``: it was cut), its reply, what was shown of it.

    ``end`` is the entry that tells how it ended. ``silent_until`` is the last act that came before anything was shown.
    """

    end: int | None
    ended: records.RequestEnded | None
    message: Message | None
    shown: str
    silent_until: int | None


def parts(entries: Sequence[Entry]) -> Iterator[tuple[int, int]]:
    """Where in a journal the entries of each process begin and end.

    One that resumed the session begins with what a crash had left out, which the program writes again by itself from
    the rows before it.
    """
    begins = [n - e.record.repaired for n, e in enumerate(entries) if isinstance(e.record, records.Session)]
    return pairwise([*begins, len(entries)])


class Script:
    """What one process recorded, with the ``rows`` of the journal before it and the entries in them."""

    def __init__(self, entries: Sequence[Entry], rows: Sequence[bytes], earlier: Sequence[Entry]) -> None:
        self.entries = entries
        self.rows = rows
        self.courses: defaultdict[str, list[int]] = defaultdict(list)
        """By agents, the entries of their courses."""
        self.concerned: dict[int, tuple[str, ...]] = {}
        """By acts, the agents that may find it when they look."""
        self.tool_calls: defaultdict[str, RecordedToolCall] = defaultdict(RecordedToolCall)
        """By their ids."""
        self.opening: records.Session
        """How it was opened."""
        self.plan: Sequence[Task] = ()
        """The plan that a new session began with."""
        self.asked: dict[int, records.Question] = {}
        """By entries, the questions."""
        self.presences: list[int] = []
        """The entries of the questions that show whether there was somebody who could answer."""
        self.left_to_chance = len(entries)
        """The first entry left to chance: calls ran at once, or a line came as a request waited for the disk."""
        self.has_plan = False
        """Whether the plan was changed."""
        self.heard: set[str] = set()
        """The lines that were handled and never delivered: if it was guidance, a tool acted on it."""
        self._lines = {entry.record.id for entry in earlier if isinstance(entry.record, records.Line)}
        self._places: dict[str, int] = {}
        """By questions, their entries."""
        self._running: defaultdict[str, set[str]] = defaultdict(set)
        self._parents: dict[str, str] = {}
        """By the agents at work, those that they work for."""
        self._asking: dict[str, int] = {}
        """By agents, the request that has no end on record, nor a cut, so far."""
        for n in range(len(entries)):
            self._add(n)

    def _add(self, n: int) -> None:
        record = self.entries[n].record
        agent = str(getattr(record, "agent", MAIN))
        concerned: tuple[str, ...] = ()
        match record:
            case records.Line(id=id, kind=kind, urgency=urgency, effect=effect):
                if id in self._lines:
                    return  # it waits for another agent now
                self._lines.add(id)
                cuts = kind == "stop" or (urgency == "now" and effect == "waits")
                concerned = self._below(record.agent) if cuts else (record.agent,)
            case records.Receipt(id=id, state=state):
                if state == "handled":
                    self.heard.add(id)
                if state != "dropped":
                    return
                concerned = (record.agent,)
            case _ if isinstance(record, (records.RunBegun, *records.ACTS)):
                concerned = (MAIN,)
            case records.RequestSent():
                self.left_to_chance = min(self.left_to_chance, self._asking.get(agent, len(self.entries)))
                self._asking[agent] = n
            case records.RequestEnded():
                self._asking.pop(agent, None)
            case records.Interrupted(by=by):
                self._asking.pop(agent, None)
                concerned = self._below(MAIN) if by in ("user", "exit") else (record.agent,) if by == "time" else ()
            case records.TaskAdded() | records.TaskClosed() | records.PlanReplaced():
                self.has_plan = True
                if record.line_id:
                    return
                agent = MAIN if record.by == "user" else record.by
                concerned = (MAIN, *self._parents) if record.by == "user" else (record.by,)
                for call in self._running[agent] if record.by != "user" else ():
                    self.tool_calls[call].began = n
            case records.Answer(id=id) if id not in self._places:
                return  # the record of its question is missing
            case records.Answer(id=id, decision=decision, by=by):
                if by == "config":
                    self.presences.remove(self._places[id])
                if decision == "withdrawn":
                    return
                is_act = by == "user" or (by == "nobody" and self.question(id).is_open)
                concerned = (record.agent,) if is_act else ()
            case records.Question(id=id, tool_call_id=call) as question:
                self.presences.append(n)
                self.asked[n], self._places[id] = question, n
                if self.tool_calls[call].started is None:
                    self.tool_calls[call].approval = n
                else:
                    self.tool_calls[call].questions.append(n)
            case records.Message(message=message):
                for result in message.results:
                    self.tool_calls[result.id].answered, self.tool_calls[result.id].answer = n, result
                self._running[record.agent].clear()
            case records.ToolStarted(id=id):
                self.tool_calls[id].started = n
                self._running[record.agent].add(id)
                if len(self._running[record.agent]) > 1:
                    self.left_to_chance = min(self.left_to_chance, n)
            case records.ToolFinished(id=id, is_error=is_error, text=text, images=images):
                self.tool_calls[id].finished = n
                self.tool_calls[id].answer = ToolResult(id, text, is_error, images)
                self._running[record.agent].discard(id)
            case records.AgentStarted(name=name, parent_id=call):
                self._parents[name] = record.agent
                self.tool_calls[call].began = n
            case records.AgentEnded(name=name):
                self._parents.pop(name, None)
                self._asking.pop(name, None)
            case records.Result():
                self._asking.clear()
            case records.Session() as opening:
                self.opening = opening
                return
            case records.PlanRestored() as restored:
                if n < 2 and not self.rows:
                    self.plan = tasks_after((), restored)
                return
            case _:
                pass
        self.courses[agent].append(n)
        if concerned:
            self.concerned[n] = concerned

    def _below(self, agent: str) -> tuple[str, ...]:
        found = [agent]
        for name, parent in self._parents.items():
            if parent in found:
                found.append(name)
        return tuple(found)

    def attachments(self, lines: Sequence[LineContent]) -> Attachments:
        """What went along with these lines, as they were delivered in one message; nothing is read from the disk."""
        ids = tuple(line.id for line in lines)
        found = [e.record for e in self.entries if isinstance(e.record, records.Message) and e.record.line_ids == ids]
        told = (e.record for e in self.entries if isinstance(e.record, records.Receipt))
        notes = {record.id: record.reason for record in told if record.state == "delivered" and record.id in ids}
        return Attachments(found[0].message.blocks[1:] if found else (), notes)

    # ---------------------------------------------------------------------------------------------------- model calls

    def first_batch(self, alone: Set[str]) -> int:
        """The first reply with neighbouring calls of tools that are not ``alone``: how they began is left to chance."""
        for n, entry in enumerate(self.entries):
            if isinstance(entry.record, records.Message):
                beside = [call.name not in alone or self._is_unfit(call) for call in entry.record.message.calls]
                if any(map(all, pairwise(beside))):
                    return n
        return len(self.entries)

    def _is_unfit(self, call: ToolCall) -> bool:
        """Whether a call was answered that never began, since its input did not fit: that may be beside any other."""
        found = self.tool_calls[call.id]
        return found.answer is not None and found.started is None and found.answer.text != SKIPPED

    def call(self, sent: int) -> RecordedModelCall:
        """What the model call came to that entry ``sent`` begins."""
        begun = self.entries[sent].record
        assert isinstance(begun, records.RequestSent)
        end: int | None = None
        ended: records.RequestEnded | None = None
        message: Message | None = None
        was_shown, kept = False, ""
        over = len(self.entries)
        course = self.courses[begun.agent]
        for n in course[bisect_right(course, sent) :]:
            over = over if n in self.concerned else min(over, n)
            match self.entries[n].record:
                case records.RequestEnded() as found:
                    end, ended, message, was_shown = n, found, found.message, found.was_shown
                case records.Interrupted(what=what):
                    was_shown = was_shown or what == "answering"
                case records.Message(message=said):
                    if said.role == "assistant":
                        kept = said.text  # what was shown, where the reply itself was empty
                        was_shown = was_shown or ended is None
                        message = message or said
                    break
                case records.Compacted(summary=summary) if summary and begun.compacts:
                    message = assistant([Text(summary)])
                    break
                case records.RequestSent() | records.Result():
                    break
                case _:
                    pass
        shown = ("" if message is None else message.text) or kept or SOME_TEXT
        acts = (n for n, agents in self.concerned.items() if sent < n < over and begun.agent in agents)
        silent = (n for n in acts if not self.entries[n].looks.get(begun.agent))
        return RecordedModelCall(end, ended, message, shown if was_shown else "", max(silent, default=None))

    # ------------------------------------------------------------------------------------------------------ questions

    def question(self, id: str) -> records.Question:
        """The question with this id."""
        return self.asked[self._places[id]]

    def preview(self, n: int) -> Preview:
        """What was shown with the question of an entry."""
        asked = self.asked[n]
        return Preview(asked.preview, asked.subject, asked.preview, asked.always, asked.protections, asked.only_by_name)
