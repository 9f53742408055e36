"""The rows of each kind of Markdown, and its tables."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.painted import bare, check_row

from cli.show.markdown_layout import MarkdownPage, parser, table_rows
from cli.show.spans import MarkdownStyle, plain
from cli.show.text_rows import columns


def rows_of(source: str, width: int = 40, *, ascii: bool = False) -> list[str]:
    rows = MarkdownPage(MarkdownStyle(ascii=ascii)).add(source, width)
    for row in rows:
        check_row(row, width)
    return [bare(row) for row in rows]


@pytest.mark.parametrize(
    ("source", "rows"),
    [
        ("# One\n## Two\n### Three", ["One", "", "Two", "", "Three"]),
        ("One\ntwo", ["One", "two"]),
        ("One  \ntwo<br>three", ["One", "two", "three"]),
        ("# One\nTwo", ["One", "Two"]),
        ("- a\n- b\n\n- c", ["• a", "• b", "", "• c"]),
        ("One:\n- a", ["One:", "• a"]),
        ("7. a\n8. b", ["7. a", "8. b"]),
        ("- a\n  - b\n    - c\n      - d", ["• a", "  ◦ b", "    ▪ c", "      ▪ d"]),
        ("- [ ] a\n- [x] b\n- [y] c", ["[ ] a", "[✓] b", "• [y] c"]),
        ("- [ ] \n  code", ["[ ]", "    code"]),
        (
            "10. one two three four five six seven eight nine",
            ["10. one two three four five six seven", "    eight nine"],
        ),
        ("-\n- a", ["•", "• a"]),
        ("- a\n\n  b\n- c", ["• a", "", "  b", "• c"]),
        ("- a\n  ```\n  code\n  ```\n- b", ["• a", "", "code", "", "• b"]),
        ("- ```\n  code\n  ```", ["•", "code"]),
        ("> a\nb\n>\n> - c", ["│ a", "│ b", "│", "│ • c"]),
        ("> ```\n> code\n> ```", ["│ code"]),
        ("a\n\n---\n\nb", ["a", "", "─" * 40, "", "b"]),
        ("    code\n      more", ["code", "  more"]),
        ("<div>\n  <b>x</b>\n</div>", ["<div>", "  <b>x</b>", "</div>"]),
        ("a List<String> of **b** *c* `d` ~~e~~ \\*", ["a List<String> of b c d e *"]),
        ("[text](http://x.y)", ["text (http://x.y)"]),
        ("<http://x.y> <a@b.org>", ["http://x.y a@b.org"]),
        ("![picture](x.png)", ["picture (x.png)"]),
        ("[x](javascript:alert)", ["[x](javascript:alert)"]),
        ("[a]: http://x.y", ["[a]: http://x.y"]),
        ("a `b ** c` snake_case_name", ["a b ** c snake_case_name"]),
        ("Grüße, e\u0301 und 漢字", ["Grüße, e\u0301 und 漢字"]),
        ("> - <!--\n> ", ["│ • <!--"]),
        ("&lt;b&gt; &amp;", ["<b> &"]),
        ("&#27;[31m &#x202e;a&#10;b&#9;c", ["�[31m a b    c"]),
        ("| a | b |\n|---|--:|\n| **c** | d\\|e<br>f |", ["a │   b", "──┼────", "c │ d|e", "  │   f"]),
        ("| a | b |\n|---|---|", ["a │ b", "──┼──"]),
        ("a | b\n--|--\nc", ["a │ b", "──┼──", "c │"]),
    ],
)
def test_each_kind_of_markdown_has_rows(source: str, rows: list[str]) -> None:
    assert [row.rstrip() for row in rows_of(source)] == rows


@pytest.mark.parametrize(
    ("source", "rows"),
    [
        ("- a\n  - [x] b", ["- a", "  [x] b"]),
        ("> a", ["| a"]),
        ("***", ["-" * 40]),
        ("|a|b|\n|-|-|\n|c|d|", ["a | b", "--+--", "c | d"]),
    ],
)
def test_signs_may_be_ascii(source: str, rows: list[str]) -> None:
    assert rows_of(source, ascii=True) == rows


def test_levels_of_headings_and_text_differ() -> None:
    rows = MarkdownPage(MarkdownStyle()).add("# a\n\n## a\n\n### a\n\na", 40)[::2]
    assert len(set(rows)) == 4
    assert {bare(row) for row in rows} == {"a"}


@pytest.mark.parametrize("source", ["*a*", "**a**", "`a`", "~~a~~", "# a", "[a](b)", "**`a`**"])
def test_emphasis_has_a_style(source: str) -> None:
    assert MarkdownPage(MarkdownStyle()).add(source, 40)[0].startswith("\x1b[")


def test_no_colour_is_black_white_or_a_background() -> None:
    source = "# a *b* **c** `d` ~~e~~ [f](g)\n> h\n***\n```python\n@x\ndef f(): return 'a' + 1 # c\n```\n"
    rows = "\n".join(MarkdownPage(MarkdownStyle()).add(source, 40))
    codes = {int(code) for codes in re.findall(r"\x1b\[([0-9;]+)m", rows) for code in codes.split(";")}
    # One of them may be the reader's own background.
    assert codes <= {0, 1, 2, 3, 4, 9, *range(31, 37)}


def test_deep_nesting_is_shown_on_a_narrow_screen() -> None:
    source = "".join("  " * n + f"- item {n} with words\n" for n in range(9))
    words = " ".join(rows_of(source, 20)).split()
    assert [word for word in words if word.isdigit()] == [str(n) for n in range(9)]


def test_reflow_joins_the_lines_of_a_paragraph() -> None:
    assert MarkdownPage(MarkdownStyle(reflow=True)).add("One\ntwo", 40) == ["One two"]


def test_source_is_shown_if_the_parser_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise IndexError("string index out of range")

    page = MarkdownPage(MarkdownStyle())
    assert page.add("# One\n", 40) == ["\x1b[1;4mOne\x1b[0m"]
    monkeypatch.setattr(type(parser()), "parse", fail)
    assert page.add("> **two** [three](four)\n", 40) == ["> **two** [three](four)"]


# ------------------------------------------------------------------------------------------------------------- tables


def table(head: list[str], body: list[list[str]], width: int, *aligned: str) -> list[str]:
    cells = [[[[("", text)]] for text in row] for row in (head, *body)]
    sides = aligned or [""] * len(head)
    return [plain(row) for row in table_rows(cells[0], cells[1:], sides, width=width, style=MarkdownStyle())]


TABLES = {
    80: [
        "Name  │   Size │          Note",
        "──────┼────────┼────────────────────────",
        "alpha │     12 │          short",
        "beta  │ 123456 │ a note of several words",
    ],
    30: [
        "Name  │   Size │     Note",
        "──────┼────────┼──────────────",
        "alpha │     12 │     short",
        "──────┼────────┼──────────────",
        "beta  │ 123456 │   a note of",
        "      │        │ several words",
    ],
    20: [
        "Name: alpha",
        "Size: 12",
        "Note: short",
        "",
        "Name: beta",
        "Size: 123456",
        "Note: a note of",
        "  several words",
    ],
}


@pytest.mark.parametrize("width", TABLES, ids=["aligned", "wrapped and ruled", "a line for each cell"])
def test_a_tables_form_depends_on_the_width(width: int) -> None:
    body = [["alpha", "12", "short"], ["beta", "123456", "a note of several words"]]
    assert table(["Name", "Size", "Note"], body, width, "", "right", "center") == TABLES[width]


def test_wide_characters_are_aligned() -> None:
    rows = table(["漢字", "b"], [["c", "🙂"], ["e\u0301", "f"]], 80)
    assert [columns(row.split("│")[0]) for row in (rows[0], *rows[2:])] == [5, 5, 5]


@given(st.data(), st.integers(1, 6), st.integers(4, 60))
def test_any_table_fits_without_losing_a_letter(data: st.DataObject, count: int, width: int) -> None:
    cells = st.lists(st.text("ab 漢", max_size=20), min_size=count, max_size=count)
    head, body = data.draw(cells), data.draw(st.lists(cells, max_size=4))
    rows = table(head, body, width)
    assert all(columns(row) <= width for row in rows)
    every, shown = "".join(text for row in body for text in row), "".join(rows)
    assert all(shown.count(letter) >= every.count(letter) for letter in "ab漢")
