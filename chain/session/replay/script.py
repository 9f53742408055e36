"""What a process recorded, for those who run it again: what became of each call, and what a user did. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Literal

from chain import records
from chain.messages import Message, ToolResult
from chain.plan import Task, changed
from chain.records import Entry
from chain.tools.tool import Preview
from chain.wording import INTERRUPTED, MAIN, SKIPPED

SOME_TEXT = " "
"""Stands for text that was shown and is not on record. It is blank, since what was not is kept."""


@dataclass(frozen=True, slots=True)
class Call:
    """What a model call came to: how it ended (``None``: it was cut), its reply, what was shown of it.

    ``was_answering``: some of it had been shown when the user stopped the agent. ``was_late``: it was shown after that,
    and before the call was cut.
    """

    ended: records.RequestEnded | None
    message: Message | None
    shown: str
    was_answering: bool = False
    was_late: bool = False


@dataclass(frozen=True, slots=True)
class Who:
    """Who does something: an agent, or one of its calls."""

    agent: str
    call_id: str = ""

    def is_part_of(self, other: Who) -> bool:
        """Whether it may be what the other does; no call stands for any."""
        return self.agent == other.agent and (self.call_id == other.call_id or not self.call_id or not other.call_id)


class Script:
    """What one process recorded, with the ``rows`` of the journal before it and the lines in them."""

    def __init__(self, entries: Sequence[Entry], rows: Sequence[bytes], old_lines: Set[str] = frozenset()) -> None:
        self.entries = entries
        self.rows = rows
        self.calls: dict[str, tuple[int, str]] = {}
        """By their ids the entries that make the calls, and the agents whose they are."""
        self.ends: dict[str, int] = {}
        """The entries that first tell what became of the calls."""
        self._old_lines = old_lines
        self._results: dict[str, ToolResult] = {}
        self._finished: dict[str, records.ToolFinished] = {}
        self._started: dict[str, int] = {}
        self._questions: defaultdict[str, list[int]] = defaultdict(list)
        self._answers: dict[str, int] = {}
        self._lines: dict[str, int] = {}
        self._sources: dict[str, str] = {}
        self._handled: set[str] = set()
        self._heard_of: set[str] = set()
        """The calls of which somebody heard, and acted."""
        self._guidance: set[str] = set()
        for n, entry in enumerate(entries):
            self._add(n, entry.record)
            if entry.upon.startswith("tool_"):
                self._heard_of.add(entry.upon.split(" ")[3])
        self._users = [n for n in range(len(entries)) if self._is_by_user(n)]
        self._asked = sorted(n for ns in self._questions.values() for n in ns)

    def _add(self, n: int, record: records.Record | records.Unknown) -> None:
        match record:
            case records.Message(message=message, line_ids=ids, source=source, agent=agent):
                self._results.update({result.id: result for result in message.results})
                self.ends.update({result.id: n for result in message.results if result.id not in self.ends})
                self.calls.update({call.id: (n, agent) for call in message.calls})
                self._sources.update(dict.fromkeys(ids, source))
            case records.ToolStarted(id=id):
                self._started[id] = n
            case records.ToolFinished(id=id):
                self._finished[id] = record
                self.ends.setdefault(id, n)
            case records.Question(tool_call_id=id):
                self._questions[id].append(n)
            case records.Answer(id=id):
                self._answers[id] = n
            case records.Line(id=id, kind=kind):
                self._lines.setdefault(id, n)
                if kind == "guidance":
                    self._guidance.add(id)
            case records.Receipt(id=id, state="handled"):
                self._handled.add(id)
            case _:
                pass

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

    @property
    def is_interactive(self) -> bool:
        """Whether a person could start a run with the lines that waited; it is so where nothing says otherwise."""
        receipts = (entry.record for entry in self.entries if isinstance(entry.record, records.Receipt))
        return not any(each.state == "returned" and each.reason == "max_iterations" for each in receipts)

    def of(self, agent: str, after: int) -> Iterator[records.Record | records.Unknown]:
        """The records of an agent's run after one of them; the end of the run is the last."""
        for n in range(after + 1, len(self.entries)):
            record = self.entries[n].record
            is_end = isinstance(record, records.AgentEnded) and record.name == agent
            is_end = is_end or (isinstance(record, records.Result) and agent == MAIN)
            if is_end or getattr(record, "agent", "") == agent:
                yield record
            if is_end:
                return

    def who(self, n: int) -> Who:
        """Who wrote an entry."""
        match self.entries[n].record:
            case records.ToolStarted(id=id, agent=agent) | records.ToolFinished(id=id, agent=agent):
                return Who(agent, id)
            case records.Question(tool_call_id=id, agent=agent) | records.AgentStarted(parent_id=id, agent=agent):
                return Who(agent, id)
            case records.AgentEnded(name=name):
                return Who(name)
            case records.Line():  # one that moves on at the end of an agent
                later = (entry.record for entry in self.entries[n:])
                return Who(next((each.name for each in later if isinstance(each, records.AgentEnded)), MAIN))
            case records.TaskAdded() | records.TaskClosed() | records.PlanReplaced() | records.PlanRestored() as change:
                return Who(change.by)
            case record:
                return Who(str(getattr(record, "agent", MAIN)))

    def first_of_line(self, id: str) -> int | None:
        """The entry that accepted a line; ``None`` for one of an earlier process."""
        return None if id in self._old_lines else self._lines.get(id)

    # ------------------------------------------------------------------------------------------------------- the user

    def is_user(self, n: int) -> bool:
        """Whether an entry tells of what a user did, which the chain records in the step in which it is done."""
        at = bisect_left(self._users, n)
        return at < len(self._users) and self._users[at] == n

    @property
    def users(self) -> Sequence[int]:
        """All such entries."""
        return self._users

    def _is_by_user(self, n: int) -> bool:
        match self.entries[n].record:
            case records.Line(id=id):
                return self.first_of_line(id) == n
            case records.Answer(by=by, decision=decision):
                return by == "nobody" or (by == "user" and decision != "withdrawn")
            case records.Interrupted(by=by):
                return by == "user"
            case records.Receipt(state=state):
                return state == "dropped"
            case records.Model():
                return True
            case _:
                return False

    # ---------------------------------------------------------------------------------------------------- model calls

    def call(self, sent: int) -> Call:
        """What the model call came to that entry ``sent`` begins."""
        begun = self.entries[sent].record
        assert isinstance(begun, records.RequestSent)
        ended: records.RequestEnded | None = None
        message: Message | None = None
        was_shown = was_answering = was_cut = False
        for record in self.of(begun.agent, sent):
            match record:
                case records.RequestSent():
                    break
                case records.RequestEnded():
                    ended = record
                    message, was_shown = message or record.message, record.was_shown
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
        return Call(ended, message, shown, was_answering, was_cut and not was_answering)

    # ---------------------------------------------------------------------------------------------------------- tools

    def end_of(self, agent: str, after: int) -> int | None:
        """The entry that ends the model call of an agent that is under way at an entry; ``None`` if it was cut."""
        for n in range(after + 1, len(self.entries)):
            record = self.entries[n].record
            if isinstance(record, records.RequestSent) and record.agent == agent:
                return None
            if isinstance(record, records.RequestEnded) and record.agent == agent:
                return n
        return None

    def place_of(self, question: records.Question) -> int | None:
        """The entry of a question."""
        return next((n for n in self._questions[question.tool_call_id] if self._question(n).id == question.id), None)

    def question_before(self, n: int) -> int | None:
        """The entry of the question that was asked before the one at an entry."""
        at = bisect_left(self._asked, n)
        return self._asked[at - 1] if at else None

    def call_of(self, question: int) -> str:
        """The call that asked the question at an entry."""
        return self._question(question).tool_call_id

    def start_of(self, question: int) -> int | None:
        """The entry that starts the call which asked the question at an entry."""
        return self._started.get(self.call_of(question))

    def source_of(self, line: str) -> str:
        """The handler prompt by which a line was delivered; empty where that is not known."""
        return self._sources.get(line, "")

    def result(self, call_id: str) -> ToolResult | None:
        """What became of a tool call, if its tool gave a result that is known; ``None`` for one that was cut off."""
        found, finished = self._results.get(call_id), self._finished.get(call_id)
        if found is None and finished is not None:
            found = ToolResult(call_id, finished.text, finished.is_error)
        is_stub = found is not None and found.is_error and found.text == INTERRUPTED
        return None if is_stub or (finished is None and call_id in self._started) else found

    def fault(self, call_id: str) -> str:
        """Why a call failed before its tool was started; empty if it did not fail, or was only skipped."""
        found = self._results.get(call_id)
        failed = found is not None and found.is_error and call_id not in self._started
        return found.text if failed and found is not None and found.text != SKIPPED else ""

    def is_unseen(self, call_id: str) -> bool:
        """Whether nothing on record tells when a call failed that was never started: nobody acted on hearing of it."""
        return bool(self.fault(call_id)) and call_id not in self._heard_of

    def starts_later(self, call_id: str, n: int) -> bool:
        """Whether a call starts behind an entry."""
        return self._started.get(call_id, n) > n

    def never_begins(self, call_id: str) -> bool:
        """Whether a call was neither started nor asked about, nor failed before: something held it up to its end."""
        is_known = call_id in self._started or bool(self._questions.get(call_id)) or bool(self.fault(call_id))
        return bool(call_id) and not is_known

    def was_cut_after_answer(self, call_id: str) -> bool:
        """Whether a call was cut while the answer to its question was not on the disk yet, so that it never started."""
        asked = self.approval(call_id)
        answer = None if asked is None or call_id in self._started or self.fault(call_id) else self.answer(asked.id)
        return answer is not None and answer.decision != "withdrawn"

    def approval(self, call_id: str) -> records.Question | None:
        """What was asked before a call started."""
        start = self._started.get(call_id, len(self.entries))
        return next((self._question(n) for n in self._questions[call_id] if n < start), None)

    def questions(self, call_id: str) -> Sequence[records.Question]:
        """What a running tool asked, in order."""
        start = self._started.get(call_id, len(self.entries))
        return [self._question(n) for n in self._questions[call_id] if n > start]

    def first_asked(self, call_id: str) -> int | None:
        """The entry of the first question of a running tool."""
        asked = self.questions(call_id)
        return self.place_of(asked[0]) if asked else None

    def preview(self, question: records.Question) -> Preview:
        """What was shown with a question for approval."""
        always: Literal["tool", "subject"] = "subject" if self._is_for_subject(question) else "tool"
        return Preview(question.preview, question.subject, question.preview, always, question.protections)

    def was_always(self, question: records.Question) -> bool:
        """Whether the answer allowed what is like it too: later questions were then answered by that."""
        same = (answer for q, answer in self._later(question) if q.subject == question.subject)
        after = next(same, None)
        return self._allowed_all(question) or (after is not None and after.by == "config")

    def next_question(self, at: int) -> tuple[records.Answer | None, bool] | None:
        """The answer to the first question from an entry on, and whether it came in the step in which that was asked.

        ``None`` if there is no question.
        """
        found = bisect_left(self._asked, at)
        if found == len(self._asked):
            return None
        n = self._asked[found]
        id = self._question(n).id
        return self.answer(id), self._answers.get(id) == n + 1

    def answers(self, call_id: str) -> Iterator[int]:
        """The entries with the answers to what a call asked."""
        ids = (self._question(n).id for n in self._questions.get(call_id, ()))
        return (self._answers[id] for id in ids if id in self._answers)

    def answer(self, question: str) -> records.Answer | None:
        """The answer to a question."""
        n = self._answers.get(question)
        found = None if n is None else self.entries[n].record
        return found if isinstance(found, records.Answer) else None

    def question_of(self, answer: records.Answer) -> records.Question | None:
        """The question that an answer answers."""
        return next((found for found in map(self._question, self._asked) if found.id == answer.id), None)

    @property
    def heard(self) -> frozenset[str]:
        """The guidance that a tool acted on, and that was never delivered."""
        return frozenset(self._guidance & self._handled)

    def _question(self, n: int) -> records.Question:
        found = self.entries[n].record
        assert isinstance(found, records.Question)
        return found

    def _later(self, question: records.Question) -> list[tuple[records.Question, records.Answer | None]]:
        every = map(self._question, self._asked)  # in the order in which they were asked
        number = _number(question)
        return [(q, self.answer(q.id)) for q in every if q.name == question.name and _number(q) > number]

    def _is_for_subject(self, question: records.Question) -> bool:
        """Whether "always" would have been for the subject alone, as far as that made a difference."""
        result = self._results.get(question.tool_call_id)
        is_named = result is not None and f"'{question.name}(" in result.text  # by what would permit it
        return is_named or (self.was_always(question) and not self._allowed_all(question))

    def _allowed_all(self, question: records.Question) -> bool:
        """Whether later calls of the tool were allowed whatever they were for, and none had to be asked about."""
        later = self._later(question)
        by = [answer.by if answer is not None else "user" for _, answer in later]
        return bool(later) and set(by) == {"config"} and any(q.subject != question.subject for q, _ in later)


def _number(question: records.Question) -> int:
    digits = question.id.removeprefix("Q")
    return int(digits) if digits.isascii() and digits.isdecimal() else 0
