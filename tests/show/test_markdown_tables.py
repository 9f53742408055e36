"""Tables: aligned where they fit, wrapped where they nearly do, else a line for each cell."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cli.show.markdown_layout import table_rows
from cli.show.spans import MarkdownStyle, plain
from cli.show.text_rows import columns

HEAD = ["Name", "Size", "Note"]
BODY = [["alpha", "12", "short"], ["beta", "123456", "a note of several words"]]


def rows_of(
    head: list[str], body: list[list[str]], width: int, *, aligned: list[str] | None = None, ascii: bool = False
) -> list[str]:
    cells = [[[[("", text)]] for text in row] for row in (head, *body)]
    aligned = [""] * len(head) if aligned is None else aligned
    return [
        plain(row) for row in table_rows(cells[0], cells[1:], aligned, width=width, look=MarkdownStyle(ascii=ascii))
    ]


def test_a_table_that_fits_is_aligned() -> None:
    assert rows_of(HEAD, BODY, 80, aligned=["", "right", "center"]) == [
        "Name  │   Size │          Note",
        "──────┼────────┼────────────────────────",
        "alpha │     12 │          short",
        "beta  │ 123456 │ a note of several words",
    ]


def test_cells_wrap_and_rows_are_ruled_then() -> None:
    assert rows_of(HEAD, BODY, 30) == [
        "Name  │ Size   │ Note",
        "──────┼────────┼──────────────",
        "alpha │ 12     │ short",
        "──────┼────────┼──────────────",
        "beta  │ 123456 │ a note of",
        "      │        │ several words",
    ]


def test_columns_too_narrow_to_read_become_lines() -> None:
    assert rows_of(HEAD, BODY, 20) == [
        "Name: alpha",
        "Size: 12",
        "Note: short",
        "",
        "Name: beta",
        "Size: 123456",
        "Note: a note of",
        "  several words",
    ]


def test_wide_characters_are_counted_as_the_terminal_does() -> None:
    rows = rows_of(["漢字", "b"], [["c", "🙂"], ["e\u0301", "f"]], 80)
    assert [columns(row.split("│")[0]) for row in (rows[0], *rows[2:])] == [5, 5, 5]


@given(st.data(), st.integers(1, 6), st.integers(4, 60))
def test_every_row_fits_and_no_letter_is_lost(data: st.DataObject, count: int, width: int) -> None:
    cells = st.lists(st.text("ab 漢", max_size=20), min_size=count, max_size=count)
    head, body = data.draw(cells), data.draw(st.lists(cells, max_size=4))
    rows = rows_of(head, body, width)
    assert all(columns(row) <= width for row in rows)
    every = "".join(text for row in body for text in row)
    shown = "".join(rows)
    assert all(shown.count(letter) >= every.count(letter) for letter in "ab漢")
