"""Where things stand on the timeline."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import trying
from support.eventful import eventful

from chain import events
from chain.export.outline import outline_of
from chain.export.timeline import LONGEST_SILENCE, MOST_LANES, Axis, draw, longest_drawn


@pytest.mark.parametrize(
    ("times", "is_timed"),
    [([0.0, 1.0, 2.0, 3.0], True), ([5.0, 5.0, 5.0, 5.0], False), ([9.0, 8.0, 7.0, 6.0], False)],
)
def test_what_is_evenly_apart_stands_evenly_apart(times: list[float], is_timed: bool) -> None:
    axis = Axis(times)
    assert [round(axis.percent(n)) for n in range(4)] == [0, 33, 67, 100]
    assert axis.is_timed == is_timed


def test_a_long_silence_is_drawn_short_and_named() -> None:
    axis = Axis([0.0, 1.0, 2.0, 3.0, 3.0 + 86_400, 86_404.0, 86_405.0])
    (silence,) = axis.silences
    assert silence.seconds == 86_400
    assert 20 < silence.width < 50
    assert axis.percent(1) > 5


def test_without_a_long_silence_nothing_is_shortened() -> None:
    assert list(Axis([float(n) for n in range(50)]).silences) == []


@trying(100)
@given(st.lists(st.floats(0, 1e9), max_size=40))
def test_the_longest_silence_is_a_certain_part_of_all(gaps: list[float]) -> None:
    longest = longest_drawn(gaps)
    shown = sum(min(gap, longest) for gap in gaps)
    if any(gap > longest for gap in gaps):
        assert longest == pytest.approx(max(LONGEST_SILENCE, 2 / sum(gap > 0 for gap in gaps)) * shown)
    axis = Axis([sum(gaps[:n]) for n in range(len(gaps) + 1)])
    places = [axis.percent(n) for n in range(len(gaps) + 1)]
    assert places == sorted(places)
    assert all(0 <= place <= 100.0001 for place in places)


def test_each_bar_covers_its_calls() -> None:
    for lane in draw(outline_of(eventful().events)).lanes:
        ends = [(bar.left, bar.left + bar.width) for bar in lane.bars]
        for mark in lane.marks:
            assert any(start <= mark.left and mark.left + mark.width <= end + 0.01 for start, end in ends)


def test_pins_that_are_close_stand_on_several_levels() -> None:
    lane = draw(outline_of(eventful().events)).lanes[0]
    for pin in lane.pins:
        assert not [p for p in lane.pins if p is not pin and p.level == pin.level and abs(p.left - pin.left) < 2]


def test_of_many_agents_the_first_are_drawn() -> None:
    told: list[events.Event] = [events.RunStarted(id="L1", query="x", time=0.0)]
    for n in range(100):
        told.append(events.AgentStarted(name=f"explore-{n}", kind="explore", parent_id="c", task="y", time=float(n)))
        told.append(events.IterationStarted(agent=f"explore-{n}", iteration=1, max_iterations=3, time=float(n)))
    drawn = draw(outline_of(told))
    assert (len(drawn.lanes), drawn.left_out) == (MOST_LANES, 101 - MOST_LANES)
    assert [lane.first.agent for lane in drawn.lanes[:3]] == ["main", "explore-0", "explore-1"]
