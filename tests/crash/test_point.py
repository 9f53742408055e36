"""The points are spread: all kinds occur, and each call is reached if there are enough of them."""

from __future__ import annotations

import pytest

from crash.plan import shares, tasks
from crash.point import KINDS, RESUMED_WRITES, Point, Reach, choose

REACH = Reach(writes=40, syncs=6, seen=50)


def points(count: int, seed: int = 1) -> list[Point]:
    return choose("lines", REACH, count, seed, is_at_terminal=False)


def test_the_same_seed_gives_the_same_points() -> None:
    assert points(50) == points(50) != points(50, seed=2)


@pytest.mark.parametrize("count", [20, 200])
def test_all_kinds_occur(count: int) -> None:
    found = points(count)
    assert {(point.kill.call, point.kill.where) for point in found} == set(KINDS)
    assert {point.kill.power for point in found} == {"on", "cut", "zeros"}
    assert {point.way for point in found} == {"lines", "query", "prompt"}
    assert {len(point.again) for point in found} == {0, 1, 2, 3}


def test_enough_points_reach_each_call_in_each_way() -> None:
    found = points(500)
    for call, where in KINDS:
        reached = {point.kill.n for point in found if (point.kill.call, point.kill.where) == (call, where)}
        assert reached == set(range(1, REACH.of(call) + 1))
    assert {kill.n for point in found for kill in point.again} == set(range(1, RESUMED_WRITES + 1))


def test_few_points_are_spread_over_the_calls() -> None:
    writes = sorted(point.kill.n for point in points(30) if point.kill.call == "write")
    assert writes[0] <= REACH.writes / 4
    assert writes[-1] >= REACH.writes * 3 / 4


def test_a_point_is_read_as_it_was_written() -> None:
    assert [Point.from_json(point.to_json()) for point in points(20)] == points(20)


@pytest.mark.parametrize("count", [14, 300, 5000])
def test_all_points_are_played_once(count: int) -> None:
    assert sum(shares(count).values()) == count
    assert all(0 <= task["part"][0] < task["part"][1] for task in tasks(count, 1))
    for name, share in shares(count).items():
        parts = [task["part"] for task in tasks(count, 1) if task["scenario"] == name]
        assert sum(len(range(k, share, of)) for k, of in parts) == share
