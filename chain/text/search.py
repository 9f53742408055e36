"""Regular expressions from users' files and from models, compiled and searched in bounded time, in any thread.

Python's ``re`` can take time that is exponential in the length of the text, and nothing can interrupt it, because it
holds the interpreter lock. The ``regex`` library supports the same syntax and more, and has a timeout. The timeout
counts processor time, so a busy machine does not make a search fail.

Compiling is bounded too: ``regex`` expands counted repeats, so ``((x?){1000}){1000}`` would fill the memory.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, TypeAlias, TypeVar

if TYPE_CHECKING:
    import regex

    Pattern: TypeAlias = regex.Pattern[str]
    Match: TypeAlias = regex.Match[str]

T = TypeVar("T")

MAX_EXPANDED = 200_000
"""The maximum number of items in all patterns of one file, with counted repeats expanded.

Compiling this many takes about 0.4 s. The rules of the offline model, the largest file that is shipped, have 40,000.
"""


class BadPattern(ValueError):
    """An error for a regular expression that is invalid, or too large when its counted repeats are expanded."""


class TooSlow(Exception):
    """An error for a search that exceeded its time limit. Whether there is a match is unknown."""


class Expressions:
    """A compiler for the regular expressions of one file, with one limit for their total size."""

    def __init__(self) -> None:
        self._left = MAX_EXPANDED

    def compile(self, text: str, *, multiline: bool = False, ignore_case: bool = True) -> Pattern:
        """Compile a pattern. ``multiline``: ``^`` and ``$`` match at the ends of each row. Raise ``BadPattern``."""
        import regex  # imported late, to keep the start fast

        self._left -= expanded_size(text)
        if self._left < 0:
            raise BadPattern(
                "is not a regular expression that can be used: it is too large, with those before it in its file, "
                "once repeats such as (...){1,1000} are written out"
            )
        flags = (regex.IGNORECASE if ignore_case else 0) | (regex.MULTILINE if multiline else 0)
        try:
            # Warnings about syntax that a later version may change would appear on the screen.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return regex.compile(text, flags)
        except (regex.error, MemoryError, OverflowError, RecursionError, ValueError) as error:
            raise BadPattern(f"is not a regular expression: {error}") from None


class SearchBudget:
    """A limit of processor time, in seconds, that several searches share.

    A search raises ``TooSlow`` once the time is used up. ``slowest`` is the pattern of the search that took longest,
    which need not be the last one.
    """

    def __init__(self, seconds: float) -> None:
        self.slowest: Pattern | None = None
        self._left_s = seconds
        self._most_s = 0.0

    def search(self, pattern: Pattern, text: str, max_chars: int) -> Match | None:
        """Return the first match in the first ``max_chars`` characters, or ``None``."""
        return self._timed(pattern, lambda seconds: pattern.search(text, 0, max_chars, timeout=seconds))

    def find_all(self, pattern: Pattern, text: str, max_chars: int) -> list[Match]:
        """Return every match in the first ``max_chars`` characters."""
        return self._timed(pattern, lambda seconds: list(pattern.finditer(text, 0, max_chars, timeout=seconds)))

    def fullmatch(self, pattern: Pattern, text: str, max_chars: int) -> bool:
        """Return whether the pattern matches all of the first ``max_chars`` characters."""
        return self._timed(pattern, lambda seconds: pattern.fullmatch(text, 0, max_chars, timeout=seconds)) is not None

    def _timed(self, pattern: Pattern, search: Callable[[float], T]) -> T:
        """Call ``search`` with the remaining time as its timeout, and return the result.

        The library counts the processor time of all threads. So a search that timed out is repeated until this thread
        itself has used the remaining time. Then raise ``TooSlow``.
        """
        while self._left_s > 0:
            begun = time.thread_time()
            try:
                return search(self._left_s)
            except TimeoutError:
                continue
            finally:
                used_s = time.thread_time() - begun
                self._left_s -= used_s
                if used_s > self._most_s:
                    self.slowest, self._most_s = pattern, used_s
        raise TooSlow


_COUNTED = re.compile(r"(?P<before>.?)\{(?P<times>(?:[\d,\s]|#[^\n]*)*)", re.S)
_COMMENT = re.compile(r"#[^\n]*|\s")


def expanded_size(text: str) -> int:
    """Return an upper bound for the number of items in a pattern once its counted repeats are expanded.

    A repeat after a parenthesis, or after a space, which a verbose pattern ignores, is assumed to repeat a group that
    contains all other such repeats. Any other repeat is assumed to repeat one character. Repeats that are escaped, in a
    comment or in a set count too.
    """
    groups, singles = [1], len(text)
    for repeat in _COUNTED.finditer(text):
        # A number of ten digits exceeds every limit.
        times = max(int(number[:10] or 0) for number in _COMMENT.sub("", repeat["times"]).split(","))
        if repeat["before"] == ")" or repeat["before"].isspace():
            groups.append(max(times, 1))
        else:
            singles += times
    return singles * prod(groups)
