"""Differences between a journal and a replay with today's configuration, as rows of text. Pure."""

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
"""The number of equal rows that are shown before and after the different rows."""

NOTHING = ("(nothing)",)
"""The rows that stand for a missing message."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between the rows of a ``recorded`` text and the rows that ``today``'s configuration gives.

    ``agent`` and ``iteration`` (0: none) say where the difference is, and the phrase ``what`` says what is different.
    """

    agent: str
    iteration: int
    what: str
    recorded: Sequence[str]
    today: Sequence[str]

    @property
    def rows(self) -> tuple[str, ...]:
        """A headline with the agent and the iteration, then the rows of a unified diff of both texts."""
        at = f"{self.agent}, iteration {self.iteration}" if self.iteration else self.agent
        sides = difflib.unified_diff(self.recorded, self.today, "recorded", "today", lineterm="", n=DIFFERENCE_CONTEXT)
        return (f"The first difference ({at}): {self.what}.", *(row for row in sides if not row.startswith("@@")))


_PARTS = {
    "system": "another system prompt",
    "tools": "other tools",
    "tail": "other instructions at its end",
    "overrides": "other settings",
}
"""The compared fields of a request, each with a phrase for a difference in it."""


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
    """Return the difference between a recorded line and the same line with today's kind and urgency."""
    rows = [[*a.text.splitlines(), f"kind: {a.kind}", f"urgency: {a.urgency}"] for a in (recorded, today)]
    return Difference(recorded.agent, recorded.iteration, "a line has another kind or urgency", *rows)


def describe_same(entries: Iterable[Entry], *, is_whole: bool) -> str:
    """Return a sentence that says that nothing differs, and how many runs, calls and lines the journal contains.

    ``is_whole``: the whole journal could be read. Otherwise the sentence says that the comparison is incomplete.
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
