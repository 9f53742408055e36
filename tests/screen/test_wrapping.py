"""Where a cursor goes by one row of the screen."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.screen.wrapping import above, below, in_last_row
from cli.show.text import columns


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
    assert (above(line, at, 4), below(line, at, 4)) == (up, down)


def test_from_the_line_below() -> None:
    assert in_last_row("aaaabb", 1, 4) == 5
    assert in_last_row("aaaabb", 3, 4) == 6
    assert in_last_row("", 3, 4) == 0


@given(st.text(st.sampled_from("ab漢é "), max_size=40), st.integers(0, 40), st.integers(2, 12))
def test_what_is_above_a_place_has_a_row_below_it(line: str, at: int, width: int) -> None:
    at = min(at, len(line))
    up = above(line, at, width)
    if up is None:
        assert columns(line[:at]) <= width
    else:
        assert 0 <= up < at
        back = below(line, up, width)
        assert back is not None
        assert up < back <= at
