"""A process that plays points, a fork for each program: ``python -m crash.worker``.

It reads tasks as rows of JSON and answers each with its outcomes, one a row, and ``{"done": true}``. A task is
``{"point": "..."}``, or, for every second of 100 points, ``{"scenario": "...", "count": 100, "seed": 1, "part": [0,
2]}``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import cache
from typing import Any

from . import layer

layer.install()  # before anything of the program is imported

from forks.load import load  # noqa: E402

from . import program  # noqa: E402
from .play import Outcome, measure, play  # noqa: E402
from .point import Point, Reach, choose  # noqa: E402
from .scenarios import BY_NAME, RULES, AtTerminal  # noqa: E402


@cache
def reach_of(name: str) -> tuple[Reach, list[str]]:
    return measure(BY_NAME[name])


def points_of(task: dict[str, Any]) -> tuple[list[Point], list[str]]:
    """The points of a task, and what is wrong with its scenario where nobody kills it."""
    if "point" in task:
        return [Point.from_json(task["point"])], []
    name, (part, parts) = task["scenario"], task["part"]
    reach, complaints = reach_of(name)
    is_at_terminal = isinstance(BY_NAME[name], AtTerminal)
    points = choose(name, reach, task["count"], task["seed"], is_at_terminal=is_at_terminal)[part::parts]
    if task.get("is_separate"):
        points = [replace(point, is_separate=True) for point in points]
    return points, complaints


def outcomes(task: dict[str, Any]) -> Iterator[Outcome]:
    points, complaints = points_of(task)
    if complaints:
        yield Outcome("", task["scenario"], wrong=complaints)
    for point in points:
        yield play(point)


def main() -> None:
    program.become_parent()
    load(RULES)
    for row in sys.stdin:
        for outcome in outcomes(json.loads(row)):
            say(asdict(outcome))
        say({"done": True})


def say(row: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
