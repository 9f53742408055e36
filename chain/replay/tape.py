"""The journal of a replay: what the program writes today, compared with what is on record, agent by agent.

Agents that work at the same time write in any order, so each has a part of the record to itself, which it follows
record by record; so has each line, and each question. Times and usage do not count. How far an agent's course has come
is known here as well: what came from outside is ``done``, the rest is written.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import trio

from chain.journal import json as record_json
from chain.journal import records
from chain.journal.records import Record, Unknown
from chain.messages import Usage
from chain.replay.script import Script
from chain.text.wording import MAIN

MAX_LOOSE = 100
"""How far is looked past what agents side by side have still to do: they are bounded by the configuration."""

_CARRIED_OUT = ("(Done: ", "(Not done: ")
"""What a message says of a line that code has carried out, or could not."""

_SIDE_BY_SIDE = (records.ToolStarted, records.ToolFinished, records.AgentStarted, records.AgentEnded)


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a replay parted from the record: what is on record, and what there was instead, as far as there is any.

    ``why`` says more, as a sentence. ``at`` is the entry of the record. ``hangs_on_moment``: it is of what came, not of
    what it says, and may have hung on which of two things was first.
    """

    at: int
    agent: str
    iteration: int
    recorded: Record | Unknown | None
    today: Record | Unknown | None
    why: str = ""
    hangs_on_moment: bool = False


class Tape:
    """A ``JournalFile`` whose records are compared."""

    def __init__(self, script: Script) -> None:
        self.difference: Difference | None = None
        self.is_off = False
        """Whether what is written is of no interest any more."""
        self.sent: dict[str, int] = {}
        """Of each agent, the entry that began its last model call."""
        self.failed: set[str] = set()
        """The agents whose last model call failed, and may be made again."""
        self._marked: set[int] = set()
        self.loose: set[str] = set()
        """The tools that start agents: their calls begin and end when those do."""
        self._script = script
        self._entries = entries = script.entries
        self._left: defaultdict[str, deque[int]] = defaultdict(deque)
        for n, entry in enumerate(entries):
            self._left[_whose(entry.record)].append(n)
        self._is_done = [False] * len(entries)
        self._at = 0
        self._heads: defaultdict[str, int] = defaultdict(int)
        """Of each agent, where in its course the first entry is that is left."""
        self._extra: Record | Unknown | None = None

    @property
    def next(self) -> int | None:
        """The first entry that was not written yet; ``None`` at the end."""
        while self._at < len(self._entries) and self._is_done[self._at]:
            self._at += 1
        return self._at if self._at < len(self._entries) else None

    def is_done(self, n: int) -> bool:
        """Whether an entry was written."""
        return self._is_done[n]

    def mark(self, n: int) -> None:
        """Note that what an entry tells of was done, whether or not that is written."""
        self._marked.add(n)

    def is_marked(self, n: int) -> bool:
        """Whether what an entry tells of was done."""
        return n in self._marked

    def head(self, agent: str) -> int | None:
        """The first entry of an agent's course that is left; ``None`` at its end."""
        return next(self._left_of(agent), None)

    def is_first(self, agent: str, n: int) -> bool:
        """Whether an entry is the very first that is left of an agent's course."""
        head, course = self._heads[agent], self._script.courses[agent]
        return head < len(course) and course[head] == n

    def has_come_to(self, agent: str, n: int) -> bool:
        """Whether nothing is left of an agent's course before an entry."""
        head = self.head(agent)
        return head is None or head >= n

    def may_ask(self, agent: str, n: int) -> bool:
        """Whether the question of an entry is the next: they are asked one after the other, whoever asks."""
        asked = self._script.asked
        before = bisect_left(asked, n)
        return self.has_come_to(agent, n) and (before == 0 or self._is_done[asked[before - 1]])

    def _left_of(self, agent: str) -> Iterator[int]:
        course = self._script.courses.get(agent, [])
        at = self._heads[agent]
        while at < len(course) and self._is_past(course[at]):
            at += 1
        self._heads[agent] = at
        for n in course[at : at + MAX_LOOSE]:
            if not self._is_past(n) and not self._is_loose(n):
                yield n

    def _is_past(self, n: int) -> bool:
        return self._is_done[n] or n in self._marked

    def _is_loose(self, n: int) -> bool:
        """Whether an entry is of agents at work side by side: which of them is first is followed nowhere."""
        match self._entries[n].record:
            case records.AgentStarted() | records.AgentEnded():
                return True
            case records.ToolStarted(name=name):
                return name in self.loose
            case records.ToolFinished(id=id):
                started = self._entries[self._script.started[id]].record if id in self._script.started else None
                return isinstance(started, records.ToolStarted) and started.name in self.loose
            case _:
                return False

    def append(self, data: bytes) -> None:
        """Compare one record."""
        if self.is_off or self.difference is not None:
            return
        record = record_json.from_json(json.loads(data)).record
        left = self._left[_whose(record)]
        if not left:
            # The program may be ahead of the end of the record, which counts only if something is missing then.
            self._extra = self._extra or record
            return
        found = self._found(left, record)
        if found is None:
            self.difference = self._differs(left[0], record)
            return
        left.remove(found)
        self._is_done[found] = True
        n = found
        self._note(n, record)

    async def sync(self) -> None:
        """All that is written is safe at once."""
        await trio.lowlevel.checkpoint()

    def part(self, n: int, why: str = "") -> None:
        """The replay does not come to an entry of the record."""
        if self.difference is None:
            self.difference = self._differs(n, self._extra, why)

    def _found(self, left: Iterable[int], record: Record | Unknown) -> int | None:
        """The entry that a record is: its agent's next one. Calls that run side by side begin and end in any order."""
        wanted = _compared(record)
        for n in left:
            other = self._entries[n].record
            if _compared(other) == wanted:
                return n
            if not (isinstance(record, _SIDE_BY_SIDE) and isinstance(other, _SIDE_BY_SIDE)):
                return None
        return None

    def _note(self, n: int, record: Record | Unknown) -> None:
        match record:
            case records.RequestSent(agent=agent):
                self.sent[agent] = n
                self.failed.discard(agent)
            case records.RequestEnded(agent=agent, error=error, message=message):
                if error or message is not None:
                    self.failed.add(agent)
            case records.AgentEnded(name=agent):
                self.failed.discard(agent)
            case records.Result():
                self.failed.discard(MAIN)
            case _:
                pass

    def _differs(self, n: int, today: Record | Unknown | None, why: str = "") -> Difference:
        recorded = self._entries[n].record
        agent = str(getattr(recorded, "agent", MAIN))
        sent = self._entries[self.sent[agent]].record if agent in self.sent else None
        begun = sent.iteration if isinstance(sent, records.RequestSent) else 0
        n_th = max(begun, int(getattr(recorded, "iteration", 0)))
        before, now = _compared(recorded), None if today is None else _compared(today)
        says_another = _says_another(before, now, has_plan=self._script.has_plan)
        return Difference(n, agent, n_th, before, now, why, not says_another and self._script.hangs_on_moments(n))


