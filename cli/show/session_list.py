"""The table of ``chain sessions list`` and ``/resume``. Pure, plain text.

A session is on one row if the terminal is wide enough, else on several, so that only the query is cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from chain.text.phrases import local_time
from chain.text.wording import pluralize
from cli.show.signs import Sign, sign_for
from cli.show.text_rows import columns, cut, cut_start, flat, from_home, pad

if TYPE_CHECKING:
    from chain.app.sessions import Summary

LEAST_QUERY = 24
"""The minimum number of columns for the query in a table. With fewer columns, a session is on several rows."""
COLUMN_GAP = "  "
LIST_INDENT = "    "
NUMBER_COLUMNS = 4
"""The columns of the number before a session, in a list from which the user chooses."""


def resolve_choice(typed: str, sessions: Sequence[Summary]) -> str:
    """Return the id of the session if ``typed`` is its number in the list. Return any other text unchanged."""
    is_number = typed.isascii() and typed.isdigit() and 1 <= int(typed[:9]) <= len(sessions)
    return sessions[int(typed) - 1].id if is_number else typed


def resumption_rows(id: str, width: int) -> list[str]:
    """Return the rows that say how to resume a session. The command to type is never split."""
    first, second = "Resume this session with:", f"chain -r {id}"
    row = f"{first} {second}"
    return [row] if columns(row) <= width else [first, second]


def session_rows(
    sessions: Sequence[Summary],
    width: int,
    *,
    ascii: bool,
    here: str,
    now: float,
    home: str = "",
    is_numbered: bool = False,
) -> list[str]:
    """Return the table of the sessions, in rows of at most ``width`` columns. Return no rows if there are no sessions.

    A workspace other than ``here`` follows its session's query, with ``~`` for ``home``. ``is_numbered`` adds numbers.
    """
    if not sessions:
        return []
    sign = partial(sign_for, ascii=ascii)
    width -= NUMBER_COLUMNS if is_numbered else 0
    heads = ["", "changed", "session", "runs", "tokens", "cost", "waiting"]
    table = [_cells(each, sign, now) for each in sessions]
    # Omit columns that are empty for all sessions.
    shown = [n for n in range(7) if 0 < n < 5 or any(cells[n] for cells in table)]
    widths = {n: max(columns(cells[n]) for cells in (heads, *table)) for n in shown}
    room = width - sum(widths.values()) - len(COLUMN_GAP) * len(shown)

    def joined(cells: list[str], query: str) -> str:
        return COLUMN_GAP.join([*(pad(cells[n], widths[n], right=n > 2) for n in shown), query])

    found: list[str] = []
    if room >= LEAST_QUERY:
        found.append(f"{' ' * NUMBER_COLUMNS if is_numbered else ''}{joined(heads, 'query')}")
        queries = [_query(each, room, sign, here, home) for each in sessions]
        groups = [[joined(cells, query)] for cells, query in zip(table, queries, strict=True)]
    else:
        groups = [_narrow_rows(each, width, sign, here, home, now) for each in sessions]
    for n, (first, *others) in enumerate(groups, 1):
        number = f"{n:>2}. " if is_numbered else ""
        found += [(number + first).rstrip(), *((" " * len(number) + row).rstrip() for row in others)]
    if any(each.is_open for each in sessions):
        found += ["", cut(f"{sign('●')} open in another process", width, sign("…"))]
    return found


def _cells(session: Summary, sign: Sign, now: float) -> list[str]:
    usd = session.cost_usd
    return [
        sign("●") if session.is_open else "",
        short_time(session.changed, now),
        flat(session.id),
        f"{session.runs:,}",
        short_count(session.tokens),
        "" if usd is None else f"${usd:.2f}" if usd >= 0.01 or not usd else "<$0.01",
        f"{len(session.open_lines):,}" if session.open_lines else "",
    ]


def _narrow_rows(session: Summary, width: int, sign: Sign, here: str, home: str, now: float) -> list[str]:
    mark, when, id, _, tokens, cost, _ = _cells(session, sign, now)
    facts = [pluralize(session.runs, "run"), f"{tokens} tokens", *([cost] if cost else [])]
    facts += [f"{pluralize(len(session.open_lines), 'line')} waiting"] if session.open_lines else []
    found = [
        f"{pad(mark, columns(sign('●')))} {when}{COLUMN_GAP}{id}",
        f"{LIST_INDENT}{', '.join(facts)}",
        f"{LIST_INDENT}{_query(session, width - len(LIST_INDENT), sign, here, home)}",
    ]
    return [cut(row, width, sign("…")) for row in found]


def _query(session: Summary, room: int, sign: Sign, here: str, home: str) -> str:
    query = flat(session.query) or "(no query)"
    if not session.workspace or session.workspace == here:
        return cut(query, room, sign("…"))
    where = from_home(flat(session.workspace), home)
    where = f" in {cut_start(where, max(room // 3, 8), sign('…'))}"
    return cut(query, room - columns(where), sign("…")) + where


def short_time(at: float, now: float) -> str:
    """Return the time ``at`` as local time, without the date of today, and without the current year."""
    if local_time(at, "%Y-%m-%d") == local_time(now, "%Y-%m-%d"):
        return local_time(at, "today %H:%M")
    return local_time(at, "%d %b %H:%M" if local_time(at, "%Y") == local_time(now, "%Y") else "%Y-%m-%d") or "?"


def short_count(number: int) -> str:
    """Return a large number in few characters: ``950``, ``12k``, ``3.4M``."""
    if number < 10_000:
        return f"{number:,}"
    return f"{number // 1000:,}k" if number < 1_000_000 else f"{number / 1_000_000:,.1f}M"
