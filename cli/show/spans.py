"""Styled text as rows: cut to a width in terminal columns, and painted. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from chain.text.plain import sanitize
from cli.show.text_rows import TAB, word_places

Span: TypeAlias = tuple[str, str]
"""A style and a text without newlines. The style is empty, or the parameters of an SGR sequence, such as ``1;36``."""
Line: TypeAlias = Sequence[Span]
"""The spans of one line of text, or of one row of a line that was wrapped."""


@dataclass(frozen=True)
class MarkdownStyle:
    """The style of rendered Markdown.

    ``reflow`` joins the lines of a paragraph. Set it for files, but not for a model's text, whose line ends are
    intentional.
    """

    ascii: bool = False
    reflow: bool = False

    def sign(self, sign: str, plain: str) -> str:
        """Return the sign, or ``plain`` if only ASCII is shown."""
        return plain if self.ascii else sign


def paint_row(line: Line) -> str:
    """Return the line as a row with SGR sequences. Each span resets its own colours."""
    return "".join(f"\x1b[{sgr}m{text}\x1b[0m" if sgr and text else text for sgr, text in line)


def safe_row(text: str) -> str:
    """Return untrusted text on one row, without the control sequences that the Markdown parser may have decoded."""
    return sanitize(text).replace("\n", " ").replace("\t", " " * TAB)


def plain(line: Line) -> str:
    """Return the text of a line without its styles."""
    return "".join(text for _, text in line)


def lines_in(spans: Iterable[Span]) -> list[Line]:
    """Split spans at their newlines into lines."""
    lines: list[list[Span]] = [[]]
    for sgr, text in spans:
        first, *rest = text.replace("\t", " " * TAB).split("\n")
        lines[-1].append((sgr, first))
        lines += [[(sgr, part)] for part in rest]
    return list(lines)


def wrap(line: Line, width: int) -> list[Line]:
    """Return a line as rows of at most ``width`` columns, cut between words where possible."""
    text = plain(line)
    if len(text) <= width and text.isascii() and not text.endswith(" "):
        return [line]
    return _slices(line, word_places(text, width))


def wrap_all(lines: Iterable[Line], width: int) -> list[Line]:
    """Return several lines as rows of at most ``width`` columns."""
    return [row for line in lines for row in wrap(line, width)]


def add_style(sgr: str, line: Line) -> Line:
    """Return the line with the style ``sgr`` added to each span. The style that a span already has takes precedence."""
    return [(";".join(filter(None, (sgr, own))), text) for own, text in line]


def _slices(line: Line, places: list[tuple[int, int]]) -> list[Line]:
    """Return the parts of a line between the pairs of indices ``places``, which are in order and do not overlap."""
    parts: list[Line] = []
    spans = iter(line)
    sgr, text = next(spans, ("", ""))
    begin = 0
    for start, end in places:
        part: list[Span] = []
        while True:
            if piece := text[max(start - begin, 0) : max(end - begin, 0)]:
                part.append((sgr, piece))
            if end <= begin + len(text):
                break
            begin += len(text)
            sgr, text = next(spans)
        parts.append(part)
    return parts
