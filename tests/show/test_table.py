"""Tables and entries in columns, at any width."""

import pytest

from cli.show.table import side_by_side, table
from cli.show.text_rows import columns

ROWS = [("a", "one", "some words that go on for a while until they no longer fit"), ("long", "t", "日本語 " * 20)]


@pytest.mark.parametrize("width", [30, 40, 60, 80, 300])
def test_the_last_cell_continues_below_itself(width: int) -> None:
    shown = table(ROWS, width)
    assert max(columns(row) for row in shown) <= width
    assert " ".join("\n".join(shown).split()) == " ".join(" ".join(" ".join(row) for row in ROWS).split())
    assert [row[:3] for row in shown if row[2:3].strip()] == ["  a", "  l"]


@pytest.mark.parametrize(
    ("cells", "rows"),
    [
        (("path", "/x" * 60), ["  path  " + "/x" * 60]),
        (("a", "b " + "x" * 70), ["  a  b", "     " + "x" * 35, "     " + "x" * 35]),
    ],
)
def test_a_long_word_is_cut_only_behind_others(cells: tuple[str, str], rows: list[str]) -> None:
    assert table([cells], 40) == rows


@pytest.mark.parametrize(("width", "beside"), [(10, 1), (25, 1), (26, 2), (50, 3), (500, 3)])
def test_entries_run_down_the_columns(width: int, beside: int) -> None:
    shown = side_by_side([(str(n), f"about {n}") for n in range(6)], width, term=2, text=8)
    assert all(f"about {n}" in " ".join(" ".join(shown).split()) for n in range(6))
    if beside > 1:
        assert len(shown) == 6 // beside
        assert [row.split()[0] for row in shown[:2]] == ["0", "1"]
