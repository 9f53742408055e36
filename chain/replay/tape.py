"""The journal of a replay: what the program writes today, compared with what is on record, agent by agent.

Agents that work at the same time may write in another order than they did, so each has a part of the record to itself,
which it follows record by record; so has each line, and each question. Times and usage do not count. How far the replay
has come is known here as well: an act is *marked* when it is done, the rest is written.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeGuard

import trio

from chain.journal import json as record_json
from chain.journal import records
from chain.journal.records import Record, Unknown
from chain.messages import Usage
from chain.model import Window
from chain.replay.script import Script
from chain.text.wording import MAIN

_CARRIED_OUT = ("(Done: ", "(Not done: ")
"""What a message says of a line that code has carried out, or could not."""

_SIDE_BY_SIDE = (records.ToolStarted, records.ToolFinished, records.AgentStarted, records.AgentEnded)


@dataclass(frozen=True, slots=True)
class Difference:
    """The first record that is not as it was: the one on record and that of today, as far as there are both.

    ``why`` is a sentence that says more. ``hangs_on_moment``: they differ in what came and not in what it says, and the
    record leaves open which of two things came first.
    """

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
        """Whether nothing is compared any more."""
        self.sent: dict[str, int] = {}
        """Of each agent, the entry that began its last model call."""
        self.failed: set[str] = set()
        """The agents whose last model call failed: it may be made again after a pause."""
        self._known: dict[str, int] = {}
        """Of each agent, the last entry of a request that was written, which says what is known of the window."""
        self._has_another_model = False
        """Whether the next run asks another model than the last."""
        self._script = script
        self._entries = entries = script.entries
        self._left: defaultdict[str, deque[int]] = defaultdict(deque)
        self._ends: defaultdict[str, deque[int]] = defaultdict(deque)
        """The entries that end an agent's run; another agent of its name may come later."""
        for n, entry in enumerate(entries):
            self._left[_whose(entry.record)].append(n)
            if isinstance(entry.record, records.AgentEnded | records.Result):
                self._ends[getattr(entry.record, "name", MAIN)].append(n)
        self.alone: set[str] = set()
        """The tools whose calls never run beside others."""
        self._missing = dict.fromkeys(range(len(entries)))
        """The entries that were not written yet, in their order."""
        self._is_past = [False] * len(entries)
        """Of each entry, whether it was written, or what it tells of was done."""
        self._all = deque(range(len(entries)))
        self._courses = {agent: deque(course) for agent, course in script.courses.items()}
        self.latest: dict[str, int] = {}
        """Of each agent, the last entry of what it did by itself that was written."""
        self._extra: Record | Unknown | None = None
        self.is_slow = False
        self.synced: trio.Event | None = None

    @property
    def is_over(self) -> bool:
        """Whether all is written, or something else."""
        return self.is_off or self.difference is not None or not self._missing

    @property
    def first(self) -> int:
        """The first entry of all that is left."""
        return next(self.left(self._all), len(self._entries))

    def head(self, agent: str) -> float:
        """The first entry of an agent's course that is left; infinite at its end."""
        return next(self.left(self._courses.get(agent, deque())), math.inf)

    def next_of(self, agent: str) -> Record | Unknown | None:
        """What an agent does next by itself; ``None`` at the end of the record."""
        course = self.left(self._courses.get(agent, deque()))
        return next((self._entries[n].record for n in course if n not in self._script.concerned), None)

    def left(self, some: deque[int]) -> Iterator[int]:
        """Those of some entries that were neither written nor done. The others leave them as they come to the front."""
        while some and self._is_past[some[0]]:
            some.popleft()
        return (n for n in some if not self._is_past[n])

    def mark(self, n: int) -> None:
        """Note that what an entry tells of was done, whether or not that is written."""
        self._is_past[n] = True

    def keep(self, digest: str, content: bytes) -> None:
        """Keep nothing: what a message carries is on record by its digest."""

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
        n = self._found(left, record)
        if n is None:
            self.difference = self._differs(left[0], record)
            return
        left.remove(n)
        del self._missing[n]
        self._is_past[n] = True
        if isinstance(record, records.COURSE):
            self.latest[record.agent] = n
            self.failed.discard(record.agent)
        if _tells_window(record):
            self._known[record.agent] = n
        match record:
            case records.RequestSent(agent=agent):
                self.sent[agent] = n
            case records.RequestEnded(agent=agent, error=error, message=message) if error or message is not None:
                self.failed.add(agent)
            case records.AgentEnded(name=agent):
                self.failed.discard(agent)
                self._known.pop(agent, None)
            case records.Result():
                self.failed.discard(MAIN)
            case records.Model():
                self._has_another_model = True
            case records.RunBegun() if self._has_another_model:
                self._has_another_model = False
                self._known.pop(MAIN, None)
            case _:
                pass

    def window(self, agent: str) -> Window | None:
        """The window of an agent's model, as far as it was known: as this run's next request says, or else the last."""
        known, end = self._known.get(agent), next(self.left(self._ends[agent]), math.inf)
        for n in self._left[agent]:
            if known is not None and n > end:
                break
            if _tells_window(self._entries[n].record):
                known = n
                break
        last = None if known is None else self._entries[known].record
        return Window(last.window, last.longest_reply) if _tells_window(last) and last.window else None

    async def sync(self) -> None:
        """Sync, which takes until the player sets ``synced`` if the disk ``is_slow``."""
        if self.is_slow and not self.is_over:
            self.synced = trio.Event()
            await self.synced.wait()

    def miss(self, n: int | None = None, why: str = "") -> None:
        """Note as the difference that an entry never comes, by default the first that is left."""
        if self.difference is None:
            missing = next(iter(self._missing)) if n is None else n
            self.difference = self._differs(missing, self._extra, why)

    def _found(self, left: Iterable[int], record: Record | Unknown) -> int | None:
        """The entry that a record repeats: the next one. Calls that run side by side begin and end in any order."""
        wanted = _compared(record)
        for n in left:
            other = self._entries[n].record
            if _compared(other) == wanted:
                return n
            if not (isinstance(record, _SIDE_BY_SIDE) and isinstance(other, _SIDE_BY_SIDE)):
                return None
        return None

    def _differs(self, n: int, today: Record | Unknown | None, why: str = "") -> Difference:
        recorded = self._entries[n].record
        agent = str(getattr(recorded, "agent", MAIN))
        sent = self._entries[self.sent[agent]].record if agent in self.sent else None
        begun = sent.iteration if isinstance(sent, records.RequestSent) else 0
        n_th = max(begun, int(getattr(recorded, "iteration", 0)))
        before, now = _compared(recorded), None if today is None else _compared(today)
        chance = min(self._script.left_to_chance, self._script.first_batch(self.alone))
        raced = chance <= n and not _says_another(before, now, has_plan=self._script.has_plan)
        return Difference(agent, n_th, before, now, why, raced)


