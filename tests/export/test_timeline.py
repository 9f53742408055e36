"""The timeline of the exported page: its lanes, and the places of its signs."""

from __future__ import annotations

import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from selectolax.lexbor import LexborHTMLParser, LexborNode
from support import trying
from support.eventful import eventful

from chain.export.outline import outline_of
from chain.export.timeline import CLOSEST, _positions, timeline


@trying(100)
@given(st.lists(st.floats(0, 1e9), min_size=2, max_size=40))
def test_events_stay_in_order_at_any_times(times: list[float]) -> None:
    found = _positions(times)
    assert (found[0], round(found[-1], 6)) == (0.0, 100.0)
    assert all(before < after for before, after in pairwise(found))


def test_seconds_have_room_next_to_a_night() -> None:
    found = _positions([0.0, 1.0, 2.0, 3.0, 3.0 + 86_400, 86_404.0, 86_405.0])
    assert found[1] > 4
    assert found[4] - found[3] > 50


def lanes() -> list[LexborNode]:
    return LexborHTMLParser("".join(timeline(outline_of(eventful().events)))).css(".lane")


def numbers(node: LexborNode) -> list[float]:
    return [float(number) for number in re.findall(r"(?<=:)[\d.]+", node.attributes["style"] or "")]


def test_agents_have_lanes_with_bars_and_pins() -> None:
    found = {}
    for lane in lanes():
        pins = [pin.text(deep=False) for pin in lane.css(".pin")]
        found[lane.css_first(".agent").text().strip()] = (numbers(lane)[0], len(lane.css(".bar")), pins)
    assert found == {
        "main": (0, 12, ["A", "C", "?", "D", "?", "?", "N", "■", "■"]),
        "explore-1": (1, 3, ["D"]),
        "agent-1": (1, 3, []),
        "explore-2": (2, 2, []),
        "agent-2": (1, 1, ["■"]),
    }
    titles = [pin.attributes["title"] or "" for pin in lanes()[0].css(".pin")]
    assert any("<b>please</b> & thank you" in title for title in titles)


def test_bars_cover_their_calls_and_stay_apart() -> None:
    for lane in lanes():
        bars = [numbers(bar) for bar in lane.css(".bar")]
        for left, width in map(numbers, lane.css(".call")):
            assert any(start <= left and left + width <= start + wide + 0.02 for start, wide in bars)
        for kind in (".bar", ".call"):
            lefts = [numbers(bar)[0] for bar in lane.css(kind)]
            assert all(after - before > CLOSEST - 0.02 for before, after in pairwise(lefts))


def test_close_pins_are_on_several_levels() -> None:
    pins = [numbers(pin) for pin in lanes()[0].css(".pin")]
    for n, (left, level) in enumerate(pins):
        assert not [1 for other, there in pins[:n] if there == level and abs(left - other) < 2]
