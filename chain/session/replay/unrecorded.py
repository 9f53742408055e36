"""What is not on record and follows from what is: how far calls were when a user kept them from more. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Literal

from chain import records
from chain.session.replay.script import Script


class Unrecorded:
    """What a script does not tell."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._unseen = [id for id in script.calls if script.is_unseen(id)]
        self.quick = {n for id in script.calls for stretch in self._quick(id) for n in stretch}
        """The entries by which answers had come to the disk."""

    def keeps_from(self, n: int) -> Literal["", "starting", "ending"]:
        """What a user keeps calls from by what an entry tells of."""
        match self._script.entries[n].record:
            case records.Interrupted(by="user") | records.Line(urgency="now"):
                return "ending"
            case records.Line(kind="stop") | records.Line(urgency="urgent"):
                return "starting"
            case _:
                return ""

    def begun(self, n: int) -> Iterator[tuple[str, str]]:
        """The calls that failed unseen, and had begun by what kept others from that at an entry; with their agents."""
        for id in self._unseen:
            called, agent = self._script.calls[id]
            if called < n < self._script.ends[id]:
                yield id, agent

    def cuts_tools(self, n: int) -> bool:
        """Whether the line at an entry cut tools, or the look at what they would do."""
        line = self._script.entries[n].record
        if isinstance(line, records.Line) and line.urgency == "now":
            for record in self._script.of(line.agent, n):
                if isinstance(record, records.Interrupted):
                    return record.what == "tools" and record.by == "line"
                if isinstance(record, records.RequestSent):
                    break
        return False

    def _quick(self, call_id: str) -> Iterator[range]:
        """The stretches from an answer to what would have cut the call that had asked, had it still waited for it."""
        script = self._script
        if script.fault(call_id) or script.result(call_id) is not None:
            for answer in script.answers(call_id):
                first, last = (bisect_left(script.users, n) for n in (answer, script.ends[call_id]))
                for n in script.users[first:last]:
                    record = script.entries[n].record
                    is_of_another = isinstance(record, records.Line) and record.agent != script.calls[call_id][1]
                    if self.keeps_from(n) == "ending" and not is_of_another:
                        yield range(answer + 1, n + 1)
