"""Streaming Markdown, split into its blocks as they are completed. Pure; markdown-it-py is imported when first used.

The parser decides what a block is, but it cannot go on where it stopped: it is asked again about the whole unfinished
block. Three things keep that cheap. Only a newline can complete a block. A line that surely belongs to the unfinished
block, such as one that begins with a letter in a paragraph, is not put to the parser. And each character that comes
pays for the parsing of ``CREDIT`` characters: where that is spent, a block is found to be complete some lines later.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

CREDIT = 8
"""Characters that may be parsed for each that came: enough for every ordinary text, and the cost stays linear."""
MAX_CREDIT = 60_000
"""So that a piece of a few lines cannot spend at once what a long text has saved."""
MAX_CHARS = 30_000
"""Of an unfinished block other than a fence, which is found line by line. A longer one is cut in two."""
MAX_NESTING = 20

_MAY_BEGIN = re.compile(r" {0,3}(?:[-+*_=#>~`<|:]|\d{1,9}[.)])")
"""What a line must look like to end a paragraph or a table, or to make a table or a heading of the line before it."""
_INDENTED = re.compile(r" {4}| {0,3}\t")
_QUOTED = re.compile(r" {0,3}>")
_ITEM = re.compile(r" *(?:[-+*]|\d{1,9}[.)]) {1,4}(?=[^ \t\n])")
_FENCE = re.compile(r"( {0,3})(`{3,}(?!.*`)|~{3,})[ \t]*(.*)")

_COMPLETE = ("heading_open", "hr")
_ENDED_BY_A_BLANK_LINE = ("paragraph_open", "table_open", "blockquote_open", "html_block")


@cache
def parser_of(*, blocks_only: bool) -> MarkdownIt:
    """A parser; ``blocks_only``: it leaves the text inside blocks alone.

    Definitions of links are text to it, so that a block depends on no other.
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
    """Whether Markdown takes the line for a blank one; other kinds of space are text to it."""
    return not line.strip(" \t\n")


class CodeFence:
    """What opens a fenced code block: ``opening`` is a match of its first line."""

    def __init__(self, opening: re.Match[str]) -> None:
        indent, mark, info = opening.groups()
        self.language = (info.split() or [""])[0]
        self._indent = re.compile(rf" {{0,{len(indent)}}}")
        self._closing = re.compile(rf" {{0,3}}{re.escape(mark[0])}{{{len(mark)},}}[ \t]*\n?\Z")

    def is_closed_by(self, line: str) -> bool:
        """Whether the line is the block's last one."""
        return self._closing.match(line) is not None

    def code(self, line: str) -> str:
        """A line of the block without its newline and the fence's own indentation."""
        return self._indent.sub("", line, count=1).removesuffix("\n")


def fence_of(line: str) -> CodeFence | None:
    """The fence that a block with this first line has, if any."""
    opening = _FENCE.match(line)
    return None if opening is None else CodeFence(opening)


class Blocks:
    """One streaming text. The sources of its blocks, one after the other, are the text.

    A block is a paragraph, heading, table, fenced or indented code block, quote, HTML block or rule of the top level,
    or one item of a list of the top level. The blank lines between two blocks belong to either; thousands of them are a
    block.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        """The whole lines of the unfinished block."""
        self.start = 0
        """How many blank lines are the first of them."""
        self.size = 0
        """The characters in ``lines``."""
        self.partial = ""
        """The unfinished line."""
        self.kind = ""
        """The type of the parser's token that opens the unfinished block, as far as it is known."""
        self.fence: CodeFence | None = None
        """Set while the unfinished block is a fenced one."""
        self._item_indent = 0
        self._credit = MAX_CREDIT

    @property
    def is_open(self) -> bool:
        """Whether a block has begun and is not finished."""
        return bool(self.kind) or not is_blank(self.partial)

    def add(self, piece: str) -> list[str]:
        """Append a piece, and return the sources of the blocks that it completes."""
        *whole, self.partial = (self.partial + piece).split("\n")
        return [block for line in whole for block in self._add_line(line + "\n")]

    def end(self) -> list[str]:
        """End the text, and return the sources of the blocks that are left."""
        line, self.partial = self.partial, ""
        blocks = self._add_line(line) if line else []
        if self.kind and self.fence is None:
            self._credit = max(self._credit, self.size)
            blocks += self._split()
        rest = self._cut(len(self.lines))
        return blocks + ([rest] if not is_blank(rest) else [])

    def _add_line(self, line: str) -> list[str]:
        self.lines.append(line)
        self.size += len(line)
        self._credit = min(self._credit + CREDIT * len(line), MAX_CREDIT)
        if self.fence is not None:
            return [self._cut(len(self.lines))] if self.fence.is_closed_by(line) else []
        if self.size > MAX_CHARS and self.size > len(line):
            return [self._cut(len(self.lines))]
        return [] if self._surely_goes_on(line) else self._split()

    def _surely_goes_on(self, line: str) -> bool:
        blank = is_blank(line)
        match self.kind:
            case "":
                self.start += blank
                if not blank and not _MAY_BEGIN.match(line) and not _INDENTED.match(line):
                    self.kind = "paragraph_open"
                return blank or bool(self.kind)
            case "paragraph_open":
                return not blank and _MAY_BEGIN.match(line) is None
            case "table_open":
                return line.startswith("|") or not (blank or line[0] in " \t" or _MAY_BEGIN.match(line))
            case "blockquote_open":
                return _QUOTED.match(line) is not None
            case "html_block":
                return not blank and ">" not in line
            case "code_block":
                return blank or _INDENTED.match(line) is not None
            case _:
                return blank or (self._item_indent > 0 and line.startswith(" " * self._item_indent))

    def _split(self) -> list[str]:
        if self.size > self._credit:
            self.kind = self.kind or "paragraph_open"
            return []
        self._credit -= self.size
        tokens = [t for t in parser_of(blocks_only=True).parse("".join(self.lines)) if _opens_block(t)]
        if not tokens:
            self.kind = ""
            return []
        starts = [t.map[0] for t in tokens if t.map is not None]
        opening, is_complete = self.lines[starts[-1]], self._is_complete(tokens[-1])
        ends = [0, *starts[1:], *([len(self.lines)] if is_complete else [])]
        blocks = [self._cut(end - start) for start, end in pairwise(ends)]
        if not is_complete:
            self.kind, self.fence = tokens[-1].type, fence_of(opening)
            item = _ITEM.match(opening)
            self._item_indent = item.end() if item is not None else 0
        return blocks

    def _is_complete(self, token: Token) -> bool:
        """Whether no further line can belong to the last block."""
        assert token.map is not None
        start, end = token.map
        if token.type == "fence":
            fence = fence_of(self.lines[start])
            return fence is not None and end - start > 1 and fence.is_closed_by(self.lines[end - 1])
        return token.type in _COMPLETE or (token.type in _ENDED_BY_A_BLANK_LINE and end < len(self.lines))

    def _cut(self, count: int) -> str:
        block = "".join(self.lines[:count])
        del self.lines[:count]
        self.size -= len(block)
        self.kind, self.fence, self.start = "", None, 0
        return block


def _opens_block(token: Token) -> bool:
    if token.level == 0:
        return token.nesting >= 0 and token.type not in ("bullet_list_open", "ordered_list_open")
    return token.level == 1 and token.type == "list_item_open"
