"""Streaming text, cut into rows as it comes. Pure.

Only whole rows can be written above a prompt, so the text is cut where the terminal would wrap it, if possible at a
space. The text after the last cut is the unfinished row, which is never wider than the terminal.
"""

from __future__ import annotations

import re
from itertools import pairwise

from chain.text.plain import UNFINISHED, sanitize
from chain.text.wording import pluralize

TAB = 4

NARROWEST = 20
"""The least width of rows, in columns. On a narrower terminal, rows have this width too."""

LONGEST_SHOWN = 20
"""The maximum number of rows of a pasted text that is shown in full."""

_NOT_FIRST = "\xa0。，、．！？；：）」』】》〉…ー々,.!?;:)]}"
"""Characters that must not start a row, even if they follow a wide character, after which a text may be cut."""

_SGR = re.compile(r"\x1b\[[0-9;]*m")


def strip_colours(row: str) -> str:
    """Return a row of this program without its colours."""
    return _SGR.sub("", row)


def flat(text: str) -> str:
    """Return the sanitized text on one row: each sequence of white space becomes one space."""
    return " ".join(sanitize(text).split())


def cut_to_row(text: str, most: int) -> str:
    """Return the text on one row, cut after ``most`` characters. Only the start of a long text is processed."""
    row = flat(text[: 2 * most])
    return row if len(row) <= most and len(text) <= 2 * most else f"{row[:most].rstrip()}..."


def from_home(path: str, home: str) -> str:
    """Return a path with ``~`` for the home folder, as shells show it."""
    return f"~{path.removeprefix(home)}" if home and (path == home or path.startswith(f"{home}/")) else path


def columns(text: str) -> int:
    """Return the width in columns of a text without control characters."""
    return len(text) if text.isascii() else sum(_columns_of(char) for char in text)


def _columns_of(char: str) -> int:
    if char.isascii():
        return 1
    from wcwidth import wcwidth  # imported late, since ASCII text does not need its tables

    return max(wcwidth(char), 0)


def pad(text: str, width: int, *, right: bool = False) -> str:
    """Return the text padded with spaces to ``width`` columns; right-aligned if ``right``."""
    space = " " * (width - columns(text))
    return space + text if right else text + space


def cluster_beside(text: str, at: int, by: int) -> int:
    """Return the index at the other end of the grapheme cluster beside the index ``at``.

    ``by`` selects the cluster: -1 the cluster before ``at``, 1 the cluster after ``at``.
    """
    if (text[at - 1 : at] if by < 0 else text[at : at + 2]).isascii():
        return min(max(at + by, 0), len(text))
    from wcwidth import grapheme_boundary_before, iter_graphemes

    return grapheme_boundary_before(text, at) if by < 0 else at + len(next(iter_graphemes(text, at)))


def fitting_count(text: str, width: int) -> int:
    """Return how many characters of the start of a text fit into ``width`` columns: at least 1."""
    if text.isascii():
        return max(min(len(text), width), 1)
    filled = 0
    for n, char in enumerate(text):
        filled += _columns_of(char)
        if filled > width:
            return max(n, 1)
    return len(text)


def word_places(text: str, width: int) -> list[tuple[int, int]]:
    """Return the start and end index of each row of a text, cut between words or wide characters if possible."""
    places, begin = [], 0
    while True:
        full = begin + fitting_count(text[begin : begin + 2 * width], width)
        end = full if full >= len(text) else _break(text, begin, full)
        places.append((begin, begin + len(text[begin:end].rstrip(" "))))
        while text[end : end + 1] == " ":
            end += 1
        if end >= len(text):
            return places
        begin = end


def _break(text: str, begin: int, full: int) -> int:
    """Return the last index between ``begin`` and ``full`` where the text may be cut; ``full`` if there is none."""
    if text[full] == " ":
        return full
    for at in range(full, begin, -1):
        if text[at - 1] == " " or (not text[at - 1 : at + 1].isascii() and _is_between_wide(text, at)):
            return at
    return full


def _is_between_wide(text: str, at: int) -> bool:
    before, after = text[at - 1], text[at]
    if before == "\u200d" or after in _NOT_FIRST or columns(after) == 0:
        return False
    return columns(before) == 2 or columns(after) == 2


