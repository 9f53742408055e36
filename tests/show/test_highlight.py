"""Colours of code: no character is changed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.show.highlight import MAX_COLOURED, MAX_LEXED, highlight
from cli.show.spans import plain

LANGUAGES = ["python", "json", "bash", "diff", "js", "html", "yaml", "console", "unknown", ""]
CODE_CHARACTERS = st.sampled_from("abc 01 \t\"'`#(){}[]<>/*\\-+=$@:;漢\u0301\u2028")


def style_by_word(line: str, language: str) -> dict[str, str]:
    """Return the SGR parameters of each stretch of one style; empty for plain text."""
    (row,) = highlight([line], language)
    return {text: sgr for sgr, text in row}


@given(st.lists(st.text(CODE_CHARACTERS, max_size=20), max_size=12), st.sampled_from(LANGUAGES))
def test_code_is_unchanged(code: list[str], language: str) -> None:
    assert [plain(row) for row in highlight(code, language)] == [line.expandtabs(4) for line in code]


@pytest.mark.parametrize(
    ("language", "line", "coloured_word"),
    [
        ("PYTHON", "return x", "return"),
        ("json", '{"a": 1}', '"a"'),
        ("bash", "if x; then", "if"),
        ("diff", "+new", "+new"),
        ("js", "const x", "const"),
    ],
)
def test_known_languages_have_colours(language: str, line: str, coloured_word: str) -> None:
    assert style_by_word(line, language)[coloured_word]


@pytest.mark.parametrize(
    ("language", "line"), [("unknown", "return x"), ("python", "return " * MAX_COLOURED)], ids=["unknown", "long line"]
)
def test_unknown_languages_and_long_lines_are_plain(language: str, line: str) -> None:
    assert style_by_word(line, language) == {line: ""}


def test_strings_are_recognised_across_parts() -> None:
    # Code is lexed in parts of ``MAX_LEXED // 2`` characters. The first one ends nine lines after the string begins.
    before_string = ["x = 1"] * (MAX_LEXED // 2 // len("x = 1\n") - 9)
    *_, inside_string = highlight([*before_string, '"""', *["return"] * 20], "python")
    (outside_string,) = highlight(["return"], "python")
    assert inside_string != outside_string


def test_a_long_block_is_coloured_to_its_end() -> None:
    rows = highlight(["return x"] * 2_000, "python")  # many times the length of a part that is lexed
    assert len(rows) == 2_000
    assert len({tuple(row) for row in rows}) == 1
