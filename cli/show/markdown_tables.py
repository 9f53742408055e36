"""Tables as rows: cells wrap, and where columns would be too narrow to read, a line for each cell. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import TypeAlias

from cli.show.spans import Line, Look, Span, plain, styled, wrap_all
from cli.show.text import columns

Cell: TypeAlias = Sequence[Line]
"""The lines of a cell: one, unless it holds line breaks."""

LONGEST_WORD = 12
"""Columns that the longest word of a column may claim; a longer one, such as an address, is cut."""


def table_rows(
    head: Sequence[Cell], body: Sequence[Sequence[Cell]], aligned: Sequence[str], *, width: int, look: Look
) -> list[Line]:
    """The rows of a table. ``aligned`` has ``left``, ``center``, ``right`` or nothing for each column."""
    bold = [[styled("1", line) for line in cell] for cell in head]
    between = 3 * (len(head) - 1)
    every = [bold, *body]
    natural = [max(_width(row[n]) for row in every) for n in range(len(head))]
    least = [min(max(_longest_word(row[n]) for row in every), LONGEST_WORD) for n in range(len(head))]
    if sum(least) + between > width:
        return _stacked(bold, body, width)
    return _grid(bold, body, aligned, _widths(natural, least, width - between), look)


def _widths(natural: list[int], least: list[int], room: int) -> list[int]:
    """The columns' widths: narrow columns get what they need, wide ones share the rest."""
    widths = least
    for n in sorted(range(len(natural)), key=lambda n: natural[n] - least[n]):
        open_ones = sum(1 for m in range(len(natural)) if widths[m] < natural[m])
        share = (room - sum(widths)) // max(open_ones, 1)
        widths = [*widths[:n], min(natural[n], widths[n] + share), *widths[n + 1 :]]
    return widths


def _grid(
    head: Sequence[Cell], body: Sequence[Sequence[Cell]], aligned: Sequence[str], widths: list[int], look: Look
) -> list[Line]:
    bar = look.sign(" │ ", " | ")
    rule: Line = [("2", look.sign("─┼─", "-+-").join(look.sign("─", "-") * width for width in widths))]
    cells = [[wrap_all(cell, width) for cell, width in zip(row, widths, strict=True)] for row in (head, *body)]
    # Rows of several lines each would run into one another.
    is_ruled = any(len(cell) > 1 for row in cells[1:] for cell in row)
    rows: list[Line] = []
    for n, row in enumerate(cells):
        if n == 1 or (n > 1 and is_ruled):
            rows.append(rule)
        rows += [_joined(parts, widths, aligned, bar) for parts in zip_longest(*row, fillvalue=[])]
    return rows if body else [*rows, rule]


def _joined(parts: Sequence[Line], widths: list[int], aligned: Sequence[str], bar: str) -> Line:
    row: list[Span] = []
    for n, (part, width, side) in enumerate(zip(parts, widths, aligned, strict=True)):
        free = width - columns(plain(part))
        left = {"right": free, "center": free // 2}.get(side, 0)
        right = free - left if n < len(widths) - 1 else 0
        row += [("2", bar)] * (n > 0) + [("", " " * left), *part, ("", " " * right)]
    return row


def _stacked(head: Sequence[Cell], body: Sequence[Sequence[Cell]], width: int) -> list[Line]:
    """Each row as lines of the form ``head: cell``, with a blank row between two of them."""
    rows: list[Line] = []
    for n, cells in enumerate(body or [[[]] * len(head)]):
        rows += [[]] if n else []
        for name, cell in zip(head, cells, strict=True):
            title = [span for line in name for span in line]
            first, *rest = cell or [[]]
            lines = [[*title, ("", ": "), *first] if title else first, *rest]
            wrapped = wrap_all(lines, width - 2)
            rows += [wrapped[0], *([("", "  "), *row] for row in wrapped[1:])]
    return rows


def _width(cell: Cell) -> int:
    return max((columns(plain(line)) for line in cell), default=0)


def _longest_word(cell: Cell) -> int:
    return max((columns(word) for line in cell for word in plain(line).split()), default=1)
