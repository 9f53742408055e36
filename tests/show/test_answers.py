"""The rows of ``/agents`` and ``/undo``."""

from dataclasses import replace
from typing import Any

import pytest

from chain.agent.tree import AgentView
from chain.chain import Checkpoint
from chain.journal.records import FileChanged
from cli.show.answers import tree_rows, undo_rows
from cli.show.session_list import short_time

NOW = 1_000.0

MAIN = AgentView(
    name="main", kind="main", parent="", task="look at it", state="executing", since=NOW - 75, iteration=3,
    max_iterations=20, tokens=12_345, waiting=0,
)  # fmt: skip
CHILD = replace(
    MAIN, name="explore-1", parent="main", task="find the tests", since=NOW - 12, iteration=2, tokens=1_234, waiting=2
)
GRANDCHILD = replace(CHILD, name="agent-1", parent="explore-1", task="deeper into it", iteration=0, tokens=1, waiting=0)
ENDING_CHILD = replace(CHILD, name="explore-12", task="read the documents", state="completing", waiting=1)
FINISHED_CHILD = replace(CHILD, name="explore-3", task="count the files", state="finished")
FINISHED_GRANDCHILD = replace(FINISHED_CHILD, name="plan-1", parent="explore-3", task="plan it")


@pytest.mark.parametrize(
    ("agents", "width", "rows"),
    [
        pytest.param([MAIN, CHILD, ENDING_CHILD, GRANDCHILD], 120, [
            "main          1 min 15 s, 3/20, 12,345 tokens  look at it",
            "  explore-1   12 s, 2/20, 2 lines waiting, 1,234 tokens  find the tests",
            "    agent-1   12 s, 1 token  deeper into it",
            "  explore-12  12 s, 2/20, ends, 1 line waiting, 1,234 tokens  read the documents",
        ], id="at work"),
        pytest.param([replace(MAIN, task="", state="finished"), FINISHED_CHILD, FINISHED_GRANDCHILD], 120, [
            "main  idle",
            "Finished, can be asked again:",
            "  explore-3  count the files",
            "  plan-1     plan it",
        ], id="finished"),
        pytest.param([MAIN, CHILD, FINISHED_CHILD], 40, [
            "main         1 min 15 s, 3/20, 12,345...",
            "  explore-1  12 s, 2/20, 2 lines wait...",
            "Finished, can be asked again:",
            "  explore-3  count the files",
        ], id="narrow terminal"),
    ],
)  # fmt: skip
def test_each_agent_has_a_row(agents: list[AgentView], width: int, rows: list[str]) -> None:
    assert tree_rows(agents, width, now=NOW) == rows


def checkpoint(query: str, *changed_files: str) -> Checkpoint:
    changes = [FileChanged("main", "t1", path, before="", after="a") for path in changed_files]
    unused_history: Any = None
    return Checkpoint(query, NOW - 60, unused_history, changes)


def test_each_run_to_undo_has_a_row() -> None:
    runs = [
        checkpoint("fix\nthe test", "b.py", "a.py", "b.py"),
        checkpoint("x" * 100),
        checkpoint("", "a.py", "b.py", "c.py", "d.py", "e.py"),
    ]
    head, *rows = undo_rows(runs, 80, now=NOW)
    began = short_time(NOW - 60, NOW)
    assert head.startswith("/undo N ")
    assert [" ".join(row.split()) for row in rows] == [
        f"1 {began} fix the test b.py, a.py",
        f"2 {began} {'x' * 30}... no file",
        f"3 {began} (no query) a.py, b.py, c.py and 2 more",
    ]


def test_without_a_run_nothing_can_be_undone() -> None:
    assert undo_rows([], 80, now=NOW) == ["No run can be undone."]
