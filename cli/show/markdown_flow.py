"""Streaming replies as rows of a terminal: as Markdown if there are colours, else as source. Pure.

A Markdown block becomes rows when it is complete. Until then ``tail`` shows the end of its text. markdown-it-py and
Pygments are imported when first used, which takes about 0.1 s; ``warm`` imports them earlier.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from cli.show.blocks import Blocks
from cli.show.markdown_layout import MarkdownPage
from cli.show.spans import MarkdownStyle
from cli.show.text_rows import Cleaner, Flow, hard_rows, wrap_text

MAX_TAIL = 5
"""The maximum number of rows that show the unfinished block. These rows are redrawn at each change."""

UNCUT = 1_000_000
"""A width that no row reaches: rows of this width are not cut here, so that the terminal wraps them."""

_LINES = re.compile(r"[^\n]*\n|[^\n]+")

_LANGUAGES = ("python", "json", "bash", "diff", "javascript", "yaml", "html")


class _ReplyFlow:
    """One streaming reply, ``width`` columns wide. ``width`` may be set at any time."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._cleaner = Cleaner()
        self._blocks = Blocks()

    @property
    def is_open(self) -> bool:
        """Whether a block has begun and is not finished."""
        return self._blocks.is_open


class MarkdownFlow(_ReplyFlow):
    """A streaming reply that is rendered from Markdown, with SGR colours."""

    def __init__(self, width: int, style: MarkdownStyle) -> None:
        super().__init__(width)
        self._page = MarkdownPage(style)

    @property
    def tail(self) -> str:
        """The last rows of the unfinished block as plain text, joined with newlines."""
        # ``last`` keeps its start for a while. Otherwise the rows would be cut at other words each time.
        rows = wrap_text(self._blocks.last(MAX_TAIL * self.width).rstrip(), self.width)
        if rows and self._page.is_apart:
            rows = ["", *rows]
        return "\n".join(rows[-MAX_TAIL:])

    def add(self, text: str) -> list[list[str]]:
        """Append a piece. Return the completed rows in groups. A block ends after each group but the last."""
        parts = self._blocks.add(self._cleaner.add(text))
        rows = self._rows(parts)
        return [rows, []] if parts else [rows]

    def end(self) -> list[str]:
        """End the text, and return the rows that are left."""
        return self._rows([*self._blocks.add(self._cleaner.end()), self._blocks.end()])

    def _rows(self, parts: Iterable[str]) -> list[str]:
        return [row for part in parts for row in self._page.add(part, self.width)]


class PlainFlow(_ReplyFlow):
    """A streaming reply for a terminal without colours: its source, cut into rows. Lines of fenced code are not cut."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self._flow = Flow(width)
        self._has_begun_line = False
        """Whether rows of the unfinished line were returned already."""

    @property
    def tail(self) -> str:
        """The last rows of the unfinished line, joined with newlines."""
        return "\n".join(hard_rows(self._flow.tail[-MAX_TAIL * self.width :], self.width)[-MAX_TAIL:])

    def add(self, text: str) -> list[list[str]]:
        """Append a piece. Return the completed rows in groups. A block ends after each group but the last."""
        groups: list[list[str]] = [[]]
        for piece in _LINES.findall(self._cleaner.add(text)) or [""]:
            has_ended = bool(self._blocks.add(piece))
            if has_ended and self.is_open and not self._has_begun_line:
                groups.append([])  # this line begins the next block
            self._flow.width = UNCUT if self._blocks.is_fenced else self.width
            found = self._flow.add(piece)
            self._has_begun_line = not piece.endswith("\n") and (self._has_begun_line or bool(found))
            groups[-1] += found
            if has_ended and not self.is_open:
                groups.append([])
        return groups

    def end(self) -> list[str]:
        """End the text, and return the rows that are left."""
        rows = [row for group in self.add(self._cleaner.end()) for row in group]
        self._blocks.end()
        return rows + self._flow.end()


def render(text: str, width: int, *, ascii: bool) -> list[str]:
    """Return the rows of a whole Markdown text, such as a file, at most ``width`` columns each."""
    flow = MarkdownFlow(width, MarkdownStyle(ascii=ascii, reflow=True))
    return [row for group in flow.add(text) for row in group] + flow.end()


@cache
def warm() -> None:
    """Import the libraries for rendering. If a background thread calls this early, the first reply is not delayed."""
    for language in _LANGUAGES:
        render(f"# a\n\n| *b* |\n|---|\n| `c` |\n\n~~~{language}\nd\n~~~", 80, ascii=True)
