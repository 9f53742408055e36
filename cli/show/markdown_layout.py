"""Parsed Markdown as rows: lists and quotes indent their content, text wraps, code is at the left edge. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, TypeAlias

from cli.show.blocks import INDENTED, MAX_UNFINISHED, is_blank
from cli.show.highlight import highlight
from cli.show.spans import Line, MarkdownStyle, Span, add_style, paint_row, plain, safe_row, wrap_all
from cli.show.text_rows import columns, wrap_text

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

MAX_NESTING = 20
LEAST_ROOM = 12
"""The minimum number of columns for text. Content is not indented if its text would get fewer."""
LONGEST_RULE = 40
MAX_COLORED = 50_000
"""The maximum length of code that is coloured, in characters. This length takes 0.2 s."""
LONGEST_WORD = 12
"""The maximum number of columns that a table reserves for the longest word of a column. A longer word is cut."""

_HEADINGS = {"h1": "1;4", "h2": "1"}
_OTHER_HEADING = "4"
_STYLES = {"strong": "1", "em": "3", "s": "9", "link": "4"}
_CODE = "36"
_BULLETS = "•◦▪"
_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
_TASK = re.compile(r"\[([ xX])\][ \t]+")
_CLOSE_TO_NEXT = ("heading", "paragraph", "item")
_CLOSE_TO_PREVIOUS = ("paragraph", "item")

Cell: TypeAlias = Sequence[Line]
"""The lines of a table cell: more than one if its text has line breaks."""


@cache
def parser() -> MarkdownIt:
    """Return the Markdown parser, which treats link definitions as text, so that each part can be parsed alone."""
    from markdown_it import MarkdownIt

    class Parser(MarkdownIt):
        # Show addresses as they were written, since people copy them from the screen.
        def normalizeLink(self, url: str) -> str:
            return url

        def normalizeLinkText(self, link: str) -> str:
            return link

    made = Parser("commonmark", {"html": True, "maxNesting": MAX_NESTING})
    made.enable(["table", "strikethrough"]).disable("reference")
    made.parse("*a*")  # compiles the rules, which is not thread-safe
    return made


def parse(source: str) -> Sequence[Token] | None:
    """Parse a text into tokens. Return ``None`` if the parser fails: the caller then shows the text as it is."""
    try:
        # Without a final line break the parser raises ``IndexError`` for some HTML in a quote or a list.
        return parser().parse(f"{source}\n")
    except Exception:  # noqa: BLE001 - a bug of the parser must not end the program or lose the text
        return None


def is_apart(before: str, after: str, *, has_blank: bool) -> bool:
    """Return whether to separate two blocks, of the kinds ``before`` and ``after``, by a blank row.

    ``has_blank``: the source has a blank line between the blocks; then return true. Otherwise return false only if a
    paragraph or a list item follows a heading, a paragraph or a list item.
    """
    return has_blank or before not in _CLOSE_TO_NEXT or after not in _CLOSE_TO_PREVIOUS


@dataclass
class _Indent:
    """The indentation of a list item or a quote: ``marker`` on its first row, ``rest`` on its other rows."""

    marker: str | None
    rest: str
    is_quote: bool

    def next(self) -> str:
        prefix, self.marker = self.rest if self.marker is None else self.marker, None
        return prefix


class MarkdownPage:
    """A renderer of one Markdown text. The text is added in parts, each of one or more blocks."""

    def __init__(self, style: MarkdownStyle) -> None:
        self._style = style
        self._width = 0
        self._last = ""
        """The kind of the previous block in the innermost open item or quote, or in the text; empty for none."""
        self._source: list[str] = []
        self._ends_blank = False
        """Whether the previous part ended with a blank line."""
        self._indents: list[_Indent] = []
        self._rows: list[str] = []
        self._blanks = 0
        """The number of blank rows to add before the next row. If no row follows, they are not added."""
        self._has_rows = False

    def add(self, source: str, width: int) -> list[str]:
        """Add a part, and return its rows of at most ``width`` columns. Rows of code are never cut."""
        self._source, self._width, self._rows = source.split("\n"), width, []
        is_code = INDENTED.match(source) is not None or source.lstrip().startswith(("```", "~~~"))
        tokens = parse(source) if len(source) <= MAX_UNFINISHED or is_code else None
        if tokens is None:
            self._begin("paragraph", 0)
            for row in wrap_text(source, width):
                self._row([("", row)])
        else:
            self._add(tokens)
        self._ends_blank = len(self._source) > 1 and is_blank(self._source[-2])
        return self._rows

    @property
    def is_apart(self) -> bool:
        """Whether a blank row certainly precedes the next part. If false, the kind of that part decides."""
        return self._has_rows and self._ends_blank

    def _add(self, tokens: Sequence[Token]) -> None:
        for n, token in enumerate(tokens):
            start = token.map[0] if token.map is not None else 0
            match token.type:
                case "paragraph_open" | "heading_open":
                    self._begin(token.type.removesuffix("_open"), start)
                    base = _HEADINGS.get(token.tag, _OTHER_HEADING) if token.type == "heading_open" else ""
                    self._put(inline_lines(tokens[n + 1], self._style, base))
                case "list_item_open":
                    self._begin("item", start)
                    self._item(token, tokens[n + 2])
                case "blockquote_open":
                    self._begin("quote", start)
                    bar = self._style.sign("│ ", "| ")
                    self._indent(bar, bar, is_quote=True)
                case "list_item_close":
                    # A blank row follows an item that ends in code, as it would follow the code.
                    self._close("item" if self._last in ("", *_CLOSE_TO_NEXT) else self._last)
                case "blockquote_close":
                    self._close("quote")
                case "table_open":
                    self._begin("table", start)
                    self._table(tokens[n:])
                case "fence" | "code_block":
                    self._code(token, start)
                case "html_block":
                    self._begin("html", start)
                    self._put([[("", safe_row(line))] for line in token.content.rstrip("\n").split("\n")])
                case "hr":
                    self._begin("rule", start)
                    self._put([[("2", self._style.sign("─", "-") * min(self._room, LONGEST_RULE))]])
                case _:
                    pass

    @property
    def _room(self) -> int:
        return self._width - sum(columns(indent.rest) for indent in self._indents)

    def _begin(self, kind: str, start: int) -> None:
        """Enter a block of this kind, which begins in line ``start`` of the part, counted from 0.

        Queue a blank row above the block if ``is_apart`` requires one.
        """
        has_blank = not self._source[start - 1].strip(" \t>") if start else self._ends_blank
        if self._last and not self._blanks and is_apart(self._last, kind, has_blank=has_blank):
            self._row([])
        self._last = kind

    def _row(self, row: Line, *, only_quotes: bool = False) -> None:
        prefix = "".join(i.next() for i in self._indents if i.is_quote or not only_quotes)
        style = "2" if any(i.is_quote for i in self._indents) else ""
        painted = paint_row([(style, prefix if plain(row) else prefix.rstrip()), *row])
        if painted:
            self._rows += [""] * self._blanks + [painted]
            self._blanks, self._has_rows = 0, True
        else:
            self._blanks += self._has_rows

    def _put(self, lines: Sequence[Line]) -> None:
        for row in wrap_all(lines, self._room):
            self._row(row)

    def _put_marker(self) -> None:
        if any(indent.marker is not None for indent in self._indents if not indent.is_quote):
            self._row([])

    def _item(self, token: Token, text: Token) -> None:
        level = sum(not indent.is_quote for indent in self._indents)
        bullet = self._style.sign(_BULLETS[min(level, len(_BULLETS) - 1)], "-")
        marker = f"{token.info}{token.markup} " if token.info else f"{bullet} "
        if text.type == "inline" and text.children and (task := _TASK.match(text.content)):
            text.children[0].content = text.children[0].content[task.end() :]
            marker = "[ ] " if task[1] == " " else self._style.sign("[✓] ", "[x] ")
        self._indent(marker, " " * len(marker), is_quote=False)

    def _indent(self, marker: str, rest: str, *, is_quote: bool) -> None:
        self._last = ""
        if self._room - columns(rest) >= LEAST_ROOM:
            self._indents.append(_Indent(marker, rest, is_quote))
            return
        self._put_marker()
        if not is_quote:
            self._put([[("", marker)]])
        self._indents.append(_Indent(None, "", is_quote))

    def _close(self, kind: str) -> None:
        if not self._last:
            self._put_marker()
        self._indents.pop()
        self._last = kind

    def _code(self, token: Token, start: int) -> None:
        self._put_marker()
        self._begin("code", start)
        # A line of spaces is blank, and blank lines at the end are not shown.
        lines = ["" if is_blank(line) else line for line in token.content.split("\n")]
        while lines and not lines[-1]:
            lines.pop()
        language = token.info.split()[:1] if len(token.content) <= MAX_COLORED else []
        for row in highlight(lines, "".join(language)):
            self._row(row, only_quotes=True)

    def _table(self, tokens: Sequence[Token]) -> None:
        rows: list[list[Cell]] = []
        aligned: list[str] = []
        for part, following in pairwise(tokens):
            if part.type == "tr_open":
                rows.append([])
            elif part.type in ("th_open", "td_open"):
                rows[-1].append(inline_lines(following, self._style))
                if len(rows) == 1:
                    aligned.append(str(part.attrs.get("style", "")).removeprefix("text-align:"))
            elif part.type == "table_close":
                break
        head, *body = rows
        for row in table_rows(head, body, aligned, width=self._room, style=self._style):
            self._row(row)


def inline_lines(inline: Token, style: MarkdownStyle, base: str = "") -> list[Line]:
    """Return the styled text of a block, split at its line breaks. ``base`` is the SGR style of the whole text."""
    lines: list[list[Span]] = [[]]
    styles = [base] if base else []
    links: list[tuple[str, int]] = []

    def put(text: str, *more: str) -> None:
        if text:
            lines[-1].append((";".join([*dict.fromkeys(styles), *more]), safe_row(text)))

    for token in inline.children or ():
        sgr = _STYLES.get(token.type.removesuffix("_open").removesuffix("_close"))
        if token.type == "softbreak" and style.reflow:
            put(" ")
        elif token.type in ("softbreak", "hardbreak") or _BREAK.fullmatch(token.content):
            lines.append([])
        elif token.type == "code_inline":
            put(token.content, _CODE)
        elif token.type == "image":
            put(token.content, _STYLES["link"])
            put(f" ({token.attrs.get('src', '')})", "2")
        elif sgr is None:
            put(token.content)
        elif token.nesting == 1:
            styles.append(sgr)
            if token.type == "link_open":
                links.append((str(token.attrs.get("href", "")), sum(map(len, lines))))
        else:
            styles.pop()
            if token.type == "link_close":
                address, first = links.pop()
                text = plain([span for line in lines for span in line][first:])
                if safe_row(address) not in (text, f"mailto:{text}"):
                    put(f" ({address})", "2")
    return list(lines)


def table_rows(
    head: Sequence[Cell], body: Sequence[Sequence[Cell]], aligned: Sequence[str], *, width: int, style: MarkdownStyle
) -> list[Line]:
    """Return the rows of a table: a grid, or one row for each cell if the grid would be too wide.

    ``aligned`` is ``left``, ``center``, ``right`` or empty for each column.
    """
    bold = [[add_style("1", line) for line in cell] for cell in head]
    between = 3 * (len(head) - 1)
    every = [bold, *body]
    natural = [max(_width(row[n]) for row in every) for n in range(len(head))]
    least = [min(max(_longest_word(row[n]) for row in every), LONGEST_WORD) for n in range(len(head))]
    if sum(least) + between > width:
        return _stack(bold, body, width)
    return _grid(bold, body, aligned, _widths(natural, least, width - between), style)


def _widths(natural: list[int], least: list[int], room: int) -> list[int]:
    """Return the widths of a table's columns, in sum at most ``room``.

    A column has at least its ``least`` width and at most its ``natural`` width. The space above the least widths is
    divided equally. Wider columns get the space that a narrow column does not need.
    """
    widths = least
    for n in sorted(range(len(natural)), key=lambda n: natural[n] - least[n]):
        open_ones = sum(1 for m in range(len(natural)) if widths[m] < natural[m])
        share = (room - sum(widths)) // max(open_ones, 1)
        widths = [*widths[:n], min(natural[n], widths[n] + share), *widths[n + 1 :]]
    return widths


def _grid(
    head: Sequence[Cell],
    body: Sequence[Sequence[Cell]],
    aligned: Sequence[str],
    widths: list[int],
    style: MarkdownStyle,
) -> list[Line]:
    bar = style.sign(" │ ", " | ")
    rule: Line = [("2", style.sign("─┼─", "-+-").join(style.sign("─", "-") * width for width in widths))]
    cells = [[wrap_all(cell, width) for cell, width in zip(row, widths, strict=True)] for row in (head, *body)]
    # Separate rows that have several lines.
    is_ruled = any(len(cell) > 1 for row in cells[1:] for cell in row)
    rows: list[Line] = []
    for n, row in enumerate(cells):
        if n == 1 or (n > 1 and is_ruled):
            rows.append(rule)
        rows += [_join_cells(parts, widths, aligned, bar) for parts in zip_longest(*row, fillvalue=[])]
    return rows if body else [*rows, rule]


def _join_cells(parts: Sequence[Line], widths: list[int], aligned: Sequence[str], bar: str) -> Line:
    row: list[Span] = []
    for n, (part, width, side) in enumerate(zip(parts, widths, aligned, strict=True)):
        free = width - columns(plain(part))
        left = {"right": free, "center": free // 2}.get(side, 0)
        right = free - left if n < len(widths) - 1 else 0
        row += [("2", bar)] * (n > 0) + [("", " " * left), *part, ("", " " * right)]
    return row


def _stack(head: Sequence[Cell], body: Sequence[Sequence[Cell]], width: int) -> list[Line]:
    """Return a table as lines ``head: cell``, one for each cell, with a blank line between two rows of the table."""
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
