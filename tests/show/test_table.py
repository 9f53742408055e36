"""Tables and entries in columns, at any width."""

import pytest

from cli.show.table import side_by_side, table
from cli.show.text_rows import columns

ROWS = [("a", "one", "some words that go on for a while until they no longer fit"), ("long", "t", "日本語 " * 20)]


def words_of(texts: list[str]) -> list[str]:
    return " ".join(texts).split()


@pytest.mark.parametrize("width", [30, 40, 60, 80, 300])
def test_the_last_cell_continues_below_itself(width: int) -> None:
    shown = table(ROWS, width)
    assert max(columns(row) for row in shown) <= width
    assert words_of(shown) == words_of([cell for row in ROWS for cell in row])
    indent = " " * len("  long")  # of a cell's further rows, below its first one
    starts_of_rows = [row for row in shown if not row.startswith(indent)]
    assert [row.split()[0] for row in starts_of_rows] == ["a", "long"]


def test_a_long_word_alone_is_whole() -> None:
    path = "/x" * 60
    assert table([("path", path)], 40) == [f"  path  {path}"]


def test_a_long_word_after_others_is_cut() -> None:
    assert table([("a", "b " + "x" * 70)], 40) == ["  a  b", "     " + "x" * 35, "     " + "x" * 35]


ONE_COLUMN = [f"{n}  about {n}" for n in range(6)]
TWO_COLUMNS = ["0   about 0   3   about 3", "1   about 1   4   about 4", "2   about 2   5   about 5"]
THREE_COLUMNS = ["0   about 0   2   about 2   4   about 4", "1   about 1   3   about 3   5   about 5"]


# Cells of 2 + 2 + 8 columns with a gap of 2 between them: two need 26. There are never more than three.
@pytest.mark.parametrize(
    ("width", "rows"),
    [(10, ONE_COLUMN), (25, ONE_COLUMN), (26, TWO_COLUMNS), (50, THREE_COLUMNS), (500, THREE_COLUMNS)],
)
def test_entries_run_down_the_columns(width: int, rows: list[str]) -> None:
    assert side_by_side([(str(n), f"about {n}") for n in range(6)], width, term=2, text=8) == rows
