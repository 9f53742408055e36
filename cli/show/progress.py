"""What a running tool says, shown without a flood. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from chain.text.wording import counted

FIRST = 20
"""Rows that are shown as they come."""
LAST = 5
"""Rows that are shown of what comes after those: while the tool runs as far as that goes, and at its end."""


class Progress:
    """The rows of one tool call."""

    def __init__(self) -> None:
        self._shown = 0
        self._later = 0
        self._last: deque[str] = deque(maxlen=LAST)

    @property
    def last(self) -> list[str]:
        """The latest rows of those that were not shown as they came."""
        return list(self._last)

    def add(self, rows: Sequence[str]) -> list[str]:
        """The rows to show of these."""
        room = max(FIRST - self._shown, 0)
        self._shown += len(rows[:room])
        self._later += len(rows[room:])
        self._last.extend(rows[room:][-LAST:])
        return list(rows[:room])

    def end(self, mark: str) -> list[str]:
        """The rows that are left to show when the tool has ended."""
        left_out = self._later - len(self._last)
        note = [f"{mark} {counted(left_out, 'more line')}"] if left_out else []
        return [*note, *self._last]
