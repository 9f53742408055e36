"""Where a cursor goes by one row of the screen."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.screen.keyboard import place_by_row
from cli.show.text_rows import columns


@pytest.mark.parametrize(
    ("line", "at", "up", "down"),
    [
        ("", 0, None, None),
        ("sho", 3, None, None),
        ("aaaabbbbcc", 9, 5, None),
        ("aaaabbbbcc", 5, 1, 9),
        ("aaaabbbbcc", 2, None, 6),
        ("aaaabbbbcc", 7, 3, 10),
        ("漢漢漢漢漢", 4, 2, None),
        ("aaaa", 4, None, None),
    ],
)
def test_one_row(line: str, at: int, up: int | None, down: int | None) -> None:
    assert (place_by_row(line, at, 4, -1), place_by_row(line, at, 4, 1)) == (up, down)


def test_from_the_line_below() -> None:
    assert place_by_row("aaaabb\nc", 8, 4, -1) == 5
    assert place_by_row("aaaabb\nccc", 10, 4, -1) == 6
    assert place_by_row("\nccc", 4, 4, -1) == 0


def test_no_row_begins_inside_what_is_seen_as_one_sign() -> None:
    family = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
    assert place_by_row(f"ab{family}\nabc", len(family) + 5, 10, -1) == 2


@given(st.text(st.sampled_from("ab漢é "), max_size=40), st.integers(0, 40), st.integers(2, 12))
def test_what_is_above_a_place_has_a_row_below_it(line: str, at: int, width: int) -> None:
    at = min(at, len(line))
    up = place_by_row(line, at, width, -1)
    if up is None:
        assert columns(line[:at]) <= width
    else:
        assert 0 <= up < at
        back = place_by_row(line, up, width, 1)
        assert back is not None
        assert up < back <= at
