"""Which rows of a text say most about a topic: pure, and simple enough to be explained in a sentence.

A row scores two for each term of the topic that it has as a whole word and one for each that it has inside a longer
word. The best come first, equals in their order; what contains a preferred text comes before the rest, and what
contains an ignored one is left out.
"""

from __future__ import annotations

import heapq
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, repeat
from typing import NamedTuple, TypeAlias

from chain.tools.file_tree import around

Row: TypeAlias = tuple[int, str]
"""A row of a text, with its number in it. The pieces of a long one have the same."""

Key: TypeAlias = tuple[str, int]
"""What tells a row from all others: where its text is, and how many rows come before it there."""

NEAR = 2
"""Rows before and behind one that are its neighbours: below a heading stands what it is about."""

MAX_TERMS = 32
"""Terms of a topic that count: a topic of more is a text, and every row would match it."""

STOP_WORDS = frozenset(
    """a about all also an and any are as at be been but by can could did do does for from had has have how i if in
    into is it its may me my no not of on or our out over should so some than that the their them then there these
    they this those to under up us was we were what when where which while who whom why will with would you your
    find show tell information details""".split()  # noqa: SIM905 - a word on each row would say no more
)
"""Words that nearly every row has, and those that only say that something is sought."""

_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Judge:
    """What is sought, and what is to come first or to be left out; all of it case folded."""

    terms: tuple[str, ...]
    preferred: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    def ignores(self, row: str) -> bool:
        """Whether a row is left out."""
        return bool(self.ignored) and any(text in row.casefold() for text in self.ignored)


class ScoredRow(NamedTuple):
    """A row of a text, and how much it says about the topic."""

    key: Key
    n: int
    text: str
    score: int


@dataclass(frozen=True, slots=True)
class Finding:
    """A row that matches: where it stands, what of it is shown, how it was judged, and its neighbours."""

    place: str
    text: str
    score: int
    is_preferred: bool = False
    is_ignored: bool = False
    key: Key = ("", 0)
    near: tuple[ScoredRow, ...] = ()


@dataclass(frozen=True, slots=True)
class BestFindings:
    """The best findings, how many there were in all, and how many more were left out because of an ``ignore``."""

    best: tuple[Finding, ...] = ()
    total: int = 0
    ignored: int = 0


def judge(sought: str, preferred: Iterable[str] = (), ignored: Iterable[str] = ()) -> Judge:
    """How rows are judged that are searched for ``sought``."""
    return Judge(terms(sought), tuple(p.casefold() for p in preferred), tuple(i.casefold() for i in ignored))


def terms(topic: str) -> tuple[str, ...]:
    """The words of a topic that say something, or else all; one without words is a term as it stands."""
    words = tuple(dict.fromkeys(_WORD.findall(topic.casefold())))
    telling = tuple(w for w in words if w not in STOP_WORDS and (len(w) > 1 or not w.isascii()))
    whole = topic.casefold().strip()
    return (telling or words or ((whole,) if whole else ()))[:MAX_TERMS]


def score(row: str, judge: Judge) -> int:
    """How much a row says: two for each term that is a word of it, one for each that it only contains."""
    folded = row.casefold()
    inside = [term for term in judge.terms if term in folded]
    if not inside:
        return 0
    words = set(_WORD.findall(folded))
    return sum(2 if term in words else 1 for term in inside)


def findings_in(rows: Iterable[Row], judge: Judge, where: str) -> Iterator[Finding]:
    """The rows that match, also those that are ignored, each with its place: ``where`` and its number."""
    # What is judged is in the middle: the rows that follow it have come as well, or are missing at the end.
    window: deque[ScoredRow | None] = deque([None] * (2 * NEAR + 1), maxlen=2 * NEAR + 1)
    scored = (ScoredRow((where, index), n, text, score(text, judge)) for index, (n, text) in enumerate(rows))
    for newest in chain(scored, repeat(None, NEAR)):
        window.append(newest)
        here = window[NEAR]
        if here is None or not here.score:
            continue
        folded = here.text.casefold()
        at = min((i for term in judge.terms if (i := folded.find(term)) >= 0), default=0)
        yield Finding(
            f"{where}{here.n}",
            around(here.text, at),
            here.score,
            is_preferred=any(text in folded for text in judge.preferred),
            is_ignored=judge.ignores(here.text),
            key=here.key,
            near=tuple(row for row in window if row is not None and row is not here and not judge.ignores(row.text)),
        )


def best(findings: Iterable[Finding], most: int) -> BestFindings:
    """The ``most`` best of the findings and the counts of all. They may be many: only the best are held."""
    total = ignored = 0
    heap: list[tuple[bool, int, int, Finding]] = []
    for order, finding in enumerate(findings):
        if finding.is_ignored:
            ignored += 1
            continue
        total += 1
        # No two have the same order, so findings themselves are never compared.
        heapq.heappush(heap, (finding.is_preferred, finding.score, -order, finding))
        if len(heap) > most:
            heapq.heappop(heap)
    return BestFindings(tuple(entry[-1] for entry in sorted(heap, reverse=True)), total, ignored)
