"""Renders the output of a command as a terminal shows it after the command, without colours. Pure."""

from __future__ import annotations

import re

from chain.text.plain import SEQUENCE, UNFINISHED

HEIGHT = 24
"""Rows of the screen, which output can overwrite. Earlier rows have scrolled out. Programs usually assume 24 rows."""

MAX_COLUMNS = 4_096
"""Columns of a row. A longer row scrolls out at once, so that overwriting a row is always cheap."""

_CONTROL = re.compile(rf"(?=[\x00-\x08\x0d-\x1f\x7f-\x9f])({SEQUENCE}|.)")
_NUMBERED = re.compile(r"(?:\x1b\[|\x9b)(\??)(\d{0,4})\d*(?:;(\d{0,4})\d*)?(?:;[\d;]*)?([@-~])")
_OTHER_SCREENS = ("47", "1047", "1049")


class Screen:
    """The rows on the screen of a terminal, and its cursor.

    ``_main`` contains the rows of the main screen while a program uses the alternate screen.
    """

    def __init__(self) -> None:
        self._rows, self._y, self._x = [""], 0, 0
        self._main: list[str] | None = None
        self._saved = (0, 0)
        self._incomplete = ""

    def add(self, text: str) -> str:
        """Process a chunk of output. Return the rows that scrolled out, which later output cannot overwrite."""
        text = (self._incomplete + text).replace("\r\n", "\n")
        begun = UNFINISHED.search(text, max(len(text) - MAX_COLUMNS, 0))
        self._incomplete = "" if begun is None else begun[0]
        parts = _CONTROL.split(text.removesuffix(self._incomplete))
        return "".join(
            self._apply_sequence(part) if n % 2 else self._write(part) for n, part in enumerate(parts) if part
        )

    def end(self) -> str:
        """Return the rows that are on the screen."""
        while self._y < len(self._rows) - 1 and not self._rows[-1]:
            self._rows.pop()
        return "\n".join([*(self._main or ()), *self._rows])

    def _write(self, text: str) -> str:
        first, *more = text.split("\n")
        self._overwrite(first)
        below = len(self._rows) - 1 - self._y
        for line in more[:below]:
            self._y, self._x = self._y + 1, 0
            self._overwrite(line)
        if new := more[below:]:
            self._rows += new
            self._y, self._x = len(self._rows) - 1, len(new[-1])
        is_wide = len(self._rows[self._y]) > MAX_COLUMNS
        count = len(self._rows) if is_wide else max(len(self._rows) - HEIGHT, 0)
        gone = "".join(f"{row}\n" for row in self._rows[:count])
        self._rows, self._y = self._rows[count:] or [""], max(self._y - count, 0)
        if is_wide:
            self._x, gone = 0, gone[:-1]
        return gone if self._main is None else ""

    def _overwrite(self, text: str) -> None:
        row = self._rows[self._y]
        row = row.ljust(self._x) if self._x >= len(row) else row.expandtabs()
        self._rows[self._y] = row[: self._x] + text + row[self._x + len(text) :]
        self._x += len(text)

    def _apply_sequence(self, sequence: str) -> str:
        if len(sequence) == 1 or sequence[-1] == "m":  # colours are left out
            self._x = 0 if sequence == "\r" else max(self._x - (sequence == "\b"), 0)
            return ""
        y, x, row, found = self._y, self._x, self._rows[self._y], _NUMBERED.fullmatch(sequence)
        private, first, second, kind = found.groups() if found else ("", "", "", sequence)
        n, m = max(int(first or 1), 1), max(int(second or 1), 1)
        moves = {"A": (y - n, x), "B": (y + n, x), "C": (y, x + n), "D": (y, x - n), "E": (y + n, 0), "F": (y - n, 0)}
        moves |= {"G": (y, n - 1), "H": (n - 1, m - 1), "f": (n - 1, m - 1), "u": self._saved, "\x1b8": self._saved}
        if kind in moves:
            self._move_cursor(*moves[kind])
        elif kind in ("s", "\x1b7"):
            self._saved = (y, x)
        elif kind == "K":
            self._rows[y] = "" if first == "2" else " " * (x + 1) + row[x + 1 :] if first == "1" else row[:x]
        elif kind == "J" and first in ("", "0"):
            self._rows[y:] = [row[:x]]
        elif kind == "J" and first == "2":
            self._rows = [""] * (y + 1)
        elif private and first in _OTHER_SCREENS and kind in "hl":
            main = self._main or self._rows
            self._rows, self._main = ([""], main) if kind == "h" else (main, None)
            self._move_cursor(len(self._rows) - 1, len(self._rows[-1]))
        return ""

    def _move_cursor(self, y: int, x: int) -> None:
        self._y, self._x = max(min(y, HEIGHT - 1), 0), max(min(x, MAX_COLUMNS), 0)
        self._rows += [""] * (self._y + 1 - len(self._rows))
