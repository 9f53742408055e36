"""Colours of code: no character is changed."""

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
def test_code_is_unchanged(code: list[str], language: str) -> None:
    assert [plain(row) for row in highlight(code, language)] == [line.expandtabs(4) for line in code]


@pytest.mark.parametrize(
    ("language", "line", "word"),
    [
        ("PYTHON", "return x", "return"),
        ("json", '{"a": 1}', '"a"'),
        ("bash", "if x; then", "if"),
        ("diff", "+new", "+new"),
        ("js", "const x", "const"),
    ],
)
def test_known_languages_have_colours(language: str, line: str, word: str) -> None:
    assert styles(line, language)[word]


@pytest.mark.parametrize(("language", "line"), [("no-such-language", "return x"), ("python", "return " * MAX_COLOURED)])
def test_unknown_languages_and_long_lines_are_plain(language: str, line: str) -> None:
    assert styles(line, language) == {line: ""}


def test_strings_are_recognised_across_parts() -> None:
    # The block is read in parts, and the second of them starts inside the string.
    before = ["x = 1"] * (MAX_LEXED // 12 - 9)
    inside, outside = highlight([*before, '"""', *["return"] * 20], "python"), highlight(["return"], "python")
    assert inside[-1] != outside[0]


def test_a_long_block_is_coloured_to_its_end() -> None:
    rows = highlight(["return x"] * 2_000, "python")
    assert len(rows) == 2_000
    assert len({tuple(row) for row in rows}) == 1
