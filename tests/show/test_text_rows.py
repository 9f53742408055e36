"""Text, plain or styled, cut into rows: any text fits, and nothing but spaces is lost."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.utils import get_cwidth
from support.rows import check_row, pieces_of

from cli.show.spans import paint_row, plain, safe_row, wrap
from cli.show.text_rows import Flow, columns, fitting_count, wrap_text

ANY_TEXT = st.text(st.characters() | st.sampled_from("\x1b[]mP\x07;漢🙂\u0301\t\n "), max_size=300)
WIDE_AND_COMBINING = "abc  漢字。🙂\u0301\u200dé-."
STYLED_LINE = st.lists(
    st.tuples(st.sampled_from(["", "1", "36"]), st.text(WIDE_AND_COMBINING, max_size=30)), max_size=6
)


def rows_of_pieces(text: str, width: int, piece_length: int) -> list[str]:
    flow = Flow(width)
    return [row for piece in pieces_of(text, piece_length) for row in flow.add(piece)] + flow.end()


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
        pytest.param("The quick brown fox", ["The quick", "brown fox"], id="words"),
        pytest.param("four words", ["four words"], id="full row"),
        pytest.param("x" * 14, ["x" * 10, "x" * 4], id="long word"),
        pytest.param("漢字かな交じり文", ["漢字かな交", "じり文"], id="wide characters"),
        pytest.param("漢字かな交。じ", ["漢字かな", "交。じ"], id="no stop at the start of a row"),
        pytest.param("word 漢字かな交", ["word 漢字", "かな交"], id="wide characters after a word"),
        pytest.param("🙂" * 6, ["🙂" * 5, "🙂"], id="emoji"),
        pytest.param("cafe\u0301 cafe\u0301 x", ["cafe\u0301 cafe\u0301", "x"], id="combining accents"),
        pytest.param("0" * 10 + "\u0300" * 4 + "0", ["0" * 10 + "\u0300" * 4, "0"], id="accents after a full row"),
        pytest.param("   ", [], id="only spaces"),
    ],
)
def test_rows_end_between_words_or_wide_characters(text: str, rows: list[str]) -> None:
    assert wrap_text(text, 10) == rows
    assert [plain(row) for row in wrap([("", text)], 10)] == (rows or [""])  # a styled line has at least one row


def test_outer_blank_rows_are_omitted() -> None:
    assert wrap_text("\n\nOne\n\n\nTwo\n\n", 10) == ["One", "", "", "Two"]


def test_tabs_become_spaces() -> None:
    assert wrap_text("a\tb", 10) == ["a   b"]


@pytest.mark.parametrize("piece_length", [1, 2, 3])
@pytest.mark.parametrize(
    "escape",
    ["\x1b[31m", "\x1b]0;title\x07", "\x1b]8;;http://x\x1b\\", "\x9b1A"],
    ids=["colour", "title", "link", "8-bit cursor movement"],
)
def test_an_escape_sequence_cut_between_pieces_is_removed(escape: str, piece_length: int) -> None:
    assert rows_of_pieces(f"red {escape}herring", 20, piece_length) == ["red herring"]


def test_an_unended_escape_sequence_delays_a_bounded_text() -> None:
    flow = Flow(20)
    rows = flow.add("\x1b]0;") + [row for _ in range(200) for row in flow.add("words of it ")]
    assert "words of it" in " ".join(rows)


@given(ANY_TEXT, st.integers(1, 9), st.integers(4, 60))
def test_rows_do_not_depend_on_the_pieces(text: str, piece_length: int, width: int) -> None:
    assert rows_of_pieces(text, width, piece_length) == wrap_text(text, width)


@given(ANY_TEXT, st.integers(4, 60))
def test_rows_of_any_text_fit(text: str, width: int) -> None:
    flow = Flow(width)
    for row in [row for char in text for row in (*flow.add(char), flow.tail)] + flow.end():
        check_row(row, width)


@given(STYLED_LINE, st.integers(2, 40))
def test_rows_of_styled_text_keep_each_characters_style(line: list[tuple[str, str]], width: int) -> None:
    rows = wrap(line, width)
    assert all(columns(plain(row)) <= width for row in rows)
    assert characters_of(span for row in rows for span in row) == characters_of(line)


def characters_of(spans: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return each character with its style, without spaces, which a cut may omit."""
    return [(sgr, char) for sgr, text in spans for char in text if char != " "]


def test_each_span_resets_its_colours() -> None:
    assert paint_row([("1", "bold"), ("", " plain "), ("36", "")]) == "\x1b[1mbold\x1b[0m plain "


def test_decoded_control_characters_are_not_shown() -> None:
    assert safe_row("a\x1b[2Jb\u202ec\nd\te") == "abc d    e"


PRINTABLE = st.characters(exclude_categories=("Cc", "Cs", "Cf", "Mn", "Me", "Cn", "Co", "Zl", "Zp"))


@given(st.text(PRINTABLE))
def test_columns_are_counted_like_the_editor(text: str) -> None:
    # The two libraries have tables of different versions of Unicode.
    agreed = "".join(char for char in text if char.isascii() or get_cwidth(char) == columns(char))
    assert columns(agreed) == get_cwidth(agreed)


@given(st.text(max_size=50), st.integers(1, 30))
def test_fitting_counts_as_many_characters_as_fit(text: str, width: int) -> None:
    count = fitting_count(text, width)  # at least 1, even if a wide character does not fit
    assert count <= 1 or columns(text[:count]) <= width
    assert count >= len(text) or count == 1 or columns(text[: count + 1]) > width
