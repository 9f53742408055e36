"""What a result of ``research`` shows of each source, within a limit that the sources share. Pure.

Of a source that was read come its title and its beginning, then the places that fit best, each with its neighbours; of
a source alone comes as much of its text as there is room for. A row is shown once, as ``N: text`` if it fits the topic
and as ``N- text`` if it does not, as grep does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from chain.text.wording import beginning, counted
from chain.tools.research import ranking
from chain.tools.research.ranking import BestFindings, Finding, Judge, Key, Row, ScoredRow

MAX_RESULT = 24_000
"""Characters of what sources say in a result at most, less than the default limit of a tool result."""

BEGINNING = 1_500
"""Characters of a source's beginning: enough to see what it is."""

MAX_OTHER_ROW = 300
"""Characters of a row that is no place: a heading, a note, a neighbour."""

MIN_ROW = 20
"""Characters of a row's beginning that still say something."""


class Beginning:
    """The beginning of a source: of each of its texts in turn, up to the limit of a result."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._left = MAX_RESULT
        self._kept: list[ScoredRow] = []
        self._is_cut = False

    def noted(self, rows: Iterable[Row], where: str) -> Iterator[Row]:
        """Yields the rows of a text, and notes them; the place of one is ``where`` and its number."""
        for index, (n, text) in enumerate(rows):
            if not self._is_cut and not self._judge.ignores(text):
                score = ranking.score(text, self._judge)
                self._kept.append(ScoredRow((where, index), n, text[: self._left], score))
                self._left -= len(text)
                self._is_cut = self._left <= 0
            yield n, text

    def is_whole(self, shown: Collection[Key]) -> bool:
        """Whether these are all rows."""
        return not self._is_cut and len(shown) == len(self._kept)

    def without_beginning(self) -> Beginning:
        """All of the texts or nothing, since the first of many say nothing of the others."""
        return Beginning(self._judge) if self._is_cut else self

    def shown(self, most: int) -> tuple[list[str], dict[Key, bool]]:
        """The rows that have room, and the keys of those of the text, each with whether it fits the topic."""
        rows: list[str] = []
        shown: dict[Key, bool] = {}
        last = ""
        for each in self._kept:
            where = each.key[0]
            new = [*([] if where == last else [f"{where}N"]), _numbered(each, MAX_RESULT)]
            last = where
            if chars_in(new) > most:
                # Of the row for which there is no room its beginning, if that says something.
                room = most - chars_in(new[:-1]) - len("…\n")
                return [*rows, *new[:-1], beginning(new[-1], room)] if room > MIN_ROW else rows, shown
            rows += new
            shown[each.key] = each.score > 0
            most -= chars_in(new)
        return rows, shown


@dataclass(frozen=True, slots=True)
class Report:
    """What became of a source, what was found in it, and notes of what was left out; ``opening`` is its text."""

    name: str
    outcome: str = ""
    title: str = ""
    opening: Beginning | None = None
    found: BestFindings = field(default_factory=BestFindings)
    preferred: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def rows(self, most: int, *, is_alone: bool) -> list[str]:
        """The source's part of a result, in about so many characters."""
        title = [beginning(self.title, min(BEGINNING, most // 2))] if self.title else []
        before = ["", f"## {on_one_row(self.name)}: {self.outcome}", *title]
        left = most - chars_in([*before, *self.notes])
        opening, shown = self._opening(left, is_alone=is_alone)
        places = _places(self.found.best, shown, left - chars_in(opening))
        if places and any(each.is_preferred for each in self.found.best):
            places = [f"First those with {', '.join(self.preferred)} (prefer, from the user's line):", *places]
        more = self.found.total - sum(shown.values())
        rest = [f"({counted(more, 'more place')} not shown.)"] if more > 0 else []
        return [*before, *opening, *places, *rest, *self.notes]

    def _opening(self, most: int, *, is_alone: bool) -> tuple[list[str], dict[Key, bool]]:
        if self.opening is None:
            return [], {}
        if not is_alone:
            return self.opening.shown(min(BEGINNING, most // 2))  # where there is little room, half is for the places
        rows, shown = self.opening.shown(most)
        if self.opening.is_whole(shown):
            return rows, shown
        return self.opening.shown(most - chars_in(_places(self.found.best, {}, most - BEGINNING)))


def rendered(reports: Sequence[Report], most: int = MAX_RESULT) -> list[str]:
    """The rows of a result, in about so many characters. What a source does not need is left to the others."""
    is_alone = sum(report.opening is not None for report in reports) == 1
    whole = [chars_in(report.rows(most, is_alone=is_alone)) for report in reports]
    left, share = most, {}
    for waiting, n in enumerate(sorted(range(len(reports)), key=whole.__getitem__)):
        share[n] = left // (len(reports) - waiting)
        left -= min(share[n], whole[n])
    return [row for n, report in enumerate(reports) for row in report.rows(share[n], is_alone=is_alone)]


def chars_in(rows: Iterable[str]) -> int:
    """The characters of some rows."""
    return sum(len(row) + 1 for row in rows)


def on_one_row(text: str) -> str:
    """A text on one row."""
    return beginning(" ".join(text.split()), MAX_OTHER_ROW)


def _places(findings: Iterable[Finding], shown: dict[Key, bool], most: int) -> list[str]:
    """The places that are not shown yet, each with its neighbours, as far as there is room; adds them to ``shown``."""
    rows: list[str] = []
    for finding in findings:
        if finding.key in shown:
            continue
        new = [(finding.key, True, f"{finding.place}: {finding.text}")]
        near = (each for each in finding.near if each.key not in shown)
        new += [(each.key, each.score > 0, f"  {_numbered(each, MAX_OTHER_ROW)}") for each in near]
        for key, fits, row in new:
            most -= len(row) + 1
            if most < 0:
                return rows
            rows.append(row)
            shown[key] = fits
    return rows


def _numbered(row: ScoredRow, most: int) -> str:
    return f"{row.n}{':' if row.score else '-'} {beginning(row.text, most)}"
