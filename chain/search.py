"""Regular expressions that a user wrote, searched in a time that is bounded.

Python's ``re`` can take time that doubles with each character, and holds the interpreter meanwhile: no task, thread or
key could end it. But it looks for signals now and then, so a timer can.

The timer works in the main thread, where a chain usually runs, and as long as nobody else catches ``SIGVTALRM``.
Elsewhere only ``MAX_SEARCHED`` is left: that bounds what grows with the square of the length, not what doubles.
"""

from __future__ import annotations

import re
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

MAX_SEARCHED = 2_000
"""Characters of a text that are searched: what somebody types has fewer, and what is pasted says little by its end."""

MAX_SEARCH_S = 0.1
"""Seconds of processor time for one search. A good expression needs microseconds, and all else waits meanwhile."""


class TooSlow(Exception):
    """A search took too long; whether there is a match is not known."""


def is_found(pattern: re.Pattern[str], text: str) -> bool:
    """Whether the pattern is in the first ``MAX_SEARCHED`` characters. Raises ``TooSlow``."""
    global _is_searching
    if not _can_be_cut():
        return pattern.search(text, 0, MAX_SEARCHED) is not None
    try:
        _is_searching = True
        # This timer counts the time of the processor: a busy machine makes no search too slow.
        signal.setitimer(signal.ITIMER_VIRTUAL, MAX_SEARCH_S)
        return pattern.search(text, 0, MAX_SEARCHED) is not None
    finally:
        _is_searching = False
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


_is_searching = False
"""Whether the signal means a search; one that comes late must not raise in what follows."""


def _can_be_cut() -> bool:
    if threading.current_thread() is not threading.main_thread():
        return False
    if signal.getsignal(signal.SIGVTALRM) == signal.SIG_DFL:
        # It stays caught from now on: uncaught, a signal that comes late would end the process.
        signal.signal(signal.SIGVTALRM, _cut)
    return signal.getsignal(signal.SIGVTALRM) is _cut


def _cut(signum: int, frame: FrameType | None) -> None:
    global _is_searching
    if _is_searching:
        _is_searching = False
        raise TooSlow
