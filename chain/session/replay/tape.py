"""The journal of a replay: what the program writes today, compared with what is on record, agent by agent.

Agents that work at the same time write in any order, so each has a part of the record to itself, which it follows
record by record; so has each line, and each question. What is left of the record in its own order says what is to come
next. Times and usage do not count.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from chain import record_json, records
from chain.messages import Usage
from chain.records import Entry, Record, Unknown
from chain.wording import MAIN

_SIDE_BY_SIDE = (records.ToolStarted, records.ToolFinished, records.AgentStarted, records.AgentEnded)


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a replay parted from the record: what is on record, and what there was instead, as far as there is any.

    ``why`` says more, as a sentence. ``at`` is the entry of the record.
    """

    at: int
    agent: str
    iteration: int
    recorded: Record | Unknown | None
    today: Record | Unknown | None
    why: str = ""


class Tape:
    """A ``JournalFile`` whose records are compared. A sync waits in ``pause`` until it may end."""

    def __init__(self, entries: Sequence[Entry], pause: Callable[[], Awaitable[None]]) -> None:
        self.difference: Difference | None = None
        self.is_off = False
        """Whether what is written is of no interest any more."""
        self.sent: dict[str, int] = {}
        """Of each agent, the entry that began its last model call."""
        self.failed: set[str] = set()
        """The agents whose last model call failed, and may be made again."""
        self._entries = entries
        self._pause = pause
        self._left: defaultdict[str, deque[int]] = defaultdict(deque)
        for n, entry in enumerate(entries):
            self._left[_whose(entry.record)].append(n)
        self._is_done = [False] * len(entries)
        self._at = 0
        self._extra: Record | Unknown | None = None
        self._accepted = self._acknowledged = 0
        """The lines and answers that were accepted, and of these those that are on the disk."""

    @property
    def next(self) -> int | None:
        """The first entry that was not written yet; ``None`` at the end."""
        while self._at < len(self._entries) and self._is_done[self._at]:
            self._at += 1
        return self._at if self._at < len(self._entries) else None

    def is_done(self, n: int) -> bool:
        """Whether an entry was written."""
        return self._is_done[n]

    def is_due(self, n: int | None) -> bool:
        """Whether an entry is the very next one, and nothing that comes before it waits for the disk."""
        return n is not None and n == self.next and not self.is_off and self._acknowledged == self._accepted

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
        """Wait until what was written may be on the disk."""
        accepted = self._accepted
        if not self.is_off:
            await self._pause()
        self._acknowledged = accepted

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
            case records.Line() | records.Answer():
                self._accepted += 1
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
        return Difference(n, agent, n_th, _compared(recorded), None if today is None else _compared(today), why)


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
            return records.Session("", "", "", "")
        case records.Receipt():
            return replace(record, waited_s=None)
        case records.Message(source=source):
            return replace(record, source=source.partition(":")[0])  # wherever its file is
        case records.ToolFinished():
            return replace(record, seconds=0.0, text="")  # the message of results has it
        case records.RequestEnded() | records.AgentEnded() | records.Result():
            return replace(record, usage=Usage())
        case _:
            return record
