"""Where a cursor goes by one row of the screen, in a line that the editor wraps. Pure.

The editor cuts rows where they are full, and does not look for spaces.
"""

from __future__ import annotations

from cli.show.text import columns, row_starts


def above(line: str, at: int, width: int) -> int | None:
    """The place one row above the place ``at``; ``None`` if that is in the first row."""
    starts = row_starts(line, width)
    row = _row_of(starts, at)
    return None if row == 0 else _place(line, starts, row - 1, columns(line[starts[row] : at]))


def below(line: str, at: int, width: int) -> int | None:
    """The place one row below the place ``at``; ``None`` if that is in the last row."""
    starts = row_starts(line, width)
    row = _row_of(starts, at)
    return None if row == len(starts) - 1 else _place(line, starts, row + 1, columns(line[starts[row] : at]))


def in_last_row(line: str, column: int, width: int) -> int:
    """The place in the last row that is nearest to a column."""
    starts = row_starts(line, width)
    return _place(line, starts, len(starts) - 1, column)


def _row_of(starts: list[int], at: int) -> int:
    return max(n for n, start in enumerate(starts) if start <= at)


def _place(line: str, starts: list[int], row: int, column: int) -> int:
    end = starts[row + 1] - 1 if row + 1 < len(starts) else len(line)
    at = starts[row]
    while at < end and columns(line[starts[row] : at + 1]) <= column:
        at += 1
    return at
