"""Text, plain or styled, cut into rows: any text fits, and nothing but spaces is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.utils import get_cwidth
from support.painted import check_row

from cli.show.spans import paint_row, plain, safe_row, wrap
from cli.show.text_rows import Flow, columns, fitting, in_rows

texts = st.text(st.characters() | st.sampled_from("\x1b[]mP\x07;漢🙂\u0301\t\n "), max_size=300)
lines = st.lists(
    st.tuples(st.sampled_from(["", "1", "36"]), st.text("abc  漢字。🙂\u0301\u200dé-.", max_size=30)), max_size=6
)


def in_pieces(text: str, width: int, piece: int) -> list[str]:
    flow = Flow(width)
    return [row for n in range(0, len(text), piece) for row in flow.add(text[n : n + piece])] + flow.end()


def test_a_row_is_returned_once_it_is_whole() -> None:
    flow = Flow(20)
    assert flow.add("Let me") == []
    assert flow.tail == "Let me"
    assert flow.add(" see.\nThe") == ["Let me see."]
    assert flow.tail == "The"
    assert flow.end() == ["The"]
    assert flow.tail == ""


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("The quick brown fox", ["The quick", "brown fox"]),
        ("four words", ["four words"]),
        ("x" * 14, ["x" * 10, "x" * 4]),
        ("漢字かな交じり文", ["漢字かな交", "じり文"]),
        ("漢字かな交。じ", ["漢字かな", "交。じ"]),
        ("word 漢字かな交", ["word 漢字", "かな交"]),
        ("🙂" * 6, ["🙂" * 5, "🙂"]),
        ("cafe\u0301 cafe\u0301 x", ["cafe\u0301 cafe\u0301", "x"]),
        ("0" * 10 + "\u0300" * 4 + "0", ["0" * 10 + "\u0300" * 4, "0"]),
        ("\n\nOne\n\n\nTwo\n\n", ["One", "", "", "Two"]),
        ("a\tb", ["a   b"]),
        ("   ", []),
    ],
)
def test_rows_end_between_words_or_wide_characters(text: str, rows: list[str]) -> None:
    assert in_rows(text, 10) == rows
    if "\n" not in text and "\t" not in text:
        assert [plain(row) for row in wrap([("", text)], 10)] == (rows or [""])


@pytest.mark.parametrize("piece", [1, 2, 3])
@pytest.mark.parametrize("escape", ["\x1b[31m", "\x1b]0;title\x07", "\x1b]8;;http://x\x1b\\", "\x9b1A"])
def test_an_escape_sequence_cut_between_pieces_is_removed(escape: str, piece: int) -> None:
    assert in_pieces(f"red {escape}herring", 20, piece) == ["red herring"]


def test_an_unended_escape_sequence_delays_a_bounded_text() -> None:
    flow = Flow(20)
    rows = flow.add("\x1b]0;") + [row for _ in range(200) for row in flow.add("words of it ")]
    assert "words of it" in " ".join(rows)


@given(texts, st.integers(1, 9), st.integers(4, 60))
def test_rows_do_not_depend_on_the_pieces(text: str, piece: int, width: int) -> None:
    assert in_pieces(text, width, piece) == in_rows(text, width)


@given(texts, st.integers(4, 60))
def test_rows_of_any_text_fit(text: str, width: int) -> None:
    flow = Flow(width)
    for row in [row for char in text for row in (*flow.add(char), flow.tail)] + flow.end():
        check_row(row, width)


@given(lines, st.integers(2, 40))
def test_rows_of_styled_text_keep_each_characters_style(line: list[tuple[str, str]], width: int) -> None:
    rows = wrap(line, width)
    assert all(columns(plain(row)) <= width for row in rows)
    before = [(sgr, char) for sgr, text in line for char in text if char != " "]
    assert [(sgr, char) for row in rows for sgr, text in row for char in text if char != " "] == before


def test_each_span_resets_its_colours() -> None:
    assert paint_row([("1", "bold"), ("", " plain "), ("36", "")]) == "\x1b[1mbold\x1b[0m plain "


def test_decoded_control_characters_are_not_shown() -> None:
    assert safe_row("a\x1b[2Jb\u202ec\nd\te") == "abc d    e"


@given(st.text(st.characters(exclude_categories=("Cc", "Cs", "Cf", "Mn", "Me", "Cn", "Co", "Zl", "Zp"))))
def test_columns_are_counted_like_the_editor(text: str) -> None:
    narrow = "".join(char for char in text if char.isascii() or get_cwidth(char) == columns(char))
    assert columns(narrow) == get_cwidth(narrow)


@given(st.text(max_size=50), st.integers(1, 30))
def test_fitting_counts_as_many_characters_as_fit(text: str, width: int) -> None:
    cut = fitting(text, width)
    assert cut <= 1 or columns(text[:cut]) <= width
    assert cut >= len(text) or cut == 1 or columns(text[: cut + 1]) > width
