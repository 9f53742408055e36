"""The timeline of the exported page: the places of its signs."""

from __future__ import annotations

import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from selectolax.lexbor import LexborHTMLParser, LexborNode
from support import trying
from support.eventful import eventful

from chain.export.outline import outline_of
from chain.export.timeline import CLOSEST, timeline
from chain.export.timeline import _places as places


@trying(100)
@given(st.lists(st.floats(0, 1e9), min_size=2, max_size=40))
def test_events_are_in_order_and_have_room_whatever_the_clock_says(times: list[float]) -> None:
    found = places(times)
    assert (found[0], round(found[-1], 6)) == (0.0, 100.0)
    assert all(before < after for before, after in pairwise(found))


def test_a_night_leaves_room_for_the_seconds_beside_it() -> None:
    found = places([0.0, 1.0, 2.0, 3.0, 3.0 + 86_400, 86_404.0, 86_405.0])
    assert found[1] > 4
    assert found[4] - found[3] > 50


def lanes() -> list[LexborNode]:
    return LexborHTMLParser("".join(timeline(outline_of(eventful().events)))).css(".lane")


def numbers(node: LexborNode) -> list[float]:
    return [float(number) for number in re.findall(r"(?<=:)[\d.]+", node.attributes["style"] or "")]


def test_each_bar_covers_its_calls() -> None:
    for lane in lanes():
        bars = [numbers(bar) for bar in lane.css(".bar")]
        for call in lane.css(".call"):
            left, width = numbers(call)
            assert any(start <= left and left + width <= start + wide + 0.02 for start, wide in bars)


def test_bars_that_begin_too_close_are_one() -> None:
    for lane in lanes():
        for kind in (".bar", ".call"):
            lefts = [numbers(bar)[0] for bar in lane.css(kind)]
            assert all(after - before > CLOSEST - 0.02 for before, after in pairwise(lefts))


def test_pins_that_are_close_are_on_several_levels() -> None:
    pins = [numbers(pin) for pin in lanes()[0].css(".pin")]
    for n, (left, level) in enumerate(pins):
        assert not [1 for other, there in pins[:n] if there == level and abs(left - other) < 2]
