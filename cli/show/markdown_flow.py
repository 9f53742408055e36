"""Replies in Markdown, as rows for a terminal while they stream. Pure.

``MarkdownFlow`` is for a terminal with colours: a block becomes rows when it is complete, a fenced code block as its
lines come, and the unfinished block is ``tail``. ``PlainFlow`` leaves the text as it came. Both know whether a block is
open, so that nothing else is put into the middle of it. markdown-it-py and Pygments are imported when first used,
which takes about 0.1 s: ``warm`` does it before it matters.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

from cli.show.blocks import Blocks, CodeFence, fence_of, is_blank
from cli.show.highlight import CONTEXT
from cli.show.markdown_layout import MarkdownPage, code_rows, is_apart
from cli.show.spans import Look, painted_row
from cli.show.text_rows import Cleaner, Flow, hard_rows

MAX_CHARS = 12_000
"""Of a block that is rendered. A longer one is shown as it came: some hostile text takes 10 us a character to parse."""
MAX_LINES = 400
MAX_TAIL = 5
"""Rows of the unfinished block that are shown below: it is drawn again at each change."""
FLUSH = MAX_TAIL
"""Lines of a code block that are held back at most, so that all of them can be seen in the tail."""
TAIL_LINES = 8
"""Lines of an unfinished table that its last rows are made of, beside its head."""
TAIL_ROWS = 8
"""Rows that an unfinished block fills at least before only the end of it is parsed for the tail."""

_SIGNS = "-=+*#>|`~_:<.)0123456789 \t"
"""A line of these alone may become anything, so it is not shown before there is more of it."""

UNCUT = 1_000_000
"""Columns of a row that is left to the terminal to wrap."""

_LINES = re.compile(r"[^\n]*\n|[^\n]+")

_LANGUAGES = ("python", "json", "bash", "diff", "javascript", "yaml", "html")


class _ReplyFlow:
    """One streaming reply, ``width`` columns wide. ``width`` may be set at any time."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._cleaner = Cleaner()
        self._blocks = Blocks()
        self.whole: int | None = None
        """How many of the rows that ``add`` returned last belong to whole blocks; ``None`` if it completed none."""

    @property
    def is_open(self) -> bool:
        """Whether a block has begun and is not finished."""
        return self._blocks.is_open


