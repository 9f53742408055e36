"""The first difference between a journal and what a model would be told today, in rows. Pure."""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from chain.journal import records
from chain.journal.records import Entry
from chain.text.wording import counted

DIFFERENCE_CONTEXT = 2
"""Rows of both sides around those that differ."""

NOTHING = ("(nothing)",)


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference: the agent, the iteration (0 outside of one), what differs in words, and the rows of both sides."""

    agent: str
    iteration: int
    what: str
    recorded: Sequence[str]
    today: Sequence[str]

    @property
    def rows(self) -> tuple[str, ...]:
        """Where it is, then both sides."""
        at = f"{self.agent}, iteration {self.iteration}" if self.iteration else self.agent
        sides = difflib.unified_diff(self.recorded, self.today, "recorded", "today", lineterm="", n=DIFFERENCE_CONTEXT)
        return (f"The first difference ({at}): {self.what}.", *(row for row in sides if not row.startswith("@@")))


_PARTS = {
    "system": "another system prompt",
    "tools": "other tools",
    "tail": "other instructions at its end",
    "overrides": "other settings",
}


def request_difference(recorded: records.RequestSent, today: records.RequestSent) -> Difference:
    """Return the difference between two requests that differ."""
    found = [words for name, words in _PARTS.items() if getattr(recorded, name) != getattr(today, name)]
    rows = [_request_rows(each) for each in (recorded, today)]
    return Difference(recorded.agent, recorded.iteration, f"the request has {' and '.join(found)}", *rows)


def _request_rows(request: records.RequestSent) -> list[str]:
    settings = {name: value for name, value in asdict(request.overrides).items() if value is not None}
    rows = [f"system: {request.system}", f"tools: {request.tools}"]
    rows += [f"overrides: {json.dumps(settings, ensure_ascii=False)}"] if settings else []
    return rows + [row for text in request.tail for row in ("tail:", *(f"  {row}" for row in text.splitlines()))]


def line_difference(recorded: records.Line, today: records.Line) -> Difference:
    """Return the difference between two records of a line."""
    rows = [[*a.text.splitlines(), f"kind: {a.kind}", f"urgency: {a.urgency}"] for a in (recorded, today)]
    return Difference(recorded.agent, recorded.iteration, "a line is another", *rows)


def describe_same(entries: Iterable[Entry], *, is_whole: bool) -> str:
    """Say that nothing differs, and how many records of each type there are.

    If the journal is not whole, what comes after the first gap was not compared.
    """
    found = Counter(type(e.record) for e in entries)
    things = {
        "run": records.Result,
        "model call": records.RequestSent,
        "tool call": records.ToolStarted,
        "line": records.Line,
    }
    same = "The same" if is_whole else "The same as far as the journal can be read"
    return f"{same}: {', '.join(counted(found[kind], thing) for thing, kind in things.items())}."
