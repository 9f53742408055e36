"""Moving the cursor by one row of the screen."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.screen.keyboard import index_by_row
from cli.show.text_rows import columns

WIDTH = 4
# The text, the index of the cursor, and the index one row above and below it.
MOVES: dict[str, tuple[str, int, int | None, int | None]] = {
    "one row": ("sho", 3, None, None),
    "from the last row": ("aaaabbbbcc", 9, 5, None),
    "from a middle row": ("aaaabbbbcc", 5, 1, 9),
    "from the first row": ("aaaabbbbcc", 2, None, 6),
    "to a shorter row": ("aaaabbbbcc", 7, 3, 10),
    "wide characters": ("漢漢漢漢漢", 4, 2, None),
    "behind a full row": ("aaaa", 4, None, None),
    "to the end of a line": ("aaaabb\nccc", 8, 5, None),
    "to the end of a shorter line": ("aaaabb\nccc", 10, 6, None),
    "to an empty line": ("\nccc", 4, 0, None),
}


@pytest.mark.parametrize(("text", "at", "above", "below"), MOVES.values(), ids=MOVES)
def test_the_cursor_stays_in_its_column(text: str, at: int, above: int | None, below: int | None) -> None:
    assert index_by_row(text, at, WIDTH, by=-1) == above
    assert index_by_row(text, at, WIDTH, by=1) == below


def test_the_cursor_never_enters_a_grapheme() -> None:
    family = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
    text = f"ab{family}\nabcde"
    row_above = index_by_row(text, len(text), width=10, by=-1)
    assert row_above == len("ab")


@given(st.text(st.sampled_from("ab漢é "), max_size=40), st.integers(0, 40), st.integers(2, 12))
def test_up_and_down_do_not_move_forward(text: str, at: int, width: int) -> None:
    at = min(at, len(text))
    above = index_by_row(text, at, width, by=-1)
    if above is None:
        assert columns(text[:at]) <= width, "the cursor is in the first row"
    else:
        assert 0 <= above < at
        below = index_by_row(text, above, width, by=1)
        assert below is not None
        assert above < below <= at
