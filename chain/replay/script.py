"""What one process recorded, for those who run it again: each agent's own course, and what came of each call. Pure.

An agent's course is what it did, and what was done to it from outside, in their order. What came from outside is an
*act*; its record says how often each agent had looked for such things before it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class RecordedCall:
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
        self.started: dict[str, int] = {}
        """By tool calls, the entries that start them."""
        self.finished: dict[str, int] = {}
        """By tool calls, the entries that end them."""
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
        self._results: dict[str, tuple[int, ToolResult]] = {}
        self._questions: defaultdict[str, list[int]] = defaultdict(list)
        self._begun: dict[str, int] = {}
        """By tool calls, the entries of the agents that they start, or of what they change of the plan."""
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
            case records.RunBegun() | records.Model() | records.CompactionAsked():
                concerned = (MAIN,)
            case records.RequestSent():
                self.left_to_chance = min(self.left_to_chance, self._asking.get(agent, len(self.entries)))
                self._asking[agent] = n
            case records.RequestEnded():
                self._asking.pop(agent, None)
            case records.Interrupted(by=by):
                self._asking.pop(agent, None)
                concerned = self._below(MAIN) if by == "user" else (record.agent,) if by == "time" else ()
            case records.TaskAdded() | records.TaskClosed() | records.PlanReplaced():
                self.has_plan = True
                if record.line_id:
                    return
                agent = MAIN if record.by == "user" else record.by
                concerned = (MAIN, *self._parents) if record.by == "user" else (record.by,)
                self._begun.update((call, n) for call in self._running[agent] if record.by != "user")
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
                self._questions[call].append(n)
            case records.Message(message=message):
                self._results.update({result.id: (n, result) for result in message.results})
                self._running[record.agent].clear()
            case records.ToolStarted(id=id):
                self.started[id] = n
                self._running[record.agent].add(id)
                if len(self._running[record.agent]) > 1:
                    self.left_to_chance = min(self.left_to_chance, n)
            case records.ToolFinished(id=id):
                self.finished[id] = n
                self._running[record.agent].discard(id)
            case records.AgentStarted(name=name, parent_id=call):
                self._parents[name] = record.agent
                self._begun[call] = n
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
        _, result = self._results.get(call.id, (0, None))
        return result is not None and call.id not in self.started and result.text != SKIPPED

    def call(self, sent: int) -> RecordedCall:
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
        text = ("" if message is None else message.text) or kept
        silent = [
            n
            for n, agents in self.concerned.items()
            if sent < n < over and begun.agent in agents and not self.entries[n].looks.get(begun.agent)
        ]
        return RecordedCall(end, ended, message, (text or SOME_TEXT) if was_shown else "", max(silent, default=None))

    # ---------------------------------------------------------------------------------------------------------- tools

    def result(self, call_id: str) -> ToolResult | None:
        """What became of a tool call, if its tool gave a result that is known; ``None`` for one that was cut off."""
        at = self.finished.get(call_id)
        if at is None:
            return None
        finished = self.entries[at].record
        assert isinstance(finished, records.ToolFinished)
        _, found = self._results.get(
            call_id, (at, ToolResult(call_id, finished.text, finished.is_error, finished.images))
        )
        return None if found.is_error and found.text == INTERRUPTED else found

    def fault(self, call_id: str) -> str:
        """Why a call failed before its tool was started; empty if it did not fail, or was only skipped."""
        _, found = self._results.get(call_id, (0, None))
        is_fault = found is not None and found.is_error and found.text != SKIPPED and call_id not in self.started
        return found.text if found is not None and is_fault else ""

    def answered(self, call_id: str) -> int | None:
        """The entry of the message with the result of a call."""
        return self._results[call_id][0] if call_id in self._results else None

    def approval(self, call_id: str) -> int | None:
        """The entry of what was asked before a call started."""
        start = self.started.get(call_id, len(self.entries))
        return next((n for n in self._questions.get(call_id, ()) if n < start), None)

    def questions(self, call_id: str) -> Sequence[int]:
        """The entries of what a running tool asked, in order."""
        start = self.started.get(call_id, len(self.entries))
        return [n for n in self._questions.get(call_id, ()) if n > start]

    def did_first(self, call_id: str) -> int | None:
        """The entry of the first thing that a call did once it was started; ``None``: nothing, until it was cut."""
        asked = self.questions(call_id)
        ended = None if self.result(call_id) is None else self.finished[call_id]
        return asked[0] if asked else self._begun.get(call_id, ended)

    def question(self, id: str) -> records.Question:
        """The question with this id."""
        return self.asked[self._places[id]]

    def preview(self, n: int) -> Preview:
        """What was shown with the question of an entry."""
        asked = self.asked[n]
        return Preview(asked.preview, asked.subject, asked.preview, asked.always, asked.protections, asked.only_by_name)
