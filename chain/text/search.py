"""Regular expressions from a user's files and from models, compiled and searched in bounded time, in any thread.

Python's ``re`` can take time that doubles with each character, and holds the interpreter meanwhile: no task, thread,
key or signal could end it. The ``regex`` library supports the same language, and more, and has a timeout. The timeout
counts processor time, so a busy machine makes no search too slow.

Compiling has to be bounded as well: ``regex`` expands counted repeats, so that ``((x?){1000}){1000}`` would fill the
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

MAX_EXPANDED = 200_000
"""Items that the expressions of one file may have once their counted repeats are expanded; compiling that many takes
about 0.4 s. The offline model, the largest file that is shipped, has 40,000."""


class BadPattern(ValueError):
    """A text is no regular expression, or too large a one; the message says what is wrong with it."""


class TooSlow(Exception):
    """Searching exceeded its time; whether there is a match is not known."""


class Expressions:
    """Compiles the expressions of one file."""

    def __init__(self) -> None:
        self._left = MAX_EXPANDED

    def compile(self, text: str, *, multiline: bool = False, ignore_case: bool = True) -> Pattern:
        """The pattern; with ``multiline`` ``^`` and ``$`` are the ends of a row. Raises ``BadPattern``."""
        import regex  # only where there are patterns, so that the prompt does not wait for the import

        self._left -= expanded_size(text)
        if self._left < 0:
            raise BadPattern(
                "is not a regular expression that can be used: it is too large, with those before it in its file, "
                "once repeats such as (...){1,1000} are written out"
            )
        flags = (regex.IGNORECASE if ignore_case else 0) | (regex.MULTILINE if multiline else 0)
        try:
            # Syntax that a later version may change is no mistake today, and a warning would appear on the screen.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return regex.compile(text, flags)
        except (regex.error, MemoryError, OverflowError, RecursionError, ValueError) as error:
            raise BadPattern(f"is not a regular expression: {error}") from None


class SearchBudget:
    """The processor time, in seconds, that several searches share. When it is spent they raise ``TooSlow``.

    ``slowest`` is the pattern that used most of it, which need not be the last one that was searched for.
    """

    def __init__(self, seconds: float) -> None:
        self.slowest: Pattern | None = None
        self._left_s = seconds
        self._most_s = 0.0

    def search(self, pattern: Pattern, text: str, max_chars: int) -> Match | None:
        """The first match in the first ``max_chars`` characters."""
        return self._timed(pattern, lambda seconds: pattern.search(text, 0, max_chars, timeout=seconds))

    def find_all(self, pattern: Pattern, text: str, max_chars: int) -> list[Match]:
        """Every match in the first ``max_chars`` characters."""
        return self._timed(pattern, lambda seconds: list(pattern.finditer(text, 0, max_chars, timeout=seconds)))

    def fullmatch(self, pattern: Pattern, text: str, max_chars: int) -> bool:
        """Whether the pattern matches all of the first ``max_chars`` characters."""
        return self._timed(pattern, lambda seconds: pattern.fullmatch(text, 0, max_chars, timeout=seconds)) is not None

    def _timed(self, pattern: Pattern, search: Callable[[float], T]) -> T:
        """Search within the time that is left.

        The library's timeout counts the time of all threads, so a search that it ends is repeated until this thread
        has spent its own time: what other threads do must not make an expression too slow.
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
    """How many items a pattern has at most when its counted repeats are expanded.

    The bound holds whatever in the text is escaped, a comment or in a set: a repeat after a bracket (or after a space,
    which means nothing in a verbose pattern) is taken to repeat a group that contains all other such repeats; any other
    repeats one character. A verbose pattern may have spaces and comments inside the braces.
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
