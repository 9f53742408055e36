"""Regular expressions that a user's file brings, compiled and searched in bounded time, in any thread.

Python's ``re`` can take time that doubles with each character, and holds the interpreter meanwhile: no task, thread,
key or signal could end it. The ``regex`` library reads the same language, and more, and gives up after a timeout. It
counts processor time, so a busy machine makes no search too slow.

Compiling has to be bounded as well: ``regex`` writes counted repeats out, so that ``((x?){1000}){1000}`` would fill the
memory.
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

MAX_WRITTEN_OUT = 200_000
"""Items that the expressions of one file may have once their counted repeats are written out; it takes about 0.4 s to
compile so many. Those of the offline model, the largest file that is shipped, have 40,000."""


class BadPattern(ValueError):
    """A text that is no regular expression, or one that is too large; the message says what is wrong with it."""


class TooSlow(Exception):
    """Searching took longer than it may; whether there is a match is not known."""


class Expressions:
    """Compiles the expressions of one file, which all ignore case."""

    def __init__(self) -> None:
        self._left = MAX_WRITTEN_OUT

    def compile(self, text: str, *, multiline: bool = False) -> Pattern:
        """The pattern; with ``multiline`` ``^`` and ``$`` are the ends of a row. Raises ``BadPattern``."""
        import regex  # only where there are patterns: a prompt does not wait for it

        self._left -= written_out(text)
        if self._left < 0:
            raise BadPattern(
                "is not a regular expression that can be used: with those before it in this file it is too large, "
                "once repeats such as (...){1,1000} are written out"
            )
        flags = regex.IGNORECASE | (regex.MULTILINE if multiline else 0)
        try:
            # What the library may read otherwise one day is no mistake today, and a warning would be on the screen.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return regex.compile(text, flags)
        except (regex.error, MemoryError, OverflowError, RecursionError, ValueError) as error:
            raise BadPattern(f"is not a regular expression: {error}") from None


class Patience:
    """The processor time, in seconds, that a number of searches share. When it is spent they raise ``TooSlow``.

    ``slowest`` is the pattern that took most of it, which need not be the one that was searched for in the end.
    """

    def __init__(self, seconds: float) -> None:
        self.slowest: Pattern | None = None
        self._left_s = seconds
        self._most_s = 0.0

    def search(self, pattern: Pattern, text: str, most: int) -> Match | None:
        """The first match in the first ``most`` characters."""
        return self._timed(pattern, lambda seconds: pattern.search(text, 0, most, timeout=seconds))

    def matches(self, pattern: Pattern, text: str, most: int) -> list[Match]:
        """Every match in the first ``most`` characters."""
        return self._timed(pattern, lambda seconds: list(pattern.finditer(text, 0, most, timeout=seconds)))

    def is_whole(self, pattern: Pattern, text: str, most: int) -> bool:
        """Whether the pattern matches all of the first ``most`` characters."""
        return self._timed(pattern, lambda seconds: pattern.fullmatch(text, 0, most, timeout=seconds)) is not None

    def _timed(self, pattern: Pattern, search: Callable[[float], T]) -> T:
        """Search within what is left of the time.

        The library's timeout counts the time of every thread, so a search that it ends is begun again until this
        thread has spent its own: what other threads do must not make an expression too slow.
        """
        while self._left_s > 0:
            begun = time.thread_time()
            try:
                return search(self._left_s)
            except TimeoutError:
                continue
            finally:
                took_s = time.thread_time() - begun
                self._left_s -= took_s
                if took_s > self._most_s:
                    self.slowest, self._most_s = pattern, took_s
        raise TooSlow


_COUNTED = re.compile(r"(?P<before>.?)\{(?P<times>(?:[\d,\s]|#[^\n]*)*)", re.S)
_COMMENT = re.compile(r"#[^\n]*|\s")


def written_out(text: str) -> int:
    """How many items a pattern has at most when its counted repeats are written out.

    An upper bound that holds however the text is read, whatever is escaped, a comment or in a set: a repeat after a
    bracket (or after a space, which counts for nothing in a verbose pattern) may repeat a group with all other such
    repeats in it; any other repeats one character. A verbose pattern may have spaces and comments inside the braces.
    """
    groups, singles = [1], len(text)
    for repeat in _COUNTED.finditer(text):
        # Ten digits are beyond every bound already.
        times = max(int(number[:10] or 0) for number in _COMMENT.sub("", repeat["times"]).split(","))
        if repeat["before"] == ")" or repeat["before"].isspace():
            groups.append(max(times, 1))
        else:
            singles += times
    return singles * prod(groups)
