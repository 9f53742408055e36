"""Where the rows of an event stand: how much room there is, how far in, whose they are, and how they may look. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from chain.text.plain import sanitize
from cli.show import signs
from cli.show.child_agents import indent, short_name
from cli.show.spans import Span, lines_in, painted_row, plain, wrap_all
from cli.show.text_rows import cut, flat, in_rows
from cli.show.user_lines import NO_BREAK, as_typed

ROW_INDENT = "  "
"""Before the rows of one text that follow its first."""


@dataclass(frozen=True, slots=True)
class RowPlace:
    """A place on a screen ``width`` columns wide.

    ``wraps``: a text that is shown whole is cut into rows; else the terminal wraps it, which would put the rows of a
    child out of their place, so these are always cut. ``indent`` stands before each row, ``who`` before each text.
    """

    width: int
    color: bool
    ascii: bool
    wraps: bool
    indent: str = ""
    who: str = ""

    @property
    def room(self) -> int:
        """The columns beside the indentation."""
        return self.width - len(self.indent)

    def below(self, depth: int, agent: str) -> RowPlace:
        """Return the place of an agent ``depth`` levels down; ``agent`` is empty where the texts name it."""
        who = f"{self.name(agent)}: " if agent else ""
        return replace(self, indent=indent(depth, self.width), who=who)

    def name(self, agent: str) -> str:
        """Return an agent's name, cut."""
        return short_name(agent, self.width, self.sign("…"))

    def sign(self, sign: str) -> str:
        """Return a sign as this terminal shows it."""
        return signs.written(sign, ascii=self.ascii)

    def paint(self, style: str, text: str) -> str:
        """Return a text in a style, if there are colours."""
        return f"\x1b[{signs.SGR[style]}m{text}\x1b[0m" if self.color and text else text

    def cut(self, row: str, width: int | None = None) -> str:
        """Return at most ``width`` columns of a row, or what fits, with a mark at the end if it was cut."""
        return cut(row, self.room if width is None else width, self.sign("…"))

    def one_row(self, row: str) -> str:
        """Return a text on one row that fits, with its own spaces."""
        return self.cut(sanitize(row).replace("\n", " ").expandtabs(4))

    def signed(self, sign: str, text: str, style: str) -> str:
        """Return a sign and a text that is flat already, on one row that fits."""
        return self.paint(style, self.cut(f"{self.sign(sign)} {self.who}{text}"))

    def line(self, sign: str, text: str, style: str) -> str:
        """Return a sign and a text on one row that fits."""
        return self.signed(sign, flat(text), style)

    def note(self, sign: str, text: str, style: str) -> list[str]:
        """Return a sign and a text that is shown in full, however long it is."""
        text = f"{self.sign(sign)} {self.who}{text}"
        return [self.paint(style, row) for row in (in_rows(text, self.room) if self._cuts else [text])]

    def refusal(self, text: str, most: int) -> list[str]:
        """Return at most so many rows that say why a call failed. The last one is cut."""
        rows = in_rows(text, self.room)
        rows[most - 1 :] = filter(None, [" ".join(rows[most - 1 :])])
        return [self.paint("red", self.cut(row)) for row in rows]

    def spans(self, spans: Sequence[Span]) -> list[str]:
        """Return a styled text that is shown in full; the rows after the first stand further in."""
        rows = lines_in((signs.SGR.get(style, ""), text) for style, text in spans)
        if self._cuts:
            rows = wrap_all(rows, self.room - len(ROW_INDENT))
        as_row = painted_row if self.color else plain
        return hanging([as_row(row).replace(NO_BREAK, " ").rstrip() for row in rows])

    @property
    def _cuts(self) -> bool:
        return self.wraps or bool(self.indent)


def hanging(rows: Sequence[str]) -> list[str]:
    """Return the rows of one text, those after the first further in."""
    return [f"{ROW_INDENT}{row}" if n and row else row for n, row in enumerate(rows)]


def rows_of(text: str) -> list[str]:
    """Return the rows of a text, without the blank ones around it."""
    return as_typed(text).split("\n") if text.strip() else []
