"""What each kind of Markdown looks like as rows."""

from __future__ import annotations

import re

import pytest
from support.painted import bare, check_row

from cli.show.markdown_layout import MarkdownPage, parser
from cli.show.spans import MarkdownStyle


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
        ("One\n\n\n\nTwo", ["One", "", "Two"]),
        ("# One\nTwo", ["One", "Two"]),
        ("- a\n- b\n\n- c", ["• a", "• b", "", "• c"]),
        ("One:\n- a", ["One:", "• a"]),
        ("7. a\n8. b", ["7. a", "8. b"]),
        ("3) a", ["3) a"]),
        ("- a\n  - b\n    - c\n      - d", ["• a", "  ◦ b", "    ▪ c", "      ▪ d"]),
        ("- [ ] a\n- [x] b\n- [y] c", ["[ ] a", "[✓] b", "• [y] c"]),
        ("- [ ] \n  code", ["[ ]", "    code"]),
        ("- one two three four five six seven eight nine", ["• one two three four five six seven", "  eight nine"]),
        (
            "10. one two three four five six seven eight nine",
            ["10. one two three four five six seven", "    eight nine"],
        ),
        ("-\n- a", ["•", "• a"]),
        ("- a\n\n  b\n- c", ["• a", "", "  b", "• c"]),
        ("- a\n  ```\n  code\n  ```\n- b", ["• a", "", "code", "", "• b"]),
        ("- ```\n  code\n  ```", ["•", "code"]),
        ("> a\nb\n>\n> - c", ["│ a", "│ b", "│", "│ • c"]),
        ("> > a", ["│ │ a"]),
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
def test_rows(source: str, rows: list[str]) -> None:
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
def test_only_ascii_is_added_where_only_that_is_shown(source: str, rows: list[str]) -> None:
    assert rows_of(source, ascii=True) == rows


def test_levels_of_headings_differ_and_differ_from_text() -> None:
    rows = MarkdownPage(MarkdownStyle()).add("# a\n\n## a\n\n### a\n\na", 40)[::2]
    assert len(set(rows)) == 4
    assert {bare(row) for row in rows} == {"a"}


@pytest.mark.parametrize("source", ["*a*", "**a**", "`a`", "~~a~~", "# a", "[a](b)", "**`a`**"])
def test_emphasis_can_be_seen(source: str) -> None:
    assert MarkdownPage(MarkdownStyle()).add(source, 40)[0].startswith("\x1b[")


def test_colours_are_those_of_the_terminals_theme() -> None:
    source = "# a *b* **c** `d` ~~e~~ [f](g)\n> h\n***\n```python\n@x\ndef f(): return 'a' + 1 # c\n```\n"
    rows = "\n".join(MarkdownPage(MarkdownStyle()).add(source, 40))
    codes = {int(code) for codes in re.findall(r"\x1b\[([0-9;]+)m", rows) for code in codes.split(";")}
    # No black, white or background: one of them is the reader's own background.
    assert codes <= {0, 1, 2, 3, 4, 9, *range(31, 37)}


def test_a_table_of_five_columns_can_be_read_at_forty() -> None:
    head = "| " + " | ".join(["Name", "Size", "Owner", "Modified", "Description"]) + " |\n" + "|---" * 5 + "|\n"
    rows = rows_of(head + "| config.yaml | 4026 | root | 2024-11-22 | what the program reads at its start |\n")
    assert rows[:4] == ["Name: config.yaml", "Size: 4026", "Owner: root", "Modified: 2024-11-22"]


def test_what_is_nested_deeper_than_the_screen_is_wide_is_still_shown() -> None:
    source = "".join("  " * n + f"- item {n} with words\n" for n in range(9))
    words = " ".join(rows_of(source, 20)).split()
    assert [word for word in words if word.isdigit()] == [str(n) for n in range(9)]


def test_the_lines_of_a_paragraph_are_joined_where_they_mean_nothing() -> None:
    assert MarkdownPage(MarkdownStyle(reflow=True)).add("One\ntwo", 40) == ["One two"]


def test_what_the_parser_cannot_read_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise IndexError("string index out of range")

    page = MarkdownPage(MarkdownStyle())
    assert page.add("# One\n", 40) == ["\x1b[1;4mOne\x1b[0m"]
    monkeypatch.setattr(type(parser()), "parse", fail)
    assert page.add("> **two** [three](four)\n", 40) == ["> **two** [three](four)"]
