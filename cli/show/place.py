"""The layout of an event's rows: the width, the indentation, the agent's name, and the style. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from chain.text.plain import sanitize
from cli.show import signs
from cli.show.child_agents import indent, short_name
from cli.show.spans import Span, lines_in, paint_row, plain, wrap_all
from cli.show.text_rows import cut, flat, in_rows
from cli.show.user_lines import NO_BREAK, as_typed

ROW_INDENT = "  "
"""The additional indentation of a text's second and later rows."""


@dataclass(frozen=True, slots=True)
class RowPlace:
    """The layout of rows for agents at one depth, on a screen ``width`` columns wide.

    ``wraps``: long texts that are shown in full are cut into rows here. Otherwise the terminal wraps them. Indented
    rows are always cut here. ``indent`` precedes each row, and ``who``, the agent's name, each text.
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
        """Return the layout for an agent ``depth`` levels down. Each text begins with the name ``agent``, if any."""
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
        """Return a row cut to ``width`` columns, by default to the room, with a mark at the end if it was cut."""
        return cut(row, self.room if width is None else width, self.sign("…"))

    def one_row(self, row: str) -> str:
        """Return a text on one row, cut to the room. Its spaces are preserved."""
        return self.cut(sanitize(row).replace("\n", " ").expandtabs(4))

    def signed(self, sign: str, text: str, style: str) -> str:
        """Return a row with a sign and a text, cut to the room. The text must be flat."""
        return self.paint(style, self.cut(f"{self.sign(sign)} {self.who}{text}"))

    def line(self, sign: str, text: str, style: str) -> str:
        """Return a row with a sign and a text, cut to the room. The text is flattened first."""
        return self.signed(sign, flat(text), style)

    def note(self, sign: str, text: str, style: str) -> list[str]:
        """Return a sign and a whole text, on as many rows as needed."""
        text = f"{self.sign(sign)} {self.who}{text}"
        return [self.paint(style, row) for row in (in_rows(text, self.room) if self._cuts else [text])]

    def refusal(self, text: str, most: int) -> list[str]:
        """Return the reason of a failed call on at most ``most`` rows. The last row is cut if the reason is longer."""
        rows = in_rows(text, self.room)
        rows[most - 1 :] = filter(None, [" ".join(rows[most - 1 :])])
        return [self.paint("red", self.cut(row)) for row in rows]

    def spans(self, spans: Sequence[Span]) -> list[str]:
        """Return a whole styled text as rows. Rows after the first are indented by ``ROW_INDENT``."""
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
