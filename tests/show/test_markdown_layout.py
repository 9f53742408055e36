"""The rows of each kind of Markdown, and its tables."""

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import check_row, without_colours

from cli.show.markdown_layout import MarkdownPage, parser, table_rows
from cli.show.spans import MarkdownStyle, plain
from cli.show.text_rows import columns


def rows_of(source: str, width: int = 40, *, ascii: bool = False) -> list[str]:
    rows = MarkdownPage(MarkdownStyle(ascii=ascii)).add(source, width)
    for row in rows:
        check_row(row, width)
    return [without_colours(row) for row in rows]


KINDS = {
    "headings": ("# One\n## Two\n### Three", ["One", "", "Two", "", "Three"]),
    "paragraph": ("One\ntwo", ["One", "two"]),
    "line breaks": ("One  \ntwo<br>three", ["One", "two", "three"]),
    "text below a heading": ("# One\nTwo", ["One", "Two"]),
    "list": ("- a\n- b\n\n- c", ["• a", "• b", "", "• c"]),
    "list below text": ("One:\n- a", ["One:", "• a"]),
    "numbered list": ("7. a\n8. b", ["7. a", "8. b"]),
    "nested list": ("- a\n  - b\n    - c\n      - d", ["• a", "  ◦ b", "    ▪ c", "      ▪ d"]),
    "tasks": ("- [ ] a\n- [x] b\n- [y] c", ["[ ] a", "[✓] b", "• [y] c"]),
    "task with code": ("- [ ] \n  code", ["[ ]", "    code"]),
    "long item": ("10. one two three four five six seven eight nine",
                  ["10. one two three four five six seven", "    eight nine"]),
    "empty item": ("-\n- a", ["•", "• a"]),
    "item of two paragraphs": ("- a\n\n  b\n- c", ["• a", "", "  b", "• c"]),
    "item with code": ("- a\n  ```\n  code\n  ```\n- b", ["• a", "", "code", "", "• b"]),
    "item of code": ("- ```\n  code\n  ```", ["•", "code"]),
    "quote": ("> a\nb\n>\n> - c", ["│ a", "│ b", "│", "│ • c"]),
    "quoted code": ("> ```\n> code\n> ```", ["│ code"]),
    "rule": ("a\n\n---\n\nb", ["a", "", "─" * 40, "", "b"]),
    "indented code": ("    code\n      more", ["code", "  more"]),
    "HTML": ("<div>\n  <b>x</b>\n</div>", ["<div>", "  <b>x</b>", "</div>"]),
    "emphasis": ("a List<String> of **b** *c* `d` ~~e~~ \\*", ["a List<String> of b c d e *"]),
    "link": ("[text](http://x.y)", ["text (http://x.y)"]),
    "addresses": ("<http://x.y> <a@b.org>", ["http://x.y a@b.org"]),
    "picture": ("![picture](x.png)", ["picture (x.png)"]),
    "link to a script": ("[x](javascript:alert)", ["[x](javascript:alert)"]),
    "link definition": ("[a]: http://x.y", ["[a]: http://x.y"]),
    "signs in code and names": ("a `b ** c` snake_case_name", ["a b ** c snake_case_name"]),
    "combining and wide characters": ("Grüße, e\u0301 und 漢字", ["Grüße, e\u0301 und 漢字"]),
    "open comment in an item": ("> - <!--\n> ", ["│ • <!--"]),
    "entities": ("&lt;b&gt; &amp;", ["<b> &"]),
    "entities of controls": ("&#27;[31m &#x202e;a&#10;b&#9;c", ["�[31m a b    c"]),
    "table": ("| a | b |\n|---|--:|\n| **c** | d\\|e<br>f |", ["a │   b", "──┼────", "c │ d|e", "  │   f"]),
    "table without a body": ("| a | b |\n|---|---|", ["a │ b", "──┼──"]),
    "table with a missing cell": ("a | b\n--|--\nc", ["a │ b", "──┼──", "c │"]),
}  # fmt: skip


@pytest.mark.parametrize(("source", "rows"), KINDS.values(), ids=KINDS)
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
    ids=["list", "quote", "rule", "table"],
)
def test_signs_may_be_ascii(source: str, rows: list[str]) -> None:
    assert rows_of(source, ascii=True) == rows


