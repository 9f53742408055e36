"""Rows of a table, and columns of short entries. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil

from cli.show.text_rows import columns, fitting_count, flat, pad

MOST_BESIDE = 3
CELL_GAP = 2
"""Columns between two cells."""
LEAST = 20
"""The minimum columns for a long last cell beside the other cells. With fewer, the cell continues below them."""
BELOW = 6
"""The indentation of a last cell that continues below the other cells."""


def table(rows: Iterable[Sequence[str]], width: int, indent: str = "  ") -> list[str]:
    """Return a table as rows with aligned cells. A long last cell is wrapped at spaces, and its rows are aligned."""
    every = [[flat(cell) for cell in row] for row in rows]
    widths = [max(map(columns, cells)) for cells in zip(*every, strict=True)]
    found = []
    for *first, last in every:
        head = indent + "".join(f"{pad(cell, room)}{' ' * CELL_GAP}" for cell, room in zip(first, widths, strict=False))
        hangs = columns(head) if width - columns(head) >= LEAST else BELOW
        parts = _fold(last, width - columns(head), width - hangs)
        found += [(head + parts[0]).rstrip(), *(" " * hangs + part for part in parts[1:])]
    return found


def side_by_side(entries: Sequence[tuple[str, str]], width: int, term: int, text: int) -> list[str]:
    """Return entries side by side, in as many columns as fit, at most ``MOST_BESIDE``.

    ``term`` and ``text`` are the widths of the two parts of an entry.
    """
    cell = term + CELL_GAP + text
    beside = max(min((width + CELL_GAP) // (cell + CELL_GAP), MOST_BESIDE), 1)
    if beside == 1:
        return table(entries, width, indent="")
    rows = ceil(len(entries) / beside)
    cells = [pad(name, term) + " " * CELL_GAP + pad(about, text) for name, about in entries]
    return [(" " * CELL_GAP).join(cells[n::rows]).rstrip() for n in range(rows)]


def _fold(text: str, first: int, others: int) -> list[str]:
    """Cut a text at spaces into parts, and return them.

    The first part has at most ``first`` columns and may be empty. The other parts have at most ``others`` columns.
    """
    parts, room = [""], first
    for word in text.split(" "):
        longer = f"{parts[-1]} {word}" if parts[-1] else word
        if columns(longer) <= room:
            parts[-1] = longer
        elif len(parts) == 1 and not parts[-1] and columns(word) > others:
            parts[-1] = word  # it fits nowhere, so it stays where it is and is cut like any long row
        else:
            room = others
            while columns(word) > room:
                end = fitting_count(word, room)
                parts.append(word[:end])
                word = word[end:]
            parts.append(word)
    return parts