def _says_another(recorded: Record | Unknown, today: Record | Unknown | None, *, has_plan: bool) -> bool:
    """Whether two records are of the same, and say another thing of it, as by another prompt.

    ``has_plan``: the plan was changed, of which a request may tell in its tail, and a message by what became of a line.
    """
    match recorded, today:
        case records.Line(), records.Line():
            return True
        case records.RequestSent(), records.RequestSent():
            if has_plan:
                recorded, today = replace(recorded, tail=()), replace(today, tail=())
            return recorded.iteration == today.iteration and recorded != today
        case records.Message(), records.Message():
            tells_of_plan = has_plan and any(done in recorded.message.text for done in _CARRIED_OUT)
            before = (recorded.point, recorded.line_ids, recorded.skipped)
            is_of_the_same = before == (today.point, today.line_ids, today.skipped)
            return recorded.point is not None and is_of_the_same and not tells_of_plan
        case _:
            return False


def _whose(record: Record | Unknown) -> str:
    """Which part of the record it is in: what an agent did, what became of a line or a question, what the user did."""
    match record:
        case records.TaskAdded() | records.TaskClosed() | records.PlanReplaced() | records.PlanRestored():
            return record.by
        case records.Line(id=id) | records.Receipt(id=id) | records.Question(id=id) | records.Answer(id=id):
            return f"line or question {id}"
        case records.Interrupted(by="user") | records.Model():
            return "user"
        case _:
            return str(getattr(record, "agent", MAIN))


def _compared(record: Record | Unknown) -> Record | Unknown:
    """A record without what may differ."""
    match record:
        case records.Session():
            return records.Session("", "", "", "", repaired=record.repaired)
        case records.Line():
            return replace(record, iteration=0, waiting=0)  # it may come a moment earlier or later
        case records.Receipt(state="dropped"):
            return replace(record, iteration=0)  # likewise
        case records.Receipt():
            return replace(record, waited_s=None)
        case records.Message(source=source):
            return replace(record, source=source.partition(":")[0], waited_s=0.0)  # wherever its file is
        case records.ToolFinished():
            return replace(record, seconds=0.0, text="")  # the message of results has it
        case records.RequestEnded() | records.AgentEnded() | records.Result():
            return replace(record, usage=Usage())
        case _:
            return record
