"""The command that a mistyped word was probably meant to be. Pure."""

from __future__ import annotations

from collections.abc import Iterable

MOST = 2
"""Edits that turn a mistyped word into a command. Of a short command they are at most half of its letters, or any other
short word would be one."""

GREETINGS = ("hello", "hey")
"""What people say first, which is as near to ``help`` as many a slip of the finger."""


def nearest_command(word: str, commands: Iterable[str]) -> str | None:
    """The command that a word was probably meant to be; ``None`` if none is near."""
    typed = word.casefold()
    if typed in GREETINGS:
        return None
    distance, near = min((edits(typed, command), command) for command in commands)
    return near if distance <= min(MOST, len(near) // 2) else None


def edits(one: str, other: str) -> int:
    """The edit distance of two words: letters that are inserted, left out or replaced."""
    if abs(len(one) - len(other)) > MOST:
        return abs(len(one) - len(other))  # at least; a pasted text may be long
    row = list(range(len(other) + 1))
    for n, char in enumerate(one, start=1):
        before, row = row, [n]
        for m, wanted in enumerate(other, start=1):
            row.append(min(before[m] + 1, row[m - 1] + 1, before[m - 1] + (char != wanted)))
    return row[-1]
