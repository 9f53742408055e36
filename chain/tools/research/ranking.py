"""Ranks the rows of a source by how well they match a topic. Pure.

For each term of the topic, a row scores two if it has the term as a whole word, and one if only as a part of a word.
Rows with a preferred text come first, then rows with a higher score. Rows with an ignored text are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

MAX_TERMS = 32
"""The most terms of a topic that are used. With more terms, nearly every row would match."""

STOP_WORDS = frozenset(
    """a about all also an and any are as at be been but by can could did do does for from had has have how i if in
    into is it its may me my no not of on or our out over should so some than that the their them then there these
    they this those to under up us was we were what when where which while who whom why will with would you your
    find show tell information details""".split()  # noqa: SIM905 - a word on each row would say no more
)
"""Words that are in nearly every row, and words that only ask for a search."""

_WORD = re.compile(r"\w+")


class Row(NamedTuple):
    """A row of a source. ``prefix`` and ``n`` make up its location: for line 12, ``docs/a.md:`` and 12."""

    prefix: str
    n: int
    text: str


class Scorer:
    """Scores rows by the terms of a topic, and finds rows with preferred or ignored texts. Case does not matter."""

    def __init__(self, topic: str, preferred: Iterable[str] = (), ignored: Iterable[str] = ()) -> None:
        self._terms = terms_of(topic)
        self._preferred = [text.casefold() for text in preferred]
        self._ignored = [text.casefold() for text in ignored]

    def score(self, text: str) -> int:
        """Return the score of a row; 0 if it does not match."""
        folded = text.casefold()
        terms = [term for term in self._terms if term in folded]
        words = set(_WORD.findall(folded)) if terms else ()
        return sum(2 if term in words else 1 for term in terms)

    def prefers(self, text: str) -> bool:
        """Return whether a row has a preferred text. Such a row comes before all rows without one."""
        return any(each in text.casefold() for each in self._preferred)

    def ignores(self, row: str) -> bool:
        """Return whether a row contains an ignored text, so that it is left out."""
        return any(each in row.casefold() for each in self._ignored)

    def rank(self, rows: Sequence[Row]) -> list[int]:
        """Return the indices of the rows that match the topic, best first."""
        scores = {n: score for n, row in enumerate(rows) if (score := self.score(row.text))}
        return sorted(scores, key=lambda n: (self.prefers(rows[n].text), scores[n]), reverse=True)

    def position(self, text: str) -> int:
        """Return the index in a row at which the first term of the topic begins; 0 if the row has none."""
        folded = text.casefold()
        return min((folded.find(term) for term in self._terms if term in folded), default=0)


def terms_of(topic: str) -> tuple[str, ...]:
    """Return the words of a topic without stop words; all words if all are stop words; the topic if it has no word."""
    words = tuple(dict.fromkeys(_WORD.findall(topic.casefold())))
    telling = tuple(word for word in words if word not in STOP_WORDS and (len(word) > 1 or not word.isascii()))
    whole = topic.casefold().strip()
    return (telling or words or ((whole,) if whole else ()))[:MAX_TERMS]
