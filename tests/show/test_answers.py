"""The rows of ``/agents``."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.painted import check_row

from chain.agent.tree import Activity, AgentView
from chain.chain import Checkpoint
from chain.journal.records import FileChanged
from cli.show.answers import tree_rows, undo_rows
from cli.show.session_list import moment

NOW = 1_000.0


def view(
    name: str,
    parent: str = "main",
    task: str = "find the tests",
    state: Activity = "executing",
    since: float = NOW - 12,
    iteration: int = 2,
    tokens: int = 1_234,
    waiting: int = 0,
) -> AgentView:
    return AgentView(name, "explore", parent, task, state, since, iteration, 20, tokens, waiting)


MAIN = view("main", "", "look at it", since=NOW - 75, iteration=3, tokens=12_345)
ONE = view("explore-1", waiting=2)
BELOW = view("agent-1", "explore-1", "deeper into it", iteration=0, tokens=1)
TWO = view("explore-12", task="read the documents", state="completing", waiting=1)
DONE = view("explore-3", task="count the files", state="finished")


@pytest.mark.parametrize(
    ("agents", "rows"),
    [
        ([], []),
        ([MAIN], ["main  1 min 15 s, 3/20, 12,345 tokens  look at it"]),
        ([MAIN, ONE, TWO, BELOW], [
            "main          1 min 15 s, 3/20, 12,345 tokens  look at it",
            "  explore-1   12 s, 2/20, 2 lines waiting, 1,234 tokens  find the tests",
            "    agent-1   12 s, 1 token  deeper into it",
            "  explore-12  12 s, 2/20, ends, 1 line waiting, 1,234 tokens  read the documents",
        ]),
        ([view("main", "", "", "finished"), DONE], [
            "main  idle",
            "Finished, can be asked again:",
            "  explore-3  count the files",
        ]),
        ([BELOW, ONE], [
            "explore-1  12 s, 2/20, 2 lines waiting, 1,234 tokens  find the tests",
            "  agent-1  12 s, 1 token  deeper into it",
        ]),
        ([MAIN, DONE, view("plan-1", "explore-3", state="finished")], [
            "main  1 min 15 s, 3/20, 12,345 tokens  look at it",
            "Finished, can be asked again:",
            "  explore-3  count the files",
            "  plan-1     find the tests",
        ]),
    ],
)  # fmt: skip
def test_a_row_for_each_agent(agents: list[AgentView], rows: list[str]) -> None:
    assert tree_rows(agents, 120, now=NOW) == rows


def test_on_forty_columns_what_was_asked_is_cut_first() -> None:
    assert tree_rows([MAIN, ONE, DONE], 40, now=NOW) == [
        "main         1 min 15 s, 3/20, 12,345...",
        "  explore-1  12 s, 2/20, 2 lines wait...",
        "Finished, can be asked again:",
        "  explore-3  count the files",
    ]


NAMES = st.sampled_from(["main", "a", "b", "c", "explore-1", "漢字" * 9, "\x1b[2Jx\ny", ""])


@given(
    st.lists(
        st.builds(
            view, NAMES, NAMES, NAMES, st.sampled_from(["executing", "completing", "finished"]), st.floats(0, 1e6)
        ),
        unique_by=lambda view: view.name,
    ),
    st.integers(20, 120),
)
def test_whatever_the_agents_each_row_fits_and_nobody_is_shown_twice(agents: list[AgentView], width: int) -> None:
    rows = tree_rows(agents, width, now=NOW)
    for row in rows:
        check_row(row, width)
    assert len(rows) <= len(agents) + 1


BEFORE: Any = None
"""The conversation before a run, which no row shows."""


def point(query: str, *paths: str) -> Checkpoint:
    return Checkpoint(query, NOW - 60, BEFORE, [FileChanged("main", "t1", path, "", "a") for path in paths])


def test_runs_to_undo_are_numbered_as_undo_counts_them() -> None:
    points = [
        point("fix\nthe test", "b.py", "a.py", "b.py"),
        point("x" * 100),
        point("", "a", "b\x1b[2J", "c", "d", "e"),
    ]
    head, *rows = undo_rows(points, 80, now=NOW)
    assert head.startswith("/undo N ")
    assert [" ".join(row.split()) for row in rows] == [
        f"1 {moment(NOW - 60, NOW)} fix the test b.py, a.py",
        f"2 {moment(NOW - 60, NOW)} {'x' * 30}... no file",
        f"3 {moment(NOW - 60, NOW)} (no query) a, b, c and 2 more",
    ]
    for row in (head, *rows):
        check_row(row, 80)


def test_with_no_run_to_undo_it_says_so() -> None:
    assert undo_rows([], 80, now=NOW) == ["No run can be undone."]
