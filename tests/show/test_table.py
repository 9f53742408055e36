"""Tables and entries side by side, at any width."""

import pytest

from cli.show.table import side_by_side, table
from cli.show.text_rows import columns

ROWS = [("a", "one", "some words that go on for a while until they no longer fit"), ("long", "t", "日本語 " * 20)]


@pytest.mark.parametrize("width", [30, 40, 60, 80, 300])
def test_the_last_cell_hangs_and_no_word_is_lost(width: int) -> None:
    shown = table(ROWS, width)
    assert max(columns(row) for row in shown) <= width
    assert " ".join("\n".join(shown).split()) == " ".join(" ".join(" ".join(row) for row in ROWS).split())
    assert [row[:3] for row in shown if row[2:3].strip()] == ["  a", "  l"]


def test_a_word_that_fits_nowhere_stays_whole_on_its_row() -> None:
    assert table([("path", "/x" * 60)], 40) == ["  path  " + "/x" * 60]


def test_a_long_word_among_others_is_cut_to_fit() -> None:
    assert table([("a", "b " + "x" * 70)], 40) == ["  a  b", "     " + "x" * 35, "     " + "x" * 35]


@pytest.mark.parametrize(("width", "beside"), [(10, 1), (25, 1), (26, 2), (50, 3), (500, 3)])
def test_entries_run_down_their_columns(width: int, beside: int) -> None:
    shown = side_by_side([(str(n), f"about {n}") for n in range(6)], width, term=2, text=8)
    assert all(f"about {n}" in " ".join(" ".join(shown).split()) for n in range(6))
    if beside > 1:
        assert len(shown) == 6 // beside
        assert shown[0].split()[:1] == ["0"]
        assert shown[1].split()[:1] == ["1"]
