"""The rows of ``/agents`` and ``/undo``."""

from typing import Any

import pytest

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
    ("agents", "width", "rows"),
    [
        ([MAIN, ONE, TWO, BELOW], 120, [
            "main          1 min 15 s, 3/20, 12,345 tokens  look at it",
            "  explore-1   12 s, 2/20, 2 lines waiting, 1,234 tokens  find the tests",
            "    agent-1   12 s, 1 token  deeper into it",
            "  explore-12  12 s, 2/20, ends, 1 line waiting, 1,234 tokens  read the documents",
        ]),
        ([view("main", "", "", "finished"), DONE, view("plan-1", "explore-3", state="finished")], 120, [
            "main  idle",
            "Finished, can be asked again:",
            "  explore-3  count the files",
            "  plan-1     find the tests",
        ]),
        ([MAIN, ONE, DONE], 40, [
            "main         1 min 15 s, 3/20, 12,345...",
            "  explore-1  12 s, 2/20, 2 lines wait...",
            "Finished, can be asked again:",
            "  explore-3  count the files",
        ]),
    ],
    ids=["at work", "finished", "narrow"],
)  # fmt: skip
def test_each_agent_has_a_row(agents: list[AgentView], width: int, rows: list[str]) -> None:
    assert tree_rows(agents, width, now=NOW) == rows


def test_runs_are_numbered_as_undo_counts_them() -> None:
    history: Any = None
    points = [
        Checkpoint(query, NOW - 60, history, [FileChanged("main", "t1", path, "", "a") for path in paths])
        for query, paths in [("fix\nthe test", "bab"), ("x" * 100, ""), ("", "abcde")]
    ]
    head, *rows = undo_rows(points, 80, now=NOW)
    assert head.startswith("/undo N ")
    when = moment(NOW - 60, NOW)
    assert [" ".join(row.split()) for row in rows] == [
        f"1 {when} fix the test b, a",
        f"2 {when} {'x' * 30}... no file",
        f"3 {when} (no query) a, b, c and 2 more",
    ]
    assert undo_rows([], 80, now=NOW) == ["No run can be undone."]