def test_levels_of_headings_and_text_differ() -> None:
    rows = MarkdownPage(MarkdownStyle()).add("# a\n\n## a\n\n### a\n\na", 40)
    assert [without_colours(row) for row in rows] == ["a", "", "a", "", "a", "", "a"]
    assert len(set(rows) - {""}) == 4, "each kind has its colours"


@pytest.mark.parametrize("source", ["*a*", "**a**", "`a`", "~~a~~", "# a", "[a](b)", "**`a`**"])
def test_emphasis_has_a_style(source: str) -> None:
    (row,) = MarkdownPage(MarkdownStyle()).add(source, 40)
    assert row.startswith("\x1b[")


def test_no_colour_is_black_white_or_a_background() -> None:
    source = "# a *b* **c** `d` ~~e~~ [f](g)\n> h\n***\n```python\n@x\ndef f(): return 'a' + 1 # c\n```\n"
    rows = "\n".join(MarkdownPage(MarkdownStyle()).add(source, 40))
    codes = {int(code) for codes in re.findall(r"\x1b\[([0-9;]+)m", rows) for code in codes.split(";")}
    bold_faint_italic_underlined_struck, red_to_cyan = {1, 2, 3, 4, 9}, set(range(31, 37))
    assert codes <= {0} | bold_faint_italic_underlined_struck | red_to_cyan


def test_deep_nesting_is_shown_on_a_narrow_screen() -> None:
    source = "".join("  " * n + f"- item {n} with words\n" for n in range(9))
    assert re.findall(r"\d", "".join(rows_of(source, 20))) == [str(n) for n in range(9)]


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


def table(head: list[str], body: list[list[str]], width: int, alignments: Sequence[str] = ()) -> list[str]:
    # A cell is a list of lines, and a line is a list of spans, each a style and a text.
    cells_of_head, *cells_of_body = [[[[("", text)]] for text in row] for row in (head, *body)]
    sides = alignments or [""] * len(head)
    return [plain(row) for row in table_rows(cells_of_head, cells_of_body, sides, width=width, style=MarkdownStyle())]


FORMS = {
    "aligned": (80, [
        "Name  │   Size │          Note",
        "──────┼────────┼────────────────────────",
        "alpha │     12 │          short",
        "beta  │ 123456 │ a note of several words",
    ]),
    "wrapped and ruled": (30, [
        "Name  │   Size │     Note",
        "──────┼────────┼──────────────",
        "alpha │     12 │     short",
        "──────┼────────┼──────────────",
        "beta  │ 123456 │   a note of",
        "      │        │ several words",
    ]),
    "a row for each cell": (20, [
        "Name: alpha",
        "Size: 12",
        "Note: short",
        "",
        "Name: beta",
        "Size: 123456",
        "Note: a note of",
        "  several words",
    ]),
}  # fmt: skip


@pytest.mark.parametrize(("width", "rows"), FORMS.values(), ids=FORMS)
def test_a_tables_form_depends_on_the_width(width: int, rows: list[str]) -> None:
    body = [["alpha", "12", "short"], ["beta", "123456", "a note of several words"]]
    assert table(["Name", "Size", "Note"], body, width, ["", "right", "center"]) == rows


def test_wide_characters_are_aligned() -> None:
    head, _, *body = table(["漢字", "b"], [["c", "🙂"], ["e\u0301", "f"]], 80)
    width_of_first_cell = columns("漢字 ")
    assert [columns(row.partition("│")[0]) for row in (head, *body)] == [width_of_first_cell] * 3


@given(st.data(), st.integers(1, 6), st.integers(4, 60))
def test_any_table_fits_without_losing_a_letter(data: st.DataObject, cell_count: int, width: int) -> None:
    cells = st.lists(st.text("ab 漢", max_size=20), min_size=cell_count, max_size=cell_count)
    head, body = data.draw(cells), data.draw(st.lists(cells, max_size=4))
    rows = table(head, body, width)
    assert all(columns(row) <= width for row in rows)
    source, shown = "".join(text for row in body for text in row), "".join(rows)
    assert all(shown.count(letter) >= source.count(letter) for letter in "ab漢")
