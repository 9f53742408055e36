"""Moving the cursor by one row of the screen."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.screen.keyboard import index_by_row
from cli.show.text_rows import columns

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"


@pytest.mark.parametrize(
    ("line", "at", "up", "down"),
    [
        ("sho", 3, None, None),
        ("aaaabbbbcc", 9, 5, None),
        ("aaaabbbbcc", 5, 1, 9),
        ("aaaabbbbcc", 2, None, 6),
        ("aaaabbbbcc", 7, 3, 10),
        ("漢漢漢漢漢", 4, 2, None),
        ("aaaa", 4, None, None),
        ("aaaabb\nccc", 8, 5, None),
        ("aaaabb\nccc", 10, 6, None),
        ("\nccc", 4, 0, None),
        (f"ab{FAMILY}\nabc", len(FAMILY) + 5, 2, None),
    ],
)
def test_the_place_one_row_up_or_down(line: str, at: int, up: int | None, down: int | None) -> None:
    width = 10 if FAMILY in line else 4
    assert (index_by_row(line, at, width, -1), index_by_row(line, at, width, 1)) == (up, down)


@given(st.text(st.sampled_from("ab漢é "), max_size=40), st.integers(0, 40), st.integers(2, 12))
def test_down_returns_at_most_to_where_up_began(line: str, at: int, width: int) -> None:
    at = min(at, len(line))
    up = index_by_row(line, at, width, -1)
    if up is None:
        assert columns(line[:at]) <= width
    else:
        assert 0 <= up < at
        back = index_by_row(line, up, width, 1)
        assert back is not None
        assert up < back <= at