def _says_another(recorded: Record | Unknown, today: Record | Unknown | None, *, has_plan: bool) -> bool:
    """Whether two records are of the same thing, and differ in what they say of it, as by another prompt.

    ``has_plan``: the plan was changed. A request may tell of that in its tail, and a message by what became of a line.
    """
    match recorded, today:
        case records.Line(), records.Line():
            return replace(recorded, effect=today.effect, agent=today.agent) != today
        case records.RequestSent(), records.RequestSent():
            if has_plan:
                recorded, today = replace(recorded, tail=()), replace(today, tail=())
            return (recorded.iteration, recorded.attempt) == (today.iteration, today.attempt) and recorded != today
        case records.Message(), records.Message():
            tells_of_plan = has_plan and any(done in recorded.message.text for done in _CARRIED_OUT)
            is_of_the_same = replace(recorded, message=today.message, source=today.source) == today
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
        case records.Interrupted(by="user" | "exit"):
            return "user"
        case _ if isinstance(record, records.ACTS):
            return "user"
        case _:
            return str(getattr(record, "agent", MAIN))


def _tells_window(record: Record | Unknown | None) -> TypeGuard[records.RequestSent | records.RequestEnded]:
    """Whether the record of a request says what was known of the window: one that failed does not."""
    return isinstance(record, records.RequestSent) or (isinstance(record, records.RequestEnded) and not record.error)


def _compared(record: Record | Unknown) -> Record | Unknown:
    match record:
        case records.Session():
            return records.Session("", "", "", "", repaired=record.repaired)
        case records.Answer():
            return replace(record, is_for_always=False)  # it depends on the version, and allows nothing by itself
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
        case records.Result(status=status) if status.startswith("cancelled"):
            # It may begin with as much of a reply as had been shown then, which is not on record if the rest came too.
            return replace(record, usage=Usage(), result="")
        case records.Compacted():
            return replace(record, tokens_before=0, tokens_after=0)
        case records.RequestEnded():
            return replace(record, usage=Usage(), window=0, longest_reply=0, delay_s=0.0)
        case records.RequestSent():
            return replace(record, window=0, longest_reply=0)
        case records.AgentEnded() | records.Result() | records.Interrupted():
            return replace(record, usage=Usage())
        case _:
            return record
