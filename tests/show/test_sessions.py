"""Sessions as rows for people."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest

from cli.show.sessions import session_rows
from cli.show.text import columns


@dataclass(frozen=True)
class Closed:
    id: str
    query: str
    open_lines: tuple[str, ...] = ()
    began: float = 1e9
    runs: int = 1
    tokens: int = 10
    cost_usd: float | None = None
    workspace: str = "/work"


def test_a_row_has_the_id_the_time_what_waits_and_the_first_query() -> None:
    began = time.mktime((2026, 3, 4, 5, 6, 7, 0, 0, -1))
    one, two, none = session_rows(
        [Closed("a1", "Find the\nbug", ("L1",), began), Closed("a2", "", ("L1", "L2")), Closed("a3", "Do it")], 80
    )
    assert one.split() == ["a1", "2026-03-04", "05:06", "1", "line", "waits", "Find", "the", "bug"]
    assert two.endswith("2 lines wait")
    assert none.split()[-2:] == ["Do", "it"]
    assert "wait" not in none
    assert one.index("Find") == none.index("Do it")


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("query", ["word " * 300, "x" * 5_000, "日本語" * 100, "\x1b[2Jgone " * 40])
def test_a_query_is_cut_to_its_row(width: int, query: str) -> None:
    (row,) = session_rows([Closed("20260101-120000-abcdef", query)], width)
    assert columns(row) <= width
    assert row.endswith("...")
    assert row.isprintable()


def test_without_sessions_there_are_no_rows() -> None:
    assert session_rows([], 80) == []
