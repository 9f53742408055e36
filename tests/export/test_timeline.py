"""The timeline of the exported page: a lane for each agent, with bars for iterations and pins for lines."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from selectolax.lexbor import LexborHTMLParser, LexborNode
from support.eventful import eventful_session
from support.examples import max_examples

from chain.export.outline import outline_of
from chain.export.timeline import CLOSEST, _positions, render_timeline


@max_examples(100)
@given(st.lists(st.floats(0, 1e9), min_size=2, max_size=40))
def test_events_stay_in_order_at_any_times(times: list[float]) -> None:
    first, *_, last = positions = _positions(times)
    assert (first, round(last, 6)) == (0.0, 100.0)
    assert all(before < after for before, after in pairwise(positions))


def test_seconds_have_room_next_to_a_night() -> None:
    evening, morning = [0.0, 1.0, 2.0, 3.0], [86_403.0, 86_404.0, 86_405.0]
    _, second_1, _, last_of_evening, first_of_morning, *_ = _positions([*evening, *morning])
    assert second_1 > 4, "percent of the width"
    assert first_of_morning - last_of_evening > 50


def lanes() -> list[LexborNode]:
    """Return the lanes of the agents. The first one is that of the main agent."""
    return LexborHTMLParser("".join(render_timeline(outline_of(eventful_session().events)))).css(".lane")


def style_of(node: LexborNode) -> list[float]:
    """Return the numbers in the style of a node.

    They are the depth and the levels of a lane, the left side and the width of a bar, or the left side and the level of
    a pin. Sides and widths are in percent.
    """
    return [float(number) for number in re.findall(r"(?<=:)[\d.]+", node.attributes["style"] or "")]


def test_agents_have_lanes_with_bars_and_pins() -> None:
    shown = []
    for lane in lanes():
        agent, (depth, _) = lane.css_first(".agent").text().strip(), style_of(lane)
        pins = " ".join(pin.text(deep=False) for pin in lane.css(".pin"))
        shown.append(f"{agent}: depth {depth:g}, {len(lane.css('.bar'))} bars, pins: {pins}".rstrip())
    assert shown == [  # a pin is the safe point of a line, a question or an ending (■)
        "main: depth 0, 12 bars, pins: A C ? D ? ? N ■ ■",
        "explore-1: depth 1, 3 bars, pins: D",
        "agent-1: depth 1, 3 bars, pins:",
        "explore-2: depth 2, 2 bars, pins:",
        "agent-2: depth 1, 1 bars, pins: ■",
    ]


def test_title_of_a_pin_is_the_line() -> None:
    titles = [pin.attributes["title"] or "" for lane in lanes() for pin in lane.css(".pin")]
    assert any("<b>please</b> & thank you" in title for title in titles)


ROUNDING = 0.02
MIN_DISTANCE = 2
"""Of pins on one level, in percent of the width."""


def test_bars_cover_their_calls() -> None:
    for lane in lanes():
        bars = [(left, left + width + ROUNDING) for left, width in map(style_of, lane.css(".bar"))]
        for left, width in map(style_of, lane.css(".call")):
            assert any(start <= left and left + width <= end for start, end in bars)


@pytest.mark.parametrize("kind", [".bar", ".call"])
def test_bars_stay_apart(kind: str) -> None:
    for lane in lanes():
        starts = [left for left, _ in map(style_of, lane.css(kind))]
        assert all(after - before > CLOSEST - ROUNDING for before, after in pairwise(starts))


def test_close_pins_are_on_several_levels() -> None:
    main, *_ = lanes()
    pins_by_level: dict[float, list[float]] = {}
    for left, level in map(style_of, main.css(".pin")):
        assert all(abs(left - other) >= MIN_DISTANCE for other in pins_by_level.setdefault(level, []))
        pins_by_level[level].append(left)
    assert len(pins_by_level) > 1