def row_starts(text: str, width: int) -> list[int]:
    """Return the start index of each row of a text as a terminal would cut it. An empty text has one row."""
    starts = [0]
    while True:
        # Only as much as can fit is examined, since the text may be long.
        end = starts[-1] + fitting_count(text[starts[-1] : starts[-1] + 2 * width], width)
        if end >= len(text):
            return starts
        starts.append(end)


def row_count(text: str, width: int) -> int:
    """Return how many rows of the terminal a text fills."""
    return sum(max(-(-columns(line) // width), 1) for line in text.splitlines())


def amount(text: str) -> str:
    """Return the size of a pasted text as a phrase: its lines, or its characters if it is one line."""
    lines = len(text.splitlines())
    return pluralize(lines, "line") if lines > 1 else pluralize(len(text), "character")


def hard_rows(text: str, width: int) -> list[str]:
    """Return a text as rows, cut where a terminal would cut it. The joined rows are the text."""
    return [text[start:end] for start, end in pairwise([*row_starts(text, width), len(text)])]


def wrap_text(text: str, width: int) -> list[str]:
    """Return a complete text as rows of at most ``width`` columns, cut at spaces if possible."""
    flow = Flow(width)
    return [*flow.add(text), *flow.end()]


def cut(text: str, width: int, mark: str) -> str:
    """Return at most ``width`` columns of a text, ending with the mark if it was cut."""
    if columns(text) <= width:
        return text
    mark = mark[: max(width, 0)]
    kept = text[: fitting_count(text, width - len(mark))]
    return (kept if columns(kept) <= width - len(mark) else "").rstrip() + mark


def cut_start(text: str, width: int, mark: str) -> str:
    """Return the last ``width`` columns of a text, starting with the mark if it was cut."""
    if columns(text) <= width:
        return text
    return mark + text[::-1][: fitting_count(text[::-1], width - len(mark))][::-1].lstrip()


class Cleaner:
    """A ``sanitize`` for streaming text, which delays a control sequence that is incomplete at the end of a piece."""

    def __init__(self) -> None:
        self._raw = ""

    def add(self, text: str) -> str:
        """Add a piece, and return the sanitized text without an incomplete control sequence at its end."""
        text = self._raw + text
        begun = UNFINISHED.search(text)
        cut = begun.start() if begun is not None else len(text)
        self._raw = text[cut:]
        return sanitize(text[:cut])

    def end(self) -> str:
        """End the text, and return the delayed control sequence, sanitized."""
        text, self._raw = self._raw, ""
        return sanitize(text)


class Flow:
    """A streaming text as rows of at most ``width`` columns, without leading and trailing blank rows."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._cleaner = Cleaner()
        self._row = ""
        self._blanks = 0
        self._has_begun = False

    @property
    def tail(self) -> str:
        """The unfinished row."""
        return self._row.rstrip()

    def add(self, text: str) -> list[str]:
        """Append a piece, and return the rows that it completes."""
        *whole, self._row = (self._row + self._cleaner.add(text)).split("\n")
        rows = [row for line in whole for row in self._rows_of(line)]
        *full, self._row = self._cut(self._row)
        return rows + [row for part in full for row in self._delay_if_blank(part)]

    def end(self) -> list[str]:
        """End the text. Return the rows of its unfinished part, or none if that part is blank."""
        text, self._row = self._row + self._cleaner.end(), ""
        return [row for line in text.split("\n") for row in self._rows_of(line)] if text.strip() else []

    def _rows_of(self, line: str) -> list[str]:
        return [row for part in self._cut(line) for row in self._delay_if_blank(part)]

    def _delay_if_blank(self, row: str) -> list[str]:
        """Return a complete row after the delayed blank rows. Delay a blank row, and return no row.

        Blank rows are delayed since blank rows at the end of the text are omitted.
        """
        row = row.rstrip()
        if not row:
            self._blanks += self._has_begun
            return []
        blanks, self._blanks, self._has_begun = self._blanks, 0, True
        return [""] * blanks + [row]

    def _cut(self, line: str) -> list[str]:
        """Return a line in parts of at most ``width`` columns. The last part may be empty."""
        line = line.expandtabs(TAB)
        starts = [begin for begin, _ in word_places(line, self.width)]
        return [line[begin:end] for begin, end in pairwise([*starts, len(line)])]
