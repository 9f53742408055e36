"""The table of the stored sessions."""

import time
from dataclasses import replace

import pytest

from chain.session.listing import Summary
from cli.show.session_list import resumption_rows, session_rows, short_count, short_time
from cli.show.text_rows import columns

NOW = time.mktime((2026, 11, 23, 15, 30, 0, 0, 0, -1))
DAY_S = 86_400

PLAIN = Summary(
    id="20261122-222103-a7431e", changed=NOW - 3600, workspace="/home/ida/here", model="scripted",
    query="Count the lines of every file", runs=3, tokens=123_456, cost_usd=None, open_lines=(), is_open=False,
    was_used=True,
)  # fmt: skip
IN_USE = replace(
    PLAIN, cost_usd=1.5, open_lines=("L1", "L2"), is_open=True, workspace="/home/ida/there", query="x" * 200
)


def table(*sessions: Summary, width: int = 130, ascii: bool = False) -> list[str]:
    return session_rows(sessions, width, ascii=ascii, here="/home/ida/here", now=NOW, home="/home/ida")


def test_a_wide_table_has_one_row_per_session() -> None:
    head, row = table(PLAIN)
    assert head.split() == ["changed", "session", "runs", "tokens", "query"]
    assert row.split() == ["today", "14:30", "20261122-222103-a7431e", "3", "123k", *PLAIN.query.split()]


def test_without_a_session_there_is_no_table() -> None:
    assert table() == []


def test_a_column_needs_a_session_that_uses_it() -> None:
    head, plain, in_use, _, legend = table(PLAIN, IN_USE)
    assert head.split() == ["changed", "session", "runs", "tokens", "cost", "waiting", "query"]
    assert in_use.startswith("● ")
    assert "$1.50" in in_use
    assert in_use.endswith("… in ~/there")
    assert " in " not in plain
    assert legend == "● open in another process"


def test_a_narrow_table_cuts_only_the_query() -> None:
    name, facts, query, *_ = table(IN_USE, width=50)
    assert IN_USE.id in name
    assert facts.split(", ") == ["    3 runs", "123k tokens", "$1.50", "2 lines waiting"]
    assert query.endswith("in ~/there")


@pytest.mark.parametrize("width", [24, 40, 60, 80, 100, 200])
@pytest.mark.parametrize("ascii", [False, True])
def test_rows_fit_at_any_width(width: int, ascii: bool) -> None:
    japanese = replace(PLAIN, query="日本語 " * 50, workspace="/a/" + "long/" * 50)
    rows = table(IN_USE, japanese, replace(PLAIN, query="", tokens=0), width=width, ascii=ascii)
    assert all(columns(row) <= width for row in rows)
    assert not ascii or all(row.isascii() for row in rows if "日" not in row), "only a query may have other signs"


@pytest.mark.parametrize(
    ("seconds_ago", "shown"),
    [
        pytest.param(0, "today 15:30", id="today"),
        pytest.param(DAY_S, "22 Nov 15:30", id="this year"),
        pytest.param(400 * DAY_S, "2025-10-19", id="earlier year"),
        pytest.param(1e18, "?", id="before any calendar"),
    ],
)
def test_a_time_omits_what_is_clear(seconds_ago: float, shown: str) -> None:
    assert short_time(NOW - seconds_ago, NOW) == shown


@pytest.mark.parametrize(
    ("number", "shown"), [(0, "0"), (9_999, "9,999"), (12_345, "12k"), (999_999, "999k"), (3_450_000, "3.5M")]
)
def test_a_large_number_is_short(number: int, shown: str) -> None:
    assert short_count(number) == shown


def test_the_command_that_resumes_is_not_split() -> None:
    assert resumption_rows(PLAIN.id, 80) == [f"Resume this session with: chain -r {PLAIN.id}"]
    assert resumption_rows(PLAIN.id, 40) == ["Resume this session with:", f"chain -r {PLAIN.id}"]
