"""Running text cut into rows: the same however it comes, nothing a terminal would obey, never wider than it may be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.utils import get_cwidth

from chain.text.plain import sanitize
from cli.show.text_rows import Flow, columns, fitting


def rows_of(text: str, width: int = 20, *, piece: int = 0) -> list[str]:
    flow = Flow(width)
    pieces = [text] if not piece else [text[n : n + piece] for n in range(0, len(text), piece)]
    return [row for p in pieces for row in flow.add(p)] + flow.end()


def test_a_row_is_given_when_it_is_whole() -> None:
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
        ("The quick brown fox jumps over the lazy dog", ["The quick brown fox", "jumps over the lazy", "dog"]),
        ("four words fit here.", ["four words fit here."]),
        ("x" * 45, ["x" * 20, "x" * 20, "x" * 5]),
        ("漢" * 25, ["漢" * 10, "漢" * 10, "漢" * 5]),
        ("🙂" * 11, ["🙂" * 10, "🙂"]),
        ("e\u0301" * 20, ["e\u0301" * 20]),
        ("\n\nOne\n\n\nTwo\n\n", ["One", "", "", "Two"]),
        ("a\tb", ["a   b"]),
    ],
)
def test_rows(text: str, rows: list[str]) -> None:
    assert rows_of(text) == rows


@pytest.mark.parametrize("piece", [0, 1, 2, 3])
@pytest.mark.parametrize(
    "escape",
    ["\x1b[31m", "\x1b]0;title\x07", "\x1b]8;;http://x\x1b\\", "\x9b1A"],
)
def test_escape_sequences_are_taken_out_wherever_they_are_cut(escape: str, piece: int) -> None:
    assert rows_of(f"red {escape}herring", piece=piece) == ["red herring"]


def test_a_sequence_without_an_end_does_not_hold_the_text_back_for_ever() -> None:
    flow = Flow(20)
    rows = flow.add("\x1b]0;") + [row for _ in range(200) for row in flow.add("words of it ")] + flow.end()
    assert "words of it" in " ".join(rows)
    assert "\x1b" not in "".join(rows)


@given(
    st.text(st.characters() | st.sampled_from("\x1b[]mP\x07;\n\t "), max_size=200),
    st.integers(0, 9),
    st.integers(4, 60),
)
def test_it_does_not_matter_how_the_text_comes(text: str, piece: int, width: int) -> None:
    assert rows_of(text, width, piece=piece) == rows_of(text, width)


@given(st.text(st.characters() | st.sampled_from("\x1b[]漢🙂\u0301\t\n "), max_size=300), st.integers(4, 60))
def test_a_row_fits_and_holds_nothing_that_a_terminal_obeys(text: str, width: int) -> None:
    flow = Flow(width)
    shown = [row for char in text for row in (*flow.add(char), flow.tail)] + flow.end()
    for row in shown:
        assert columns(row) <= width
        assert sanitize(row) == row
        assert "\n" not in row
        assert "\t" not in row


def test_signs_without_a_column_do_not_make_a_row_too_long() -> None:
    flow = Flow(4)
    assert [*flow.add("0000" + "\u0300" * 4 + "0"), *flow.end()] == ["0000" + "\u0300" * 4, "0"]


@given(st.text(st.characters(exclude_categories=("Cc", "Cs", "Cf", "Mn", "Me", "Cn", "Co", "Zl", "Zp"))))
def test_columns_are_counted_as_the_editor_counts_them(text: str) -> None:
    narrow = "".join(char for char in text if char.isascii() or get_cwidth(char) == columns(char))
    assert columns(narrow) == get_cwidth(narrow)


@given(st.text(max_size=50), st.integers(1, 30))
def test_as_many_characters_as_fit(text: str, width: int) -> None:
    cut = fitting(text, width)
    assert cut <= 1 or columns(text[:cut]) <= width
    assert cut >= len(text) or cut == 1 or columns(text[: cut + 1]) > width
