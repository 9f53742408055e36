"""Markdown replies while they stream: the rows do not depend on the pieces, and the work grows with the text."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support import trying
from support.painted import bare, check_row
from support.work import calls_of

from chain.text.plain import sanitize
from cli.show.blocks import MAX_UNFINISHED
from cli.show.markdown_flow import MAX_TAIL, MarkdownFlow, PlainFlow, render, warm
from cli.show.markdown_layout import MarkdownPage
from cli.show.spans import MarkdownStyle
from cli.show.text_rows import Flow

PIECES = [
    *["text", "word ", "\n", "\n\n", " ", "  ", "    ", "\t", "é", "漢字", "🙂", "e\u0301", "\u200d", "\\"],
    *["- a", "1. b", "-", "10. ", "- - x", "\n- ", "\n1. ", "\n  ", "\n\n  ", "[x] ", "[ ] ", "> q", "\n> ", "# h"],
    *["---", "===", "***", "*", "**", "_", "`", "~~", "[a](http://x)", "[", "]", "(", "![i](u)", "<b>", "<br>", "<!--"],
    *["```", "~~~", "```py", "def f():", "|", "a | b", "--|--", "\n\n| a | b |\n|:-:|--:|\n| c | d |"],
    *["&#27;", "&#x202e;", "&#10;", "&#9;", "&lt;", "\x1b[31m", "\x1b]0;", "\x07", "\x9b", "\r", "\u2028", "\x00"],
]
SPLIT_ELSEWHERE = re.compile(r"^ {1,3}(?![-+*\d ])\S|<b>", re.MULTILINE)
"""Exceptions of ``Blocks``: text indented less than its list item, and HTML that may contain a fence."""
texts = st.lists(st.sampled_from(PIECES), max_size=30).map("".join)
words = st.integers(1, 999).map("w{}".format)
runs = st.lists(
    st.one_of(words, words.map("*{}*".format), words.map("**{}**".format), words.map("`{}`".format)), min_size=1
).map(" ".join)
sources = st.lists(
    st.one_of(
        runs,
        runs.map("## {}".format),
        runs.map("- {}\n  - again".format),
        st.tuples(st.integers(1, 999), runs).map(lambda item: f"{item[0]}. {item[1]}"),
        runs.map("> {}".format),
        runs.map("```\n{}\n```".format),
        st.lists(words, min_size=2, max_size=2).map(lambda cells: "| c1 | c2 |\n|--|--|\n| {} | {} |".format(*cells)),
    ),
    max_size=6,
).map("\n\n".join)


def markdown(width: int) -> MarkdownFlow:
    return MarkdownFlow(width, MarkdownStyle())


def rows_of(text: str, width: int = 40, piece: int = 0) -> list[str]:
    return all_rows(markdown(width), text, piece)


def all_rows(flow: MarkdownFlow | PlainFlow, text: str, piece: int = 0) -> list[str]:
    return [row for part in pieces_of(text, piece) for row in added(flow, part)] + flow.end()


def added(flow: MarkdownFlow | PlainFlow, piece: str) -> list[str]:
    return [row for rows in flow.add(piece) for row in rows]


def pieces_of(text: str, piece: int) -> list[str]:
    return [text[n : n + piece] for n in range(0, len(text), piece)] if piece else [text]


@trying(300)
@given(texts, st.integers(1, 9), st.sampled_from([4, 9, 20, 40, 80]))
@example("```\n\n\n\n\n  \n  ", 1, 4)
def test_rows_do_not_depend_on_the_pieces(text: str, piece: int, width: int) -> None:
    rows = rows_of(text, width)
    assert rows == rows_of(text, width, piece)
    if not SPLIT_ELSEWHERE.search(sanitize(text)):
        assert rows == MarkdownPage(MarkdownStyle()).add(sanitize(text), width)


@trying(300)
@given(texts, st.sampled_from([4, 9, 20, 40, 80]), st.booleans())
def test_rows_and_tail_of_any_text_fit(text: str, width: int, ascii: bool) -> None:
    flow = MarkdownFlow(width, MarkdownStyle(ascii=ascii))
    rows = []
    for piece in pieces_of(text, 5):
        rows += added(flow, piece)
        tail = flow.tail.split("\n")
        assert len(tail) <= MAX_TAIL
        for row in tail:
            check_row(row, width)
    rows += flow.end()
    may_hold_code = any(sign in text for sign in ("```", "~~~", "\t", "    "))
    for row in rows:
        check_row(row, 1_000 if may_hold_code else width)
    assert not rows or (rows[0] and rows[-1])


@trying(200)
@given(sources, st.sampled_from([8, 20, 40, 200]))
def test_no_word_is_lost(source: str, width: int) -> None:
    # Narrow tables repeat the head, and in a grid the words of wrapped cells are beside each other.
    letters = "".join(char for char in source if char.isalnum())
    shown = "".join(char for row in rows_of(source, width) for char in bare(row) if char.isalnum())
    if "|" not in source:
        assert shown == letters
    assert len(shown) >= len(letters)


def test_a_block_is_source_until_it_is_complete() -> None:
    flow = markdown(40)
    assert added(flow, "Let **me") == []
    assert (flow.is_open, flow.tail) == (True, "Let **me")
    assert added(flow, "** see.") == []
    first, others = flow.add("\n\n")
    assert [bare(row) for row in first] == ["Let me see."]
    assert (others, flow.is_open, flow.tail) == ([], False, "")
    assert added(flow, "Two") == []
    assert flow.tail == "\nTwo"
    assert flow.end() == ["", "Two"]
    assert (flow.is_open, flow.tail) == (False, "")


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("\n\nOne\n\n\n\nTwo\n- a\n- b\n\n- c\n\n\n", ["One", "", "Two", "• a", "• b", "", "• c"]),
        ("```\n\na\n\nb\n\n```\n", ["a", "", "b"]),
    ],
)
def test_outer_blank_rows_are_omitted(text: str, rows: list[str]) -> None:
    assert rows_of(text) == rows


def test_code_is_coloured_when_it_is_complete() -> None:
    code = [f"{'    ' * (n % 3)}print('line {n}')  # 漢字" for n in range(100)]
    flow = markdown(40)
    assert added(flow, "```python\n") == []
    for line in code:
        assert added(flow, f"{line}\n") == []
        assert flow.tail.split("\n")[-1].strip() == line.strip()
    rows = added(flow, "```\n")
    assert [bare(row) for row in rows] == code
    assert rows != code
    assert not flow.is_open


@pytest.mark.parametrize("kind", [markdown, PlainFlow])
def test_a_long_line_of_code_is_not_cut(kind: Callable[[int], MarkdownFlow | PlainFlow]) -> None:
    code = "x = 漢字 + " * 30 + "end"
    sources = [f"```python\n{code}\n```\n"] + [f"- item\n\n  ```\n  {code}\n  ```\n"] * (kind is markdown)
    for source in sources:
        for piece in (3, 1000):
            assert code in [bare(row) for row in all_rows(kind(33), source, piece)]
    flow = kind(33)
    flow.add(f"```python\n{code}")
    tail = flow.tail.split("\n")
    assert 1 < len(tail) <= MAX_TAIL
    for row in tail:
        check_row(row, 33)


def test_the_tail_is_the_open_blocks_end() -> None:
    flow = markdown(20)
    flow.add("| head | two |\n|---|---|\n" + "".join(f"| row {n} | x |\n" for n in range(99)))
    assert flow.tail.split("\n") == [f"| row {n} | x |" for n in range(94, 99)]
    flow = markdown(20)
    flow.add("".join(f"word{n} " for n in range(999)))
    assert len(flow.tail.split("\n")) == MAX_TAIL
    assert flow.tail.endswith("word998")


def test_a_new_width_applies_to_the_open_block() -> None:
    flow = markdown(40)
    flow.add("One two three four five six seven")
    assert flow.tail == "One two three four five six seven"
    flow.width = 20
    assert flow.tail == "One two three four\nfive six seven"
    assert flow.end() == ["One two three four", "five six seven"]


def test_too_long_a_block_is_shown_as_source() -> None:
    plain = Flow(40)
    text = "*word* " * MAX_UNFINISHED
    assert rows_of(text) == rows_of(text, piece=77) == plain.add(text) + plain.end()
    assert rows_of(f"{text}\n\n# b")[-2:] == ["", *rows_of("# b")]


@given(st.lists(words, min_size=1, max_size=6), st.integers(1, 9))
def test_code_without_colours_is_shown_as_source(lines: list[str], piece: int) -> None:
    text = "\n".join(["```python", *(f"{line} x" for line in lines), "```"])
    assert all_rows(PlainFlow(20), text, piece) == text.split("\n")


@given(texts.filter(lambda text: "```" not in text and "~~~" not in text), st.integers(1, 9))
def test_text_without_colours_is_shown_as_source(text: str, piece: int) -> None:
    plain, flow, open_as = PlainFlow(20), Flow(20), markdown(20)
    for part in pieces_of(text, piece):
        open_as.add(part)
        assert added(plain, part) == flow.add(part)
        assert (plain.tail, plain.is_open) == (flow.tail, open_as.is_open)
    assert plain.end() == flow.end()
    assert not plain.is_open


def test_the_lines_of_a_file_are_joined() -> None:
    assert [bare(row) for row in render("# A\n\nOne\ntwo\n- *b*", 40, ascii=True)] == ["A", "", "One two", "- b"]


GROWING = [
    *["a\n=\n", "[", "`", "*a ", "_a", "[a](", "**a *b ", "*a\n", "  - a\n", "> a\nb\n", "|a\n", "1. a\n\n"],
    "| a | b |\n|---|---|\n" + "| c | d |\n" * 20,
    "```python\n" + "x = [1]\n" * 9 + "```\n",
]


@pytest.mark.sampled(every=len(GROWING))
@pytest.mark.parametrize("text", GROWING)
def test_the_work_grows_with_the_text(text: str) -> None:
    def stream(source: str) -> None:
        flow = markdown(80)
        for piece in pieces_of(source, 120):
            flow.add(piece)
            assert flow.tail is not None
        flow.end()

    warm()
    short, long = ((text * n)[:n] for n in (1_000, 3_000))
    assert calls_of(lambda: stream(long)) < 5 * calls_of(lambda: stream(short))
