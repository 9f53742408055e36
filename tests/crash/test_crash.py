"""The real program, killed at points that are spread over all its writes and syncs, and resumed.

``python -m tests.crash --points 5000`` plays more of them. A point that failed is shown with the command that plays it
again.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence

import pytest
from support.examples import IS_SHORT, fewer

from .plan import shares, tasks
from .scenarios import BY_NAME
from .tally import Report, told
from .workers import Row, do, started

POINTS = fewer(300, divided_by=50)
"""Over all scenarios; half a minute of a core for each hundred."""

SEED = 13
TOGETHER = 20 if IS_SHORT else 4
"""Scenarios of a test: tests run at the same time."""

NAMES = list(BY_NAME)


Worker = subprocess.Popen[str]


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """A process that plays: one for all tests of one of ours, since it takes two seconds to start."""
    with started() as process:
        yield process


def played(worker: Worker, todo: Sequence[Row]) -> Report:
    report = Report()
    for task in todo:
        do(worker, task, report.add)
    assert not report.failed, "\n\n".join(told(outcome) for outcome in report.failed)
    return report


@pytest.mark.sampled
@pytest.mark.parametrize("names", [NAMES[n :: -(-len(NAMES) // TOGETHER)] for n in range(-(-len(NAMES) // TOGETHER))])
def test_nothing_that_was_acknowledged_is_lost(worker: Worker, names: list[str]) -> None:
    report = played(worker, [task for task in tasks(POINTS, SEED) if task["scenario"] in names])
    assert report.all.points == sum(shares(POINTS)[name] for name in names)
    assert report.all.kills >= int(0.9 * report.all.points)  # a program may end before its point comes
    assert report.all.acknowledged


@pytest.mark.slow  # forked, the same is played by the test above
@pytest.mark.parametrize("name", ["questions", "commands", "typed"])
def test_nothing_depends_on_the_fork(worker: Worker, name: str) -> None:
    report = played(worker, [{"scenario": name, "count": 2, "seed": SEED, "part": [0, 1], "is_separate": True}])
    assert report.all.kills


def test_the_points_are_as_many_as_promised() -> None:
    assert sum(shares(POINTS).values()) == POINTS
    assert IS_SHORT or POINTS >= 300
