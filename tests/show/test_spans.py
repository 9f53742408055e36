"""Styled text cut into rows, each of which fits, resets its colours and holds the text as it was."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.show.spans import painted_row, plain, safe_row, wrap
from cli.show.text_rows import columns

signs = st.sampled_from("abc  漢字。🙂\u0301\u200dé-.")
lines = st.lists(st.tuples(st.sampled_from(["", "1", "36"]), st.text(signs, max_size=30)), max_size=6)


@given(lines, st.integers(2, 40))
def test_rows_between_words_fit_and_lose_only_spaces(line: list[tuple[str, str]], width: int) -> None:
    rows = wrap(line, width)
    assert all(columns(plain(row)) <= width for row in rows)
    assert "".join(plain(row) for row in rows).replace(" ", "") == plain(line).replace(" ", "")


@given(lines, st.integers(2, 40))
def test_each_character_keeps_its_style(line: list[tuple[str, str]], width: int) -> None:
    before = [(sgr, char) for sgr, text in line for char in text if char != " "]
    rows = wrap(line, width)
    assert [(sgr, char) for row in rows for sgr, text in row for char in text if char != " "] == before


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("The quick brown fox", ["The quick", "brown fox"]),
        ("x" * 14, ["x" * 10, "x" * 4]),
        ("漢字かな交じり文", ["漢字かな交", "じり文"]),
        ("漢字かな交。じ", ["漢字かな", "交。じ"]),
        ("word 漢字かな交", ["word 漢字", "かな交"]),
        ("cafe\u0301 cafe\u0301 x", ["cafe\u0301 cafe\u0301", "x"]),
        ("", [""]),
        ("   ", [""]),
    ],
)
def test_a_row_ends_where_a_word_or_a_wide_character_does(text: str, rows: list[str]) -> None:
    assert [plain(row) for row in wrap([("", text)], 10)] == rows


def test_a_painted_row_resets_its_colours() -> None:
    line = [("1", "bold"), ("", " plain "), ("36", "")]
    assert painted_row(line) == "\x1b[1mbold\x1b[0m plain "


def test_what_a_terminal_would_obey_is_not_shown() -> None:
    assert safe_row("a\x1b[2Jb\u202ec\nd\te") == "abc d    e"
