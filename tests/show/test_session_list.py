"""The table of the sessions: what a row has, and that it fits."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from chain.session.listing import Summary
from cli.show.session_list import moment, resumption_rows, session_rows, short_count
from cli.show.text_rows import columns

NOW = time.mktime((2026, 11, 23, 15, 30, 0, 0, 0, -1))


KEPT = Summary(
    id="20261122-222103-a7431e",
    changed=NOW - 3600,
    workspace="/home/ida/here",
    model="scripted",
    query="Count the lines of every file",
    runs=3,
    tokens=123_456,
    cost_usd=None,
    open_lines=(),
    is_open=False,
    was_used=True,
)


def table(sessions: Sequence[Summary], width: int = 100, *, ascii: bool = False) -> list[str]:
    return session_rows(sessions, width, ascii=ascii, here="/home/ida/here", now=NOW, home="/home/ida")


FULL = replace(KEPT, cost_usd=1.5, open_lines=("L1", "L2"), is_open=True, workspace="/home/ida/there", query="x" * 200)


def test_a_row_has_what_a_session_is_known_by() -> None:
    head, row = table([KEPT])
    assert head.split() == ["changed", "session", "runs", "tokens", "query"]
    assert row.split() == ["today", "14:30", "20261122-222103-a7431e", "3", "123k", *KEPT.query.split()]


def test_what_some_session_has_is_a_column() -> None:
    assert table([]) == []
    head, plain, full, _, mark = table([KEPT, FULL], 130)
    assert head.split() == ["changed", "session", "runs", "tokens", "cost", "waiting", "query"]
    assert full.startswith("● ")
    assert "$1.50" in full
    assert full.endswith("… in ~/there")
    assert " in " not in plain
    assert mark == "● open in another process"


@pytest.mark.parametrize("width", [24, 40, 60, 80, 100, 200])
@pytest.mark.parametrize("ascii", [False, True])
def test_it_fits(width: int, ascii: bool) -> None:
    wide = replace(KEPT, query="日本語 " * 50, workspace="/a/" + "long/" * 50)
    found = table([FULL, wide, replace(KEPT, query="", tokens=0)], width, ascii=ascii)
    assert all(columns(row) <= width for row in found)
    assert not ascii or all(row.isascii() for row in found if "日" not in row)


def test_on_a_narrow_terminal_nothing_but_the_query_is_cut() -> None:
    first, facts, query, *_ = table([FULL], 50)
    assert FULL.id in first
    assert facts.split(", ") == ["    3 runs", "123k tokens", "$1.50", "2 lines waiting"]
    assert query.endswith("in ~/there")


def test_texts_of_others_stay_texts() -> None:
    (row,) = [
        row for row in table([replace(KEPT, query="a\x1b[2J\nb", id="x\x07y", workspace="/\x07z")]) if "xy" in row
    ]
    assert "a b in /z" in row


@pytest.mark.parametrize(
    ("ago", "shown"),
    [(0, "today 15:30"), (86_400, "22 Nov 15:30"), (400 * 86_400, "2025-10-19"), (1e18, "?")],
)
def test_a_time_is_as_short_as_it_is_clear(ago: float, shown: str) -> None:
    assert moment(NOW - ago, NOW) == shown


@pytest.mark.parametrize(
    ("number", "shown"), [(0, "0"), (9_999, "9,999"), (12_345, "12k"), (999_999, "999k"), (3_450_000, "3.5M")]
)
def test_a_large_number_is_short(number: int, shown: str) -> None:
    assert short_count(number) == shown


def test_the_command_that_resumes_a_session_is_on_one_row() -> None:
    assert resumption_rows(KEPT.id, 80) == [f"Resume this session with: chain -r {KEPT.id}"]
    assert resumption_rows(KEPT.id, 40) == ["Resume this session with:", f"chain -r {KEPT.id}"]
