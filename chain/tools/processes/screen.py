"""What a terminal shows in the end of what a command writes. Pure.

Programs draw progress over itself, by carriage returns, backspaces and escape sequences. Only the last rows can be
written over, as on a terminal: the others have scrolled out.
"""

from __future__ import annotations

import re

from chain.text.plain import SEQUENCE, UNFINISHED

HEIGHT = 24
"""Rows of the screen: what programs assume where they cannot ask."""

WIDEST = 4_096
"""Columns. A row that becomes longer scrolls out at once, so that writing over a row always costs little."""

_CONTROL = re.compile(rf"(?=[\x00-\x08\x0d-\x1f\x7f-\x9f])({SEQUENCE}|.)")
_NUMBERED = re.compile(r"(?:\x1b\[|\x9b)(\??)(\d{0,4})\d*(?:;(\d{0,4})\d*)?(?:;[\d;]*)?([@-~])")
_OTHER_SCREEN = ("47", "1047", "1049")


class Screen:
    """The last rows of a terminal, and its cursor."""

    def __init__(self) -> None:
        self._rows = [""]
        self._y = self._x = 0
        self._saved = (0, 0)
        self._main: list[str] | None = None
        """The rows that show again when a program leaves the other screen, as editors do."""
        self._raw = ""
        """The beginning of a sequence."""

    def add(self, text: str) -> str:
        """Accept what the command wrote next. Return what can no longer be written over."""
        text = (self._raw + text).replace("\r\n", "\n")
        begun = UNFINISHED.search(text, max(len(text) - WIDEST, 0))
        cut = len(text) if begun is None else begun.start()
        self._raw, gone = text[cut:], []
        for n, part in enumerate(_CONTROL.split(text[:cut])):
            if n % 2:
                self._obey(part)
            elif part:
                gone.append(self._write(part))
        return "".join(gone)

    def end(self) -> str:
        """Return what is on the screen."""
        while self._y < len(self._rows) - 1 and not self._rows[-1]:
            self._rows.pop()
        return "\n".join([*(self._main or ()), *self._rows])

    def _write(self, text: str) -> str:
        first, *more = text.split("\n")
        self._put(first)
        if self._y == len(self._rows) - 1:
            self._rows += more
            self._y, self._x = len(self._rows) - 1, len(more[-1]) if more else self._x
        else:
            for line in more:
                self._go(self._y + 1, 0, len(self._rows))
                self._put(line)
        is_wide = len(self._rows[self._y]) > WIDEST
        count = len(self._rows) - (0 if is_wide else HEIGHT)
        if count <= 0:
            return ""
        gone, self._rows = self._rows[:count], self._rows[count:] or [""]
        self._y = max(self._y - count, 0)
        self._x = 0 if is_wide else self._x
        return "" if self._main is not None else "\n".join(gone) + ("" if is_wide else "\n")

    def _put(self, text: str) -> None:
        row = self._rows[self._y]
        if text and self._x < len(row):
            row = row.expandtabs()
        elif text:
            row = row.ljust(self._x)
        self._rows[self._y] = row[: self._x] + text + row[self._x + len(text) :]
        self._x += len(text)

    def _go(self, y: int, x: int, lowest: int = HEIGHT - 1) -> None:
        self._y, self._x = max(min(y, lowest), 0), max(min(x, WIDEST), 0)
        self._rows += [""] * (self._y + 1 - len(self._rows))

    def _obey(self, sequence: str) -> None:
        if len(sequence) == 1:
            self._x = 0 if sequence == "\r" else max(self._x - (sequence == "\b"), 0)
            return
        y, x, row = self._y, self._x, self._rows[self._y]
        numbered = _NUMBERED.fullmatch(sequence)
        private, first, second, kind = numbered.groups() if numbered else ("", "", "", sequence)
        n, m = max(int(first or 1), 1), max(int(second or 1), 1)
        match kind:
            case "A" | "F":
                self._go(y - n, 0 if kind == "F" else x)
            case "B" | "E":
                self._go(y + n, 0 if kind == "E" else x)
            case "C" | "D":
                self._go(y, x + n if kind == "C" else x - n)
            case "G":
                self._go(y, n - 1)
            case "H" | "f":
                self._go(n - 1, m - 1)
            case "K":
                self._rows[y] = "" if first == "2" else " " * (x + 1) + row[x + 1 :] if first == "1" else row[:x]
            case "J" if first in ("", "0"):
                self._rows[y:] = [row[:x]]
            case "J" if first == "2":
                self._rows = [""] * (y + 1)
            case "s" | "\x1b7":
                self._saved = (y, x)
            case "u" | "\x1b8":
                self._go(*self._saved)
            case "h" if private and first in _OTHER_SCREEN and self._main is None:
                self._main, self._rows, self._saved = self._rows, [""], (y, x)
                self._y = self._x = 0
            case "l" if private and first in _OTHER_SCREEN and self._main is not None:
                self._rows, self._main = self._main, None
                self._go(*self._saved)
            case _:
                pass
