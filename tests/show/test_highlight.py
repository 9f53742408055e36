"""Colours of code: never at the cost of a character."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.show.highlight import MAX_COLOURED, MAX_LEXED, highlight
from cli.show.spans import plain

LANGUAGES = ["python", "json", "bash", "diff", "js", "html", "yaml", "console", "unknown", ""]
signs = st.sampled_from("abc 01 \t\"'`#(){}[]<>/*\\-+=$@:;漢\u0301\u2028")


def styles(line: str, language: str) -> dict[str, str]:
    (row,) = highlight([line], language)
    return {text: sgr for sgr, text in row}


@given(st.lists(st.text(signs, max_size=20), max_size=12), st.sampled_from(LANGUAGES))
def test_lines_stay_as_they_are(code: list[str], language: str) -> None:
    assert [plain(row) for row in highlight(code, language)] == [line.expandtabs(4) for line in code]


@pytest.mark.parametrize(
    ("language", "line", "word"),
    [
        ("python", "return x", "return"),
        ("PYTHON", "return x", "return"),
        ("json", '{"a": 1}', '"a"'),
        ("bash", "if x; then", "if"),
        ("diff", "+new", "+new"),
        ("diff", "-old", "-old"),
        ("js", "const x", "const"),
    ],
)
def test_what_matters_has_a_colour(language: str, line: str, word: str) -> None:
    assert styles(line, language)[word]


def test_added_and_removed_lines_differ() -> None:
    assert styles("+x", "diff")["+x"] != styles("-x", "diff")["-x"]


def test_lines_before_decide_what_a_line_means() -> None:
    # The block is read in parts, and the second of them begins inside the string.
    before = ["x = 1"] * (MAX_LEXED // 12 - 9)
    inside, outside = highlight([*before, '"""', *["return"] * 20], "python"), highlight(["return"], "python")
    assert inside[-1] != outside[0]


def test_a_language_that_is_not_known_and_a_line_for_machines_have_no_colours() -> None:
    assert styles("return x", "no-such-language") == {"return x": ""}
    line = "return " * MAX_COLOURED
    assert styles(line, "python") == {line: ""}


def test_a_long_block_is_coloured_to_its_end() -> None:
    rows = highlight(["return x"] * 2_000, "python")
    assert len(rows) == 2_000
    assert len({tuple(row) for row in rows}) == 1
