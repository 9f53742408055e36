"""Sessions as rows, for who looks for one to go on with. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Protocol

from chain.wording import counted
from cli.show.table import GAP, table
from cli.show.text import columns, cut, flat

CUT = "..."
LEAST = 12
"""Columns of a query at least: a row that the terminal wraps says more than an id alone."""


class Summary(Protocol):
    """What is known of a session that was closed."""

    @property
    def id(self) -> str:
        """Its id."""
        ...

    @property
    def began(self) -> float:
        """When it was begun, in seconds since the epoch."""
        ...

    @property
    def query(self) -> str:
        """Its first query; empty for none."""
        ...

    @property
    def runs(self) -> int:
        """How many runs it has had."""
        ...

    @property
    def tokens(self) -> int:
        """What they have used."""
        ...

    @property
    def cost_usd(self) -> float | None:
        """What that cost; ``None`` if it is unknown."""
        ...

    @property
    def open_lines(self) -> Sequence[str]:
        """The ids of the lines that still wait in it."""
        ...

    @property
    def workspace(self) -> str:
        """The folder that it worked in."""
        ...


def session_rows(found: Iterable[Summary], width: int) -> list[str]:
    """A row for each session: id, when it was begun, how many lines wait in it, and its first query cut to fit."""
    rows = [
        (each.id, _date(each.began), _waiting(len(each.open_lines)), flat(each.query[: 4 * width])) for each in found
    ]
    taken = sum(max(columns(row[n]) for row in rows) + GAP for n in range(3)) if rows else 0
    room = max(width - taken - GAP, LEAST)
    return table([(*first, cut(query, room, CUT)) for *first, query in rows], width)


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _waiting(lines: int) -> str:
    return f"{counted(lines, 'line')} {'waits' if lines == 1 else 'wait'}" if lines else ""