class MarkdownFlow(_ReplyFlow):
    """A reply painted with SGR sequences."""

    def __init__(self, width: int, look: Look) -> None:
        super().__init__(width)
        self._look = look
        self._shown = _Shown()
        self._part: _Code | _Raw | None = None
        """The unfinished block, if its first lines were shown already."""

    @property
    def tail(self) -> str:
        """The last rows of the unfinished block as it will look, joined with newlines."""
        blocks, part = self._blocks, self._part
        if not blocks.is_open:
            return ""
        if part is None and _is_too_long(blocks.size + len(blocks.partial), len(blocks.lines)):
            part = _Raw()
        if part is not None:
            kind = part.kind
            rows = part.tail(blocks, self.width)
        else:
            begun = MarkdownPage(self._tail_source(), self.width, replace(self._look, cuts_code=True))
            kind, rows = begun.first, begun.rows
        if rows and (part is None or not part.count) and self._shown.is_apart(kind, after_blank=blocks.start > 0):
            rows = ["", *rows]
        return "\n".join(rows[-MAX_TAIL:])

    def add(self, text: str) -> list[str]:
        """Append a piece, and return the rows that it completes."""
        sources = self._blocks.add(self._cleaner.add(text))
        rows = [row for source in sources for row in self._block(source)]
        self.whole = len(rows) if sources else None
        return rows + self._begun()

    def end(self) -> list[str]:
        """End the text, and return the rows that are left."""
        sources = self._blocks.add(self._cleaner.end()) + self._blocks.end()
        return [row for source in sources for row in self._block(source)]

    def _block(self, source: str) -> list[str]:
        """The rows of a complete block that were not returned before."""
        if is_blank(source):
            self._shown.ends_blank = True
            return []
        lines = source.split("\n")
        start = next(n for n, line in enumerate(lines) if not is_blank(line))
        part, self._part = self._part or _part(lines[start], len(source), len(lines), self._look), None
        if part is None:
            done = MarkdownPage(source, self.width, self._look)
            if done.rows:
                self._shown.begin(done.first, after_blank=start > 0)
                self._shown.kind = done.last
            rows = self._shown.add(done.rows)
        else:
            rows = self._more(part, lines, start, is_whole=True)
        self._shown.ends_blank = len(lines) > 1 and is_blank(lines[-1]) and is_blank(lines[-2])
        return rows

    def _begun(self) -> list[str]:
        blocks = self._blocks
        is_in_parts = blocks.fence is not None or _is_too_long(blocks.size, len(blocks.lines))
        if self._part is None and blocks.kind and is_in_parts:
            self._part = _part(blocks.lines[blocks.start], blocks.size, len(blocks.lines), self._look)
        if self._part is None or len(blocks.lines) - blocks.start - self._part.count < self._part.flush:
            return []
        return self._more(self._part, blocks.lines, blocks.start)

    def _more(self, part: _Code | _Raw, lines: list[str], start: int, *, is_whole: bool = False) -> list[str]:
        if not part.count:
            self._shown.begin(part.kind, after_blank=start > 0)
        return self._shown.add(part.rows(lines[start + part.count :], self.width, is_whole=is_whole))

    def _tail_source(self) -> str:
        """Enough of the unfinished block for its last rows."""
        blocks = self._blocks
        partial = blocks.partial if blocks.partial.strip(_SIGNS) else ""
        enough = TAIL_ROWS * self.width
        if blocks.size + len(partial) <= 2 * enough:
            return "".join(blocks.lines) + partial
        if blocks.kind == "table_open":
            head = blocks.start + 2
            return "".join([*blocks.lines[:head], *blocks.lines[head:][-TAIL_LINES:], partial])
        text = "".join(blocks.lines) + partial
        # The place where it begins stays for a while, or else its rows would be cut at other words each time.
        text = text[(len(text) // enough - 1) * enough :]
        return text[max(text.find("\n"), 0) or max(text.find(" "), 0) :].lstrip()


class PlainFlow(_ReplyFlow):
    """A reply for a terminal without colours: the text as it came, cut into rows, code uncut."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self._flow = Flow(width)
        self._has_begun_line = False
        """Whether rows of the unfinished line were returned already."""

    @property
    def tail(self) -> str:
        """The last rows of the unfinished line, joined with newlines."""
        return "\n".join(hard_rows(self._flow.tail[-MAX_TAIL * self.width :], self.width)[-MAX_TAIL:])

    def add(self, text: str) -> list[str]:
        """Append a piece, and return the rows that it completes."""
        self.whole = None
        rows: list[str] = []
        for piece in _LINES.findall(self._cleaner.add(text)) or [""]:
            has_ended = bool(self._blocks.add(piece))
            if has_ended and self._blocks.is_open and not self._has_begun_line:
                self.whole = len(rows)  # this line begins the next block
            self._flow.width = self.width if self._blocks.fence is None else UNCUT
            found = self._flow.add(piece)
            self._has_begun_line = not piece.endswith("\n") and (self._has_begun_line or bool(found))
            rows += found
            if has_ended and not self._blocks.is_open:
                self.whole = len(rows)
        return rows

    def end(self) -> list[str]:
        """End the text, and return the unfinished row as its last one."""
        rows = self.add(self._cleaner.end())
        self._blocks.end()
        return rows + self._flow.end()


def render(text: str, width: int, *, ascii: bool) -> list[str]:
    """The rows of a whole Markdown text, such as a file, at most ``width`` columns each."""
    flow = MarkdownFlow(width, Look(ascii=ascii, reflow=True))
    return flow.add(text) + flow.end()


@cache
def warm() -> None:
    """Import what rendering needs, for a thread in the background: then the first reply does not wait for it."""
    for language in _LANGUAGES:
        render(f"# a\n\n| *b* |\n|---|\n| `c` |\n\n~~~{language}\nd\n~~~", 80, ascii=True)


class _Shown:
    """What was returned so far, as far as it decides about blank rows: none first, none last, one between blocks."""

    def __init__(self) -> None:
        self.has_rows = False
        self.kind = ""
        """Of the last block."""
        self.ends_blank = False
        """Whether a blank line followed it."""
        self._blanks = 0

    def is_apart(self, kind: str, *, after_blank: bool) -> bool:
        has_blank = self.ends_blank or after_blank
        return self.has_rows and (self._blanks > 0 or is_apart(self.kind, kind, has_blank=has_blank))

    def begin(self, kind: str, *, after_blank: bool) -> None:
        if self.is_apart(kind, after_blank=after_blank):
            self._blanks = max(self._blanks, 1)
        self.kind = kind

    def add(self, rows: list[str]) -> list[str]:
        shown = []
        for row in rows:
            if row:
                shown += [""] * self._blanks + [row]
                self._blanks, self.has_rows = 0, True
            else:
                self._blanks += self.has_rows
        return shown


class _Code:
    """A fenced code block whose rows are returned while it comes."""

    kind = "code"
    flush = FLUSH

    def __init__(self, fence: CodeFence, look: Look) -> None:
        self.count = 0
        """Lines of the block whose rows were returned, the opening line included."""
        self._fence = fence
        self._look = look
        self._before: list[str] = []
        self._waiting: tuple[tuple[int, int, int], list[str]] = (0, 0, 0), []
        """The rows of the whole lines in the tail, and what they were made of: colours take long for every piece."""

    def rows(self, lines: list[str], width: int, *, is_whole: bool) -> list[str]:
        """The rows of the lines that follow; ``is_whole`` if they are the last ones."""
        code = lines if self.count else lines[1:]
        self.count += len(lines)
        if is_whole:
            while code and is_blank(code[-1]):
                code.pop()
            if code and self._fence.is_closed_by(code[-1]):
                code.pop()
        # A line of spaces is a blank one: those at the end are not shown, and may be the end for all that is known.
        code = ["" if is_blank(line) else self._fence.code(line) for line in code]
        # So many at once did not come from a stream: to colour them all would take too long.
        language = self._fence.language if len(code) <= MAX_LINES else ""
        rows = code_rows(code, language, width, self._look, self._before)
        self._before = [*self._before, *code][-CONTEXT:]
        return [painted_row(row) for row in rows]

    def tail(self, blocks: Blocks, width: int) -> list[str]:
        """The rows of the last lines that were not returned, and of the unfinished one."""
        lines = blocks.lines[blocks.start + max(self.count, 1) :][-MAX_TAIL:]
        # A line may be very long: its end is what will be seen.
        partial = blocks.partial[-MAX_TAIL * width :] if blocks.partial.strip("`~ ") else ""
        if self._waiting[0] != (key := (self.count, len(lines), width)):
            self._waiting = key, self._rows_now(lines, width, self._before[-MAX_TAIL:])
        return self._waiting[1] + (self._rows_now([partial], width, []) if partial else [])

    def _rows_now(self, lines: list[str], width: int, before: list[str]) -> list[str]:
        code = [self._fence.code(line) for line in lines]
        rows = code_rows(code, self._fence.language, width, replace(self._look, cuts_code=True), before)
        return [painted_row(row) for row in rows]


class _Raw:
    """A block that is too long to be rendered: its text as it came."""

    kind = "paragraph"
    flush = 1

    def __init__(self) -> None:
        self.count = 0
        self._flow = Flow(0)

    def rows(self, lines: list[str], width: int, *, is_whole: bool) -> list[str]:
        self.count += len(lines)
        self._flow.width = width
        rows = self._flow.add("".join(line.removesuffix("\n") + "\n" for line in lines))
        return rows + self._flow.end() if is_whole else rows

    def tail(self, blocks: Blocks, width: int) -> list[str]:
        flow = Flow(width)
        lines = blocks.lines[blocks.start + self.count :][-MAX_TAIL:]
        rows = [row for line in (*lines, blocks.partial) for row in flow.add(line[-MAX_TAIL * width :])]
        return rows + flow.end()


def _part(first: str, chars: int, lines: int, look: Look) -> _Code | _Raw | None:
    if (fence := fence_of(first)) is not None:
        return _Code(fence, look)
    return _Raw() if _is_too_long(chars, lines) else None


def _is_too_long(chars: int, lines: int) -> bool:
    return chars > MAX_CHARS or lines > MAX_LINES
