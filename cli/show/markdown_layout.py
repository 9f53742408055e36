"""Parsed Markdown as rows: lists and quotes indent what they hold, text wraps, code stands at the left edge. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from cli.show.blocks import text_parser
from cli.show.highlight import highlighted
from cli.show.markdown_tables import Cell, table_rows
from cli.show.spans import Line, Look, Span, plain, safe_row, wrap_all, wrap_hard
from cli.show.text import TAB, columns

if TYPE_CHECKING:
    from markdown_it.token import Token

LEAST_ROOM = 12
"""Columns that are left for text: what would be indented further is not indented at all."""
LONGEST_RULE = 40

_HEADINGS = {"h1": "1;4", "h2": "1"}
_OTHER_HEADING = "4"
_STYLES = {"strong": "1", "em": "3", "s": "9", "link": "4"}
_CODE = "36"
_BULLETS = "•◦▪"
_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
_TASK = re.compile(r"\[([ xX])\][ \t]+")
_CLOSE_TO_WHAT_FOLLOWS = ("heading", "paragraph", "item")
_CLOSE_TO_WHAT_PRECEDES = ("paragraph", "item")


def is_apart(before: str, after: str, *, has_blank: bool) -> bool:
    """Whether a blank row stands between two blocks: where the source has one, and always around all but text."""
    return has_blank or before not in _CLOSE_TO_WHAT_FOLLOWS or after not in _CLOSE_TO_WHAT_PRECEDES


@dataclass(frozen=True)
class LaidOut:
    """The rows of some blocks, and the kinds of the first and the last block of them; none for no rows."""

    rows: list[str]
    first: str
    last: str


@dataclass
class _Indent:
    """What a list item or a quote puts before its rows: before the first one ``marker`` until it is used."""

    marker: str | None
    rest: str
    is_quote: bool

    @property
    def columns(self) -> int:
        return columns(self.rest)

    def next(self) -> str:
        prefix, self.marker = self.rest if self.marker is None else self.marker, None
        return prefix


def page(source: str, width: int, look: Look) -> LaidOut:
    """The rows of a Markdown text, each at most ``width`` columns."""
    layout = _Layout(source, width, look)
    layout.add(text_parser().parse(source))
    return LaidOut(layout.rows, layout.first, layout.before or layout.first)


def code_rows(lines: Sequence[str], language: str, width: int, look: Look, before: Sequence[str] = ()) -> list[str]:
    """The rows of code; ``before`` are lines of the same block that were shown before."""
    painted = highlighted(lines, language, before) if look.color else [[("", line.expandtabs(TAB))] for line in lines]
    rows = painted if not look.cuts_code else [row for line in painted for row in wrap_hard(line, width)]
    return [look.painted(row) for row in rows]


class _Layout:
    def __init__(self, source: str, width: int, look: Look) -> None:
        self.rows: list[str] = []
        self.first = ""
        self.before: str | None = None
        """The kind of the block before, in the same item or quote."""
        self._source = source.split("\n")
        self._width = width
        self._look = look
        self._indents: list[_Indent] = []

    def add(self, tokens: Sequence[Token]) -> None:
        for n, token in enumerate(tokens):
            match token.type:
                case "paragraph_open" | "heading_open":
                    self._text(token, tokens[n + 1])
                case "list_item_open":
                    self._begin("item", token)
                    self._item(token, tokens[n + 2])
                case "blockquote_open":
                    self._begin("quote", token)
                    self._quote()
                case "list_item_close" | "blockquote_close":
                    self._close("item" if token.type == "list_item_close" else "quote")
                case "table_open":
                    self._table(token, tokens[n : next(m for m in range(n, len(tokens)) if _closes_table(tokens[m]))])
                case "fence" | "code_block":
                    self._code(token)
                case "html_block":
                    self._begin("html", token)
                    self._put([[("", safe_row(line))] for line in token.content.rstrip("\n").split("\n")])
                    self.before = "html"
                case "hr":
                    self._begin("rule", token)
                    sign = self._look.sign("─", "-")
                    self._put([[("2", sign * min(self._room, LONGEST_RULE))]])
                    self.before = "rule"
                case _:
                    pass

    @property
    def _room(self) -> int:
        return self._width - sum(indent.columns for indent in self._indents)

    def _begin(self, kind: str, token: Token) -> None:
        """A blank row before a block, where there is one."""
        self.first = self.first or kind
        if self.before is None:
            return
        start = token.map[0] if token.map is not None else 0
        has_blank = start > 0 and not self._source[start - 1].strip(" \t>")
        if is_apart(self.before, kind, has_blank=has_blank):
            self._row([], only_quotes=False)

    def _row(self, row: Line, *, only_quotes: bool) -> None:
        before = [i.next() for i in self._indents if i.is_quote or not only_quotes]
        prefix = "".join(before) if plain(row) else "".join(before).rstrip()
        bars: list[Span] = [("2" if any(i.is_quote for i in self._indents) else "", prefix)] if prefix else []
        self.rows.append(self._look.painted([*bars, *row]))

    def _put(self, lines: Sequence[Line]) -> None:
        for row in wrap_all(lines, self._room):
            self._row(row, only_quotes=False)

    def _put_marker(self) -> None:
        """A row with the markers that wait for one."""
        if any(indent.marker is not None for indent in self._indents if not indent.is_quote):
            self._row([], only_quotes=False)

    def _text(self, token: Token, inline: Token) -> None:
        kind = token.type.removesuffix("_open")
        self._begin(kind, token)
        base, sign = "", ""
        if kind == "heading":
            base = _HEADINGS.get(token.tag, _OTHER_HEADING)
            sign = "" if self._look.color else "#" * int(token.tag[1:]) + " "
        first, *rest = inline_lines(inline, self._look, base)
        self._put([[("", sign), *first] if sign else first, *rest])
        self.before = kind

    def _item(self, token: Token, text: Token) -> None:
        look = self._look
        level = sum(1 for indent in self._indents if not indent.is_quote)
        bullet = look.sign(_BULLETS[min(level, len(_BULLETS) - 1)], "-")
        marker = f"{token.info}{token.markup} " if token.info else f"{bullet} "
        if text.type == "inline" and (task := _TASK.match(text.content)):
            _drop_front(text, task.end())
            marker = "[ ] " if task[1] == " " else look.sign("[✓] ", "[x] ")
        self._indent(marker, " " * len(marker), is_quote=False)

    def _quote(self) -> None:
        bar = self._look.sign("│ ", "| " if self._look.color else "> ")
        self._indent(bar, bar, is_quote=True)

    def _indent(self, marker: str, rest: str, *, is_quote: bool) -> None:
        self.before = None
        if self._room - columns(rest) >= LEAST_ROOM:
            self._indents.append(_Indent(marker, rest, is_quote))
            return
        self._put_marker()
        if not is_quote:
            self._put([[("", marker)]])
        self._indents.append(_Indent(None, "", is_quote))

    def _close(self, kind: str) -> None:
        if self.before is None:
            self._put_marker()
        self._indents.pop()
        # What follows an item that ends in code stands apart from it, as it would from the code.
        ends_in_text = self.before is None or self.before in _CLOSE_TO_WHAT_FOLLOWS
        self.before = kind if kind == "quote" or ends_in_text else self.before

    def _code(self, token: Token) -> None:
        self._put_marker()
        self._begin("code", token)
        room = self._width - sum(indent.columns for indent in self._indents if indent.is_quote)
        language = (token.info.split() or [""])[0]
        lines = token.content.removesuffix("\n").split("\n")
        painted: list[Line] = []
        if self._look.color:
            painted = highlighted(lines, language)
        else:
            fence = [token.markup] if token.type == "fence" else []
            opening = [token.markup + token.info] if fence else []
            painted = [[("", line.expandtabs(TAB))] for line in (*opening, *lines, *fence)]
        for line in painted:
            for row in wrap_hard(line, room) if self._look.cuts_code else [line]:
                self._row(row, only_quotes=True)
        self.before = "code"

    def _table(self, token: Token, tokens: Sequence[Token]) -> None:
        self._begin("table", token)
        rows: list[list[Cell]] = []
        aligned: list[str] = []
        for part, following in pairwise(tokens):
            if part.type == "tr_open":
                rows.append([])
            elif part.type in ("th_open", "td_open"):
                rows[-1].append(inline_lines(following, self._look))
                if len(rows) == 1:
                    aligned.append(str(part.attrs.get("style", "")).removeprefix("text-align:"))
        head, *body = rows
        for row in table_rows(head, body, aligned, width=self._room, look=self._look):
            self._row(row, only_quotes=False)
        self.before = "table"


def inline_lines(inline: Token, look: Look, base: str = "") -> list[Line]:
    """The text inside a block, with a line for each line break of it."""
    lines: list[list[Span]] = [[]]
    styles = [base] if base else []
    links: list[tuple[str, int]] = []

    def put(text: str, *more: str) -> None:
        if text:
            lines[-1].append((";".join([*dict.fromkeys(styles), *more]), safe_row(text)))

    for token in inline.children or ():
        name = token.type.removesuffix("_open").removesuffix("_close")
        if token.type == "softbreak" and look.reflow:
            put(" ")
        elif token.type in ("softbreak", "hardbreak") or _BREAK.fullmatch(token.content):
            lines.append([])
        elif token.type == "code_inline":
            put(token.content, _CODE) if look.color else put(f"{token.markup}{token.content}{token.markup}")
        elif token.type == "image":
            put(token.content, _STYLES["link"])
            put(f" ({token.attrs.get('src', '')})", "2")
        elif name in _STYLES and token.nesting == 1:
            styles.append(_STYLES[name])
            if name == "link":
                links.append((str(token.attrs.get("href", "")), sum(map(len, lines))))
            elif not look.color:
                put(token.markup)
        elif name in _STYLES:
            if name != "link" and not look.color:
                put(token.markup)
            styles.reverse()
            styles.remove(_STYLES[name])
            styles.reverse()
            if name == "link":
                address, first = links.pop()
                text = "".join(text for _, text in [span for line in lines for span in line][first:])
                if safe_row(address) not in (text, f"mailto:{text}"):
                    put(f" ({address})", "2")
        else:
            put(token.content)
    return list(lines)


def _closes_table(token: Token) -> bool:
    return token.type == "table_close"


def _drop_front(inline: Token, count: int) -> None:
    """Leave out the first characters of a text, which are plain."""
    for token in inline.children or ():
        dropped = min(len(token.content), count)
        token.content = token.content[dropped:]
        count -= dropped
        if not count:
            return
