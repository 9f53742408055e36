"""A terminal emulator with a scrollback.

When it becomes narrower, it cuts its rows, as xterm does. With ``reflows`` it wraps them, as most terminals do.
It does not join wrapped rows again when it becomes wider.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import Any

import pyte
from wcwidth import wcwidth


class Emulator(pyte.Screen):
    """A terminal with a scrollback, six times as fast as ``pyte.HistoryScreen``."""

    def __init__(self, columns: int, lines: int, answer: Callable[[str], None], *, reflows: bool = False) -> None:
        self.scrolled: list[str] = []
        self._reflows = reflows
        self._answer = answer
        super().__init__(columns, lines)

    def write_process_input(self, data: str) -> None:
        """Send the terminal's answer to a query of the program."""
        self._answer(data)

    def select_graphic_rendition(self, *attrs: int, **more: Any) -> None:
        """Set colours. Faint text, which pyte does not support, becomes a colour."""
        super().select_graphic_rendition(*attrs, **more)
        if 2 in attrs and 38 not in attrs and 48 not in attrs:
            self.cursor.attrs = self.cursor.attrs._replace(fg="faint")
        elif 22 in attrs and self.cursor.attrs.fg == "faint":
            self.cursor.attrs = self.cursor.attrs._replace(fg="default")

    def erase_in_display(self, how: int = 0, *args: Any, **more: Any) -> None:
        """Erase. With ``reflows`` move an erased screen to the scrollback, as tmux does."""
        if self._reflows and how in (0, 2) and (how == 2 or (self.cursor.x, self.cursor.y) == (0, 0)):
            self.scrolled += [row for row in self.rows if row]
        super().erase_in_display(how, *args, **more)

    def index(self) -> None:
        """Move down, and store a row that is scrolled off the top."""
        if self.margins is None and self.cursor.y == self.lines - 1:
            self.scrolled.append(self._row(0))
        super().index()

    def draw(self, data: str) -> None:
        """Show text. Unlike pyte, continue after zero-width characters, and wrap wide ones at the right edge."""
        if data.isascii():
            super().draw(data)
            return
        for char in data:
            width = wcwidth(char)
            if width <= 0 and not unicodedata.combining(char):
                self._join(char)
                continue
            if width == 2 and self.cursor.x == self.columns - 1:
                self.cursor.x = self.columns
            super().draw(char)

    def resize(self, lines: int | None = None, columns: int | None = None) -> None:
        """Change the size as xterm does: remove rows below the cursor first, then those at the top."""
        lines, columns = lines or self.lines, columns or self.columns
        if self._reflows and columns < self.columns:
            self._wrap_again(columns)
        leaving = max(0, self.cursor.y + 1 - lines)
        self.scrolled += [self._row(y) for y in range(leaving)]
        kept = {y - leaving: row for y, row in self.buffer.items() if leaving <= y < leaving + lines}
        self.buffer.clear()
        self.buffer.update(kept)
        self.cursor.y -= leaving
        self.lines = lines
        super().resize(lines, columns)
        self.cursor.x = min(self.cursor.x, columns - 1)

    def _wrap_again(self, columns: int) -> None:
        """Wrap rows that are longer than ``columns``. The cursor stays at its character."""
        rows = []
        at = self.cursor.y
        for y in range(self.lines):
            cells = self.buffer[y]
            filled = max((x + 1 for x, cell in cells.items() if cell.data.strip()), default=0)
            if y == self.cursor.y:
                at = len(rows) + self.cursor.x // columns
                filled = max(filled, self.cursor.x)
            rows += [
                {x - start: cells[x] for x in range(start, min(start + columns, max(cells, default=0) + 1))}
                for start in range(0, max(filled, 1), columns)
            ]
        last = next((n for n in range(len(rows) - 1, -1, -1) if any(c.data.strip() for c in rows[n].values())), 0)
        leaving = max(0, max(at, last) + 1 - self.lines)
        self.buffer.clear()
        for y, cells in enumerate(rows):
            self.buffer[y].update(cells)
        self.scrolled += [self._row(y) for y in range(leaving)]
        self.buffer.clear()
        for y, cells in enumerate(rows[leaving : leaving + self.lines]):
            self.buffer[y].update(cells)
        self.cursor.y, self.cursor.x = at - leaving, self.cursor.x % columns

    def _row(self, y: int) -> str:
        return "".join(cell.data for cell in self.cells(y)).rstrip()

    def cells(self, y: int) -> list[pyte.screens.Char]:
        """Return the cells of a visible row. The second cell of a wide character is empty."""
        row = self.buffer[y]
        return [row[x] for x in range(max(row, default=-1) + 1)]

    @property
    def rows(self) -> list[str]:
        """The visible rows as text."""
        return [self._row(y) for y in range(self.lines)]

    def _join(self, char: str) -> None:
        """Add a character without a width, such as a variation selector or joiner, to the previous cell."""
        row, x = self.buffer[self.cursor.y], self.cursor.x - 1
        if x > 0 and not row[x].data:
            x -= 1
        if x >= 0:
            row[x] = row[x]._replace(data=row[x].data + char)
