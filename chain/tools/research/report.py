"""Selects what the result of ``research`` shows of each source, within a shared limit. Pure.

For each source, the result shows its title and beginning, then the best places: matches, each with the rows next to it.
If only one source was read, the result shows the source whole, as far as it fits. Each row is shown once, as in grep:
``N: text`` if it matches the topic, ``N- text`` if it does not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from chain.text.wording import pluralize, truncate
from chain.tools.file_tree import excerpt
from chain.tools.research.plan import ResearchPlan
from chain.tools.research.ranking import Row, Scorer

MAX_RESULT = 24_000
"""The most characters for all sources together. This is less than the default limit of a tool result."""

MAX_OPENING = 1_500
"""The most characters of a source's beginning, if several sources were read."""

MAX_PLACES = 12
"""The most matches that are shown of a source: enough to choose the file or page to read."""

CONTEXT_ROWS = 2
"""Rows before and after a match that are shown with it."""

MAX_CONTEXT_ROW = 300
"""The most characters of a row that is not a match: a heading, a note or a row next to a match."""

MIN_ROW = 20
"""The fewest characters to which a row is truncated: a shorter row would say nothing."""


@dataclass(frozen=True, slots=True)
class Source:
    """The content of a source that was read. ``title`` describes the source; ``notes`` say what was left out."""

    rows: Sequence[Row]
    title: str = ""
    notes: Sequence[str] = ()


class Line(NamedTuple):
    """A line of a report. If it shows a row of the source, ``row`` is the row's index; otherwise -1."""

    text: str
    row: int = -1
    is_match: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """The part of a result for one source. ``outcome`` says what was found, or why the source was not read.

    If the source was read, ``opening`` is its beginning, and ``places`` are the best matches, each with the rows next
    to it. Otherwise ``opening`` is ``None``.
    """

    name: str
    outcome: str
    opening: Sequence[Line] | None = None
    places: Sequence[Sequence[Line]] = ()
    heading: str = ""
    matches: int = 0
    notes: Sequence[str] = ()

    def render(self, room: int, *, is_alone: bool) -> list[str]:
        """Return the rows for this source, in about ``room`` characters.

        If ``is_alone``, no other source was read, and the opening can use the whole space.
        """
        head = ["", f"## {to_one_row(self.name)}: {self.outcome}"]
        room -= sum(len(row) + 1 for row in (*head, self.heading, _hidden(self.matches), *self.notes))
        opening = self.opening or ()
        if not is_alone:
            opening = _fit(opening, min(MAX_OPENING, room // 2))
        elif _size(opening) > room:
            opening = _fit(opening, room - _size(self._places((), room - MAX_OPENING)))
        places = self._places(opening, room - _size(opening))
        heading = [self.heading] if self.heading and places else []
        hidden = self.matches - sum(line.is_match for line in (*opening, *places))
        end = [_hidden(hidden)] if hidden else []
        return [*head, *(line.text for line in opening), *heading, *(line.text for line in places), *end, *self.notes]

    def _places(self, shown: Iterable[Line], room: int) -> list[Line]:
        lines, seen = list[Line](), {line.row for line in shown}
        for place in self.places:
            if place[0].row not in seen:
                lines += [line for line in place if line.row not in seen]
                seen |= {line.row for line in place}
        return _fit(lines, room)


def report_of(plan: ResearchPlan, name: str, source: Source) -> Report:
    """Return the report of a source that was read."""
    scorer = Scorer(plan.focus or plan.topic, plan.preferred, plan.ignored)
    ignored = [row for row in source.rows if scorer.ignores(row.text)]
    rows = [row for row in source.rows if not scorer.ignores(row.text)] if ignored else source.rows
    matches = scorer.rank(rows)
    opening, best = _all_lines(source.title, rows, {*matches}), matches[:MAX_PLACES]
    is_preferred = any(scorer.prefers(rows[n].text) for n in best)
    left_out = len(scorer.rank(ignored))
    note = f"{pluralize(left_out, 'place')} left out (ignore: {', '.join(plan.ignored)}, from the user's line)."
    focus = f", focus: {to_one_row(plan.focus)}" if plan.focus else ""
    return Report(
        name,
        outcome=f"{pluralize(len(matches), 'place')} found{focus}",
        opening=_fit(opening, 2 * MAX_RESULT),  # more than a result can show; all rows of a short source
        places=[_place(n, rows, scorer) for n in best],
        heading=f"First those with {', '.join(plan.preferred)} (prefer, from the user's line):" if is_preferred else "",
        matches=len(matches),
        notes=[*([note] if left_out else []), *source.notes],
    )


def render(reports: Sequence[Report], room: int = MAX_RESULT) -> list[str]:
    """Return the rows of a result for all sources, in about ``room`` characters.

    Space that one source does not need is given to the other sources.
    """
    is_alone = sum(report.opening is not None for report in reports) == 1
    needed = [len("\n".join(report.render(room, is_alone=is_alone))) + 1 for report in reports]
    shares = [0] * len(reports)
    for waiting, n in enumerate(sorted(range(len(reports)), key=needed.__getitem__)):
        shares[n] = room // (len(reports) - waiting)
        room -= min(shares[n], needed[n])
    return [
        row for report, share in zip(reports, shares, strict=True) for row in report.render(share, is_alone=is_alone)
    ]


def to_one_row(text: str) -> str:
    """Return a text on one row, truncated if it is long."""
    return truncate(" ".join(text.split()), MAX_CONTEXT_ROW)


def _hidden(places: int) -> str:
    return f"({pluralize(places, 'more place')} not shown.)"


def _all_lines(title: str, rows: Sequence[Row], matches: Collection[int]) -> Iterator[Line]:
    """Yield the title and all rows, with a line above the rows of each file or page. The caller uses what fits."""
    if title:
        yield Line(truncate(title, MAX_OPENING))
    for n, row in enumerate(rows):
        if n == 0 or row.prefix != rows[n - 1].prefix:
            yield Line(f"{row.prefix}N")
        yield _line(n, row, is_match=n in matches)


def _place(n: int, rows: Sequence[Row], scorer: Scorer) -> list[Line]:
    """Return the line of the match ``n``, then the lines of the rows next to it."""
    prefix, number, text = rows[n]
    lines = [Line(f"{prefix}{number}: {excerpt(text, scorer.position(text))}", n, is_match=True)]
    for k in range(max(n - CONTEXT_ROWS, 0), min(n + CONTEXT_ROWS + 1, len(rows))):
        if k != n and rows[k].prefix == prefix:
            line = _line(k, rows[k], is_match=scorer.score(rows[k].text) > 0)
            lines.append(line._replace(text=f"  {truncate(line.text, MAX_CONTEXT_ROW)}"))
    return lines


def _line(n: int, row: Row, *, is_match: bool) -> Line:
    return Line(f"{row.n}{':' if is_match else '-'} {row.text}", n, is_match)


def _fit(lines: Iterable[Line], room: int) -> list[Line]:
    """Return the lines that fit into ``room`` characters, then the beginning of the first line that does not."""
    fitting = list[Line]()
    for line in lines:
        if len(line.text) >= room:
            return [*fitting, Line(truncate(line.text, room - 2))] if room > MIN_ROW else fitting
        fitting.append(line)
        room -= len(line.text) + 1
    return fitting


def _size(lines: Iterable[Line]) -> int:
    return sum(len(line.text) + 1 for line in lines)
