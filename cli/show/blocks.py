"""Streaming Markdown, split where its blocks end. Pure; markdown-it-py is imported when first used.

The parser decides where a block ends, but it cannot continue where it stopped: it parses the whole unfinished text
again. Two rules keep that cheap: only a line that can begin or end a block is a reason to parse, and after a parse that
found no end the text has to grow by an eighth before such a line is a reason again. So the cost is linear, and an end
may be found some lines late.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

MAX_CHARS = 12_000
"""Of an unfinished block other than a fenced one, which is not parsed again. A longer one is cut into several."""
GROWTH = 8
"""The part of its length by which a text grows before it is parsed again."""
MAX_NESTING = 20

_MAY_BEGIN = re.compile(r" {0,3}(?:[-+*_=#>~`<|:]|\d{1,9}[.)])")
"""How a line begins that can end a paragraph or a table, or make a table or a heading of the line before it."""

FENCES = ("```", "~~~")
"""How a line begins that nearly always opens a fenced code block: so it is known before its lines are shown."""

_COMPLETE = ("heading_open", "hr")
_ENDED_BY_A_BLANK_LINE = ("paragraph_open", "table_open", "blockquote_open", "html_block")


@cache
def parser_of(*, blocks_only: bool) -> MarkdownIt:
    """Return a parser; with ``blocks_only`` it does not parse the text inside blocks.

    It takes definitions of links as text, so that a block depends on no other.
    """
    from markdown_it import MarkdownIt

    class Parser(MarkdownIt):
        # An address is shown as it was written, since people copy it from the screen.
        def normalizeLink(self, url: str) -> str:
            return url

        def normalizeLinkText(self, link: str) -> str:
            return link

    parser = Parser("commonmark", {"html": True, "maxNesting": MAX_NESTING})
    parser.enable(["table", "strikethrough"]).disable("reference")
    if blocks_only:
        parser.core.ruler.enableOnly(["normalize", "block"])
    parser.parse("*a*")  # collects the rules: not while another thread uses it as well
    return parser


def is_blank(line: str) -> bool:
    """Return whether the line is blank in Markdown, where other kinds of space are text."""
    return not line.strip(" \t\n")


class Blocks:
    """One streaming text. The parts that are returned, and the unfinished one, are together the text.

    A part is one block or more: paragraphs, headings, tables, code blocks, quotes, HTML blocks and rules of the top
    level, and items of a list of the top level.
    """

    def __init__(self) -> None:
        self.is_fenced = False
        """Whether the unfinished block is a fenced code block."""
        self._lines: list[str] = []
        """The whole lines of the unfinished part."""
        self._size = 0
        """The characters in them."""
        self._partial = ""
        """The unfinished line."""
        self._fence_end = re.compile("")
        self._next_parse = [0, 0]
        """From which sizes on the unfinished part is parsed again: at other lines, and at a blank one or after it."""

    @property
    def rest(self) -> str:
        """The unfinished part."""
        return "".join([*self._lines, self._partial])

    @property
    def is_open(self) -> bool:
        """Whether a block has begun and is not finished."""
        return not (is_blank(self._partial) and all(map(is_blank, self._lines)))

    def add(self, piece: str) -> list[str]:
        """Append a piece, and return the parts that it completes."""
        *whole, self._partial = (self._partial + piece).split("\n")
        return [part for line in whole if (part := self._add_line(f"{line}\n"))]

    def end(self) -> str:
        """End the text, and return the unfinished part."""
        rest, self._partial = self.rest, ""
        self._cut(len(self._lines))
        return rest

    def _add_line(self, line: str) -> str:
        self._lines.append(line)
        self._size += len(line)
        if self.is_fenced:
            return self._cut(len(self._lines)) if self._fence_end.match(line) else ""
        if self._size > MAX_CHARS:
            return self._cut(len(self._lines))
        if not self._may_complete(line):
            return ""
        last = next(filter(_opens_block, reversed(parser_of(blocks_only=True).parse("".join(self._lines)))), None)
        done = ""
        if last is not None and last.map is not None:
            if self._is_complete(last, *last.map):
                return self._cut(len(self._lines))
            done = self._cut(last.map[0])
            if last.type == "fence":
                self.is_fenced, self._fence_end = True, _end_of_fence(last)
        self._next_parse[_is_at_blank(self._lines)] = self._size + self._size // GROWTH
        return done

    def _may_complete(self, line: str) -> bool:
        """Return whether this line is a reason to parse the unfinished part."""
        if line.startswith(FENCES):
            # In a comment no block begins, and each such line would be a reason.
            return not self._lines[0].lstrip().startswith("<")
        is_at_blank, before = _is_at_blank(self._lines), self._lines[-2] if len(self._lines) > 1 else " "
        if not is_at_blank and (_MAY_BEGIN.match(line) is None or line[0] == before[0] in "|>"):
            return False  # such as the next row of a table, or line of a quote
        return self._size >= self._next_parse[is_at_blank]

    def _is_complete(self, block: Token, start: int, end: int) -> bool:
        """Return whether no further line can belong to the last block."""
        if block.type == "fence":
            return end - start > 1 and _end_of_fence(block).match(self._lines[end - 1]) is not None
        return block.type in _COMPLETE or (block.type in _ENDED_BY_A_BLANK_LINE and end < len(self._lines))

    def _cut(self, count: int) -> str:
        part = "".join(self._lines[:count])
        del self._lines[:count]
        self._size -= len(part)
        self.is_fenced, self._next_parse = False, [0, 0]
        return part


def _is_at_blank(lines: Sequence[str]) -> bool:
    return any(map(is_blank, lines[-2:]))


def _end_of_fence(fence: Token) -> re.Pattern[str]:
    mark = fence.markup
    return re.compile(rf" {{0,3}}{re.escape(mark[0])}{{{len(mark)},}}[ \t]*\n")


def _opens_block(token: Token) -> bool:
    if token.level == 0:
        return token.nesting >= 0 and token.type not in ("bullet_list_open", "ordered_list_open")
    return token.level == 1 and token.type == "list_item_open"
