"""Which rows of a source say most about a topic. Pure.

A row scores two for each term of the topic that it has as a whole word, and one for each that is only part of a word.
Rows with a preferred text come first, then those with the highest score, equals in their order. A row with an ignored
text is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

MAX_TERMS = 32
"""Terms of a topic that count. A topic of more is a text that every row would match."""

STOP_WORDS = frozenset(
    """a about all also an and any are as at be been but by can could did do does for from had has have how i if in
    into is it its may me my no not of on or our out over should so some than that the their them then there these
    they this those to under up us was we were what when where which while who whom why will with would you your
    find show tell information details""".split()  # noqa: SIM905 - a word on each row would say no more
)
"""Words that nearly every row has, and those that only say that something is sought."""

_WORD = re.compile(r"\w+")


class Row(NamedTuple):
    """A row of a source: the beginning of its place (``docs/a.md:``), its number there, and its text."""

    where: str
    n: int
    text: str


class Scorer:
    """What rows are searched for, and which texts in them are preferred or ignored, in any case."""

    def __init__(self, topic: str, preferred: Iterable[str] = (), ignored: Iterable[str] = ()) -> None:
        self._terms = terms_of(topic)
        self._preferred = [text.casefold() for text in preferred]
        self._ignored = [text.casefold() for text in ignored]

    def score(self, text: str) -> int:
        """Return how much a row says about the topic; 0 if it does not match."""
        folded = text.casefold()
        terms = [term for term in self._terms if term in folded]
        words = set(_WORD.findall(folded)) if terms else ()
        return sum(2 if term in words else 1 for term in terms)

    def prefers(self, text: str) -> bool:
        """Return whether a row comes before those with a higher score."""
        return any(each in text.casefold() for each in self._preferred)

    def ignores(self, text: str) -> bool:
        """Return whether a row is left out."""
        return any(each in text.casefold() for each in self._ignored)

    def rank(self, rows: Sequence[Row]) -> list[int]:
        """Return the indices of the rows that match, the best first."""
        scores = {n: score for n, row in enumerate(rows) if (score := self.score(row.text))}
        return sorted(scores, key=lambda n: (self.prefers(rows[n].text), scores[n]), reverse=True)

    def position(self, text: str) -> int:
        """Return where in a row the first of the terms begins."""
        folded = text.casefold()
        return min((folded.find(term) for term in self._terms if term in folded), default=0)


def terms_of(topic: str) -> tuple[str, ...]:
    """Return the words of a topic without stop words, or else all words; a topic without words is a term as a whole."""
    words = tuple(dict.fromkeys(_WORD.findall(topic.casefold())))
    telling = tuple(word for word in words if word not in STOP_WORDS and (len(word) > 1 or not word.isascii()))
    whole = topic.casefold().strip()
    return (telling or words or ((whole,) if whole else ()))[:MAX_TERMS]
