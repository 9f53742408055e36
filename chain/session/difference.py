"""The first difference between a journal and the requests that would be sent today, in rows. Pure."""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from chain.journal import records
from chain.journal.records import Entry
from chain.text.wording import pluralize

DIFFERENCE_CONTEXT = 2
"""The number of rows that are shown before and after those that differ."""

NOTHING = ("(nothing)",)
"""The rows of a side without content."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between the recorded rows and today's, in an agent and an iteration (0 outside of one).

    ``what`` names the difference in words.
    """

    agent: str
    iteration: int
    what: str
    recorded: Sequence[str]
    today: Sequence[str]

    @property
    def rows(self) -> tuple[str, ...]:
        """The place of the difference, then the rows of both sides."""
        at = f"{self.agent}, iteration {self.iteration}" if self.iteration else self.agent
        sides = difflib.unified_diff(self.recorded, self.today, "recorded", "today", lineterm="", n=DIFFERENCE_CONTEXT)
        return (f"The first difference ({at}): {self.what}.", *(row for row in sides if not row.startswith("@@")))


_PARTS = {
    "system": "another system prompt",
    "tools": "other tools",
    "tail": "other instructions at its end",
    "overrides": "other settings",
}
"""The words for the fields of a request that are compared."""


def request_difference(recorded: records.RequestSent, today: records.RequestSent) -> Difference:
    """Return the difference between two requests that are not equal."""
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
    return Difference(recorded.agent, recorded.iteration, "a line has another kind or urgency", *rows)


def describe_same(entries: Iterable[Entry], *, is_whole: bool) -> str:
    """Return a sentence that nothing differs, with the number of records of each type.

    If the journal is incomplete (not ``is_whole``), records after the first gap were not compared.
    """
    found = Counter(type(e.record) for e in entries)
    things = {
        "run": records.Result,
        "model call": records.RequestSent,
        "tool call": records.ToolStarted,
        "line": records.Line,
    }
    same = "The same" if is_whole else "The same as far as the journal can be read"
    return f"{same}: {', '.join(pluralize(found[kind], thing) for thing, kind in things.items())}."
