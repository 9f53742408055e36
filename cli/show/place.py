"""The layout of an event's rows: the width, the indentation, the agent's name, and the style. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from chain.text.plain import sanitize
from cli.show import signs
from cli.show.child_agents import indent, short_name
from cli.show.spans import Span, lines_in, paint_row, plain, wrap_all
from cli.show.text_rows import cut, flat, wrap_text
from cli.show.user_lines import NO_BREAK, as_typed

ROW_INDENT = "  "
"""The additional indentation of a text's second and later rows."""


@dataclass(frozen=True, slots=True)
class RowPlace:
    """The layout of rows for agents at one depth, on a screen ``width`` columns wide.

    ``indent`` precedes each row. ``who``, the agent's name with a colon, precedes each text. ``wraps``: long texts are
    cut into rows of this width. If false, only indented texts are cut, and the terminal wraps the others.
    """

    width: int
    color: bool
    ascii: bool
    wraps: bool
    indent: str = ""
    who: str = ""

    @property
    def room(self) -> int:
        """The columns of a row that remain after the indentation."""
        return self.width - len(self.indent)

    def nest(self, depth: int, agent: str) -> RowPlace:
        """Return the layout for rows ``depth`` levels down. Each text begins with the name ``agent``, unless empty."""
        who = f"{self.name(agent)}: " if agent else ""
        return replace(self, indent=indent(depth, self.width), who=who)

    def name(self, agent: str) -> str:
        """Return an agent's name, cut by ``short_name`` for the width of the screen."""
        return short_name(agent, self.width, self.sign("…"))

    def sign(self, sign: str) -> str:
        """Return a sign, or its replacement on an ASCII terminal."""
        return signs.sign_for(sign, ascii=self.ascii)

    def paint(self, style: str, text: str) -> str:
        """Return a text in a style, if there are colours."""
        return f"\x1b[{signs.SGR[style]}m{text}\x1b[0m" if self.color and text else text

    def cut(self, row: str, width: int | None = None) -> str:
        """Return a row cut to ``width`` columns, by default to ``room``, with a mark at the end if it was cut."""
        return cut(row, self.room if width is None else width, self.sign("…"))

    def one_row(self, row: str) -> str:
        """Return a text on one row, cut to ``room`` columns. The spaces of the text are preserved."""
        return self.cut(sanitize(row).replace("\n", " ").expandtabs(4))

    def signed(self, sign: str, text: str, style: str) -> str:
        """Return a row with a sign and a text, cut to ``room`` columns. The caller passes the text through ``flat``."""
        return self.paint(style, self.cut(f"{self.sign(sign)} {self.who}{text}"))

    def line(self, sign: str, text: str, style: str) -> str:
        """Return a row with a sign and any text, which is put on one row, cut to ``room`` columns."""
        return self.signed(sign, flat(text), style)

    def note(self, sign: str, text: str, style: str) -> list[str]:
        """Return the rows of a sign and a text. Nothing of the text is omitted."""
        text = f"{self.sign(sign)} {self.who}{text}"
        return [self.paint(style, row) for row in (wrap_text(text, self.room) if self._cuts else [text])]

    def failure_rows(self, text: str, most: int) -> list[str]:
        """Return the reason of a failed call in red, on at most ``most`` rows. The last row is cut if necessary."""
        rows = wrap_text(text, self.room)
        rows[most - 1 :] = filter(None, [" ".join(rows[most - 1 :])])
        return [self.paint("red", self.cut(row)) for row in rows]

    def spans(self, spans: Sequence[Span]) -> list[str]:
        """Return the rows of a styled text. Nothing is omitted. ``ROW_INDENT`` precedes each row but the first."""
        rows = lines_in((signs.SGR.get(style, ""), text) for style, text in spans)
        if self._cuts:
            rows = wrap_all(rows, self.room - len(ROW_INDENT))
        as_row = paint_row if self.color else plain
        return indent_rest([as_row(row).replace(NO_BREAK, " ").rstrip() for row in rows])

    @property
    def _cuts(self) -> bool:
        return self.wraps or bool(self.indent)


def indent_rest(rows: Sequence[str]) -> list[str]:
    """Return the rows with ``ROW_INDENT`` before each one but the first and blank ones."""
    return [f"{ROW_INDENT}{row}" if n and row else row for n, row in enumerate(rows)]


def rows_of(text: str) -> list[str]:
    """Return the rows of a text, without leading and trailing blank ones."""
    return as_typed(text).split("\n") if text.strip() else []
