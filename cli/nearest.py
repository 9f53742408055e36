"""The command that a mistyped word was probably meant to be. Pure."""

from __future__ import annotations

from collections.abc import Iterable

MOST = 2
"""Edits that turn a mistyped word into a command. In a short command they are fewer, or any other short word would be
one."""

GREETINGS = ("hello", "hey")
"""What people say first, which is as near to ``help`` as many a slip of the finger."""


def nearest_command(word: str, commands: Iterable[str], *, letters: int = 2) -> str | None:
    """Return the command that a word was probably meant to be; ``None`` if none is near.

    For each edit the command must have so many ``letters``.
    """
    typed = word.casefold()
    if typed in GREETINGS:
        return None
    distance, near = min(((edits(typed, command), command) for command in commands), default=(MOST, ""))
    return near if distance <= min(MOST, len(near) // letters) else None


def edits(one: str, other: str) -> int:
    """Return the edit distance of two words: letters that are inserted, left out, replaced or swapped."""
    if abs(len(one) - len(other)) > MOST:
        return abs(len(one) - len(other))  # at least; a pasted text may be long
    above, before, row = [0], [0], list(range(len(other) + 1))
    for n, char in enumerate(one, start=1):
        above, before, row = before, row, [n]
        for m, wanted in enumerate(other, start=1):
            row.append(min(before[m] + 1, row[m - 1] + 1, before[m - 1] + (char != wanted)))
            if n > 1 and m > 1 and (char, one[n - 2]) == (other[m - 2], wanted):
                row[m] = min(row[m], above[m - 2] + 1)
    return row[-1]
