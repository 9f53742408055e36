"""Streaming Markdown replies: the rows do not depend on the pieces, and the cost grows linearly with the text."""

import re
from collections.abc import Callable, Iterable
from typing import TypeAlias

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.examples import max_examples
from support.rows import check_row, count_calls, pieces_of, without_colours

from chain.text.plain import sanitize
from cli.show.blocks import MAX_UNFINISHED
from cli.show.markdown_flow import MAX_TAIL, MarkdownFlow, PlainFlow, render, warm
from cli.show.markdown_layout import MarkdownPage
from cli.show.spans import MarkdownStyle
from cli.show.text_rows import Flow, wrap_text

OpenFlow: TypeAlias = Callable[[int], MarkdownFlow | PlainFlow]

PIECES = [
    *["text", "word ", "\n", "\n\n", " ", "  ", "    ", "\t", "é", "漢字", "🙂", "e\u0301", "\u200d", "\\"],
    *["- a", "1. b", "-", "10. ", "- - x", "\n- ", "\n1. ", "\n  ", "\n\n  ", "[x] ", "[ ] ", "> q", "\n> ", "# h"],
    *["---", "===", "***", "*", "**", "_", "`", "~~", "[a](http://x)", "[", "]", "(", "![i](u)", "<b>", "<br>", "<!--"],
    *["```", "~~~", "```py", "def f():", "|", "a | b", "--|--", "\n\n| a | b |\n|:-:|--:|\n| c | d |"],
    *["&#27;", "&#x202e;", "&#10;", "&#9;", "&lt;", "\x1b[31m", "\x1b]0;", "\x07", "\x9b", "\r", "\u2028", "\x00"],
]
SLIGHTLY_INDENTED_TEXT = re.compile(r"^ {1,3}(?![-+*\d ])\S", re.MULTILINE)
"""An exception of ``Blocks``: text that may be indented less than its list item."""
HTML_START = re.compile(r"<b>|^ {0,3}<(br>|!--)", re.MULTILINE)
"""An exception of ``Blocks``: HTML that may contain a list or code."""

WIDTHS = st.sampled_from([4, 9, 20, 40, 80])
ANY_MARKDOWN = st.lists(st.sampled_from(PIECES), max_size=30).map("".join)
WORD = st.integers(1, 999).map("w{}".format)
WORDS = st.lists(
    st.one_of(WORD, WORD.map("*{}*".format), WORD.map("**{}**".format), WORD.map("`{}`".format)), min_size=1
).map(" ".join)
VALID_MARKDOWN = st.lists(
    st.one_of(
        WORDS,
        WORDS.map("## {}".format),
        WORDS.map("- {}\n  - again".format),
        st.builds("{}. {}".format, st.integers(1, 999), WORDS),
        WORDS.map("> {}".format),
        WORDS.map("```\n{}\n```".format),
        st.builds("| c1 | c2 |\n|--|--|\n| {} | {} |".format, WORD, WORD),
    ),
    max_size=6,
).map("\n\n".join)


def markdown_flow(width: int) -> MarkdownFlow:
    return MarkdownFlow(width, MarkdownStyle())


def rows_added(flow: MarkdownFlow | PlainFlow, piece: str) -> list[str]:
    """Return the rows that a piece completes. ``add`` returns them in groups: a block ends after each but the last."""
    return [row for group in flow.add(piece) for row in group]


def rows_of_pieces(flow: MarkdownFlow | PlainFlow, pieces: Iterable[str]) -> list[str]:
    return [row for piece in pieces for row in rows_added(flow, piece)] + flow.end()


def markdown_rows(text: str, width: int = 40) -> list[str]:
    return rows_of_pieces(markdown_flow(width), [text])


@max_examples(300)
@given(ANY_MARKDOWN, st.integers(1, 9), WIDTHS)
@example("```\n\n\n\n\n  \n  ", 1, 4)  # a line of spaces counts as blank in code too
def test_rows_do_not_depend_on_the_pieces(text: str, piece_length: int, width: int) -> None:
    rows = markdown_rows(text, width)
    assert rows == rows_of_pieces(markdown_flow(width), pieces_of(text, piece_length))
    whole = sanitize(text)
    if not SLIGHTLY_INDENTED_TEXT.search(whole) and not HTML_START.search(whole):
        assert rows == MarkdownPage(MarkdownStyle()).add(whole, width)


@max_examples(300)
@given(ANY_MARKDOWN, WIDTHS, st.booleans())
def test_rows_and_tail_of_any_text_fit(text: str, width: int, ascii: bool) -> None:
    flow = MarkdownFlow(width, MarkdownStyle(ascii=ascii))
    rows = []
    for piece in pieces_of(text, 5):
        rows += rows_added(flow, piece)
        tail = flow.tail.split("\n")
        assert len(tail) <= MAX_TAIL
        for row in tail:
            check_row(row, width)
    rows += flow.end()
    may_contain_code = any(sign in text for sign in ("```", "~~~", "\t", "    "))  # its rows are not cut
    for row in rows:
        check_row(row, 1_000 if may_contain_code else width)
    assert not rows or (rows[0] and rows[-1]), "outer blank rows are omitted"


@max_examples(200)
@given(VALID_MARKDOWN, st.sampled_from([8, 20, 40, 200]))
def test_no_word_is_lost(source: str, width: int) -> None:
    # Narrow tables repeat the head, and in a grid the words of wrapped cells are beside each other.
    letters = "".join(char for char in source if char.isalnum())
    shown = "".join(char for row in markdown_rows(source, width) for char in without_colours(row) if char.isalnum())
    if "|" not in source:
        assert shown == letters
    assert len(shown) >= len(letters)


def test_a_block_is_source_until_it_is_complete() -> None:
    flow = markdown_flow(40)
    assert flow.add("Let **me") == [[]]  # a single group: no block has ended
    assert (flow.is_open, flow.tail) == (True, "Let **me")
    assert flow.add("** see.") == [[]]
    finished_block, next_block = flow.add("\n\n")
    assert [without_colours(row) for row in finished_block] == ["Let me see."]
    assert (next_block, flow.is_open, flow.tail) == ([], False, "")
    assert flow.add("Two") == [[]]
    assert flow.tail == "\nTwo"
    assert flow.end() == ["", "Two"]
    assert (flow.is_open, flow.tail) == (False, "")


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("\n\nOne\n\n\n\nTwo\n- a\n- b\n\n- c\n\n\n", ["One", "", "Two", "• a", "• b", "", "• c"]),
        ("```\n\na\n\nb\n\n```\n", ["a", "", "b"]),
    ],
    ids=["text", "code"],
)
def test_outer_blank_rows_are_omitted(text: str, rows: list[str]) -> None:
    assert markdown_rows(text) == rows


def test_code_is_coloured_when_it_is_complete() -> None:
    code = [f"{'    ' * (n % 3)}print('line {n}')  # 漢字" for n in range(100)]
    flow = markdown_flow(40)
    assert rows_added(flow, "```python\n") == []
    for line in code:
        assert rows_added(flow, f"{line}\n") == []
        *_, last_row = flow.tail.split("\n")
        assert last_row.strip() == line.strip()
    rows = rows_added(flow, "```\n")
    assert [without_colours(row) for row in rows] == code
    assert rows != code, "complete code has colours"
    assert not flow.is_open


LONG_LINE = "x = 漢字 + " * 30 + "end"
FENCED_CODE = f"```python\n{LONG_LINE}\n```\n"
CODE_IN_ITEM = f"- item\n\n  ```\n  {LONG_LINE}\n  ```\n"
FLOWS = {"Markdown": markdown_flow, "plain": PlainFlow}


@pytest.mark.parametrize("piece_length", [3, 1000])
@pytest.mark.parametrize(
    ("open_flow", "source"),
    [(markdown_flow, FENCED_CODE), (markdown_flow, CODE_IN_ITEM), (PlainFlow, FENCED_CODE)],
    ids=["code", "code in an item", "code without colours"],
)
def test_a_long_line_of_code_is_not_cut(open_flow: OpenFlow, source: str, piece_length: int) -> None:
    rows = rows_of_pieces(open_flow(33), pieces_of(source, piece_length))
    assert LONG_LINE in [without_colours(row) for row in rows]


@pytest.mark.parametrize("open_flow", FLOWS.values(), ids=FLOWS)
def test_a_long_unfinished_line_of_code_fits(open_flow: OpenFlow) -> None:
    flow = open_flow(33)
    flow.add(f"```python\n{LONG_LINE}")
    tail = flow.tail.split("\n")
    assert 1 < len(tail) <= MAX_TAIL
    for row in tail:
        check_row(row, 33)


def test_the_tail_has_a_tables_last_rows() -> None:
    flow = markdown_flow(20)
    rows = [f"| row {n} | x |" for n in range(99)]
    flow.add("\n".join(["| head | two |", "|---|---|", *rows, ""]))
    assert flow.tail.split("\n") == rows[-MAX_TAIL:]


def test_the_tail_has_a_paragraphs_end() -> None:
    flow = markdown_flow(20)
    flow.add("".join(f"word{n} " for n in range(999)))
    assert len(flow.tail.split("\n")) == MAX_TAIL
    assert flow.tail.endswith("word998")


def test_a_new_width_applies_to_the_open_block() -> None:
    flow = markdown_flow(40)
    flow.add("One two three four five six seven")
    assert flow.tail == "One two three four five six seven"
    flow.width = 20
    assert flow.tail == "One two three four\nfive six seven"
    assert flow.end() == ["One two three four", "five six seven"]


def test_too_long_a_block_is_shown_as_source() -> None:
    text = "*word* " * MAX_UNFINISHED
    source_rows = wrap_text(text, 40)
    assert markdown_rows(text) == source_rows
    assert rows_of_pieces(markdown_flow(40), pieces_of(text, 77)) == source_rows


def test_rendering_resumes_after_too_long_a_block() -> None:
    *_, separator, heading = markdown_rows(f"{'*word* ' * MAX_UNFINISHED}\n\n# b")
    assert [separator, heading] == ["", *markdown_rows("# b")]


@given(st.lists(WORD, min_size=1, max_size=6), st.integers(1, 9))
def test_code_without_colours_is_shown_as_source(words: list[str], piece_length: int) -> None:
    source = ["```python", *(f"{word} is longer than the row" for word in words), "```"]
    assert rows_of_pieces(PlainFlow(20), pieces_of("\n".join(source), piece_length)) == source


@given(ANY_MARKDOWN.filter(lambda text: "```" not in text and "~~~" not in text), st.integers(1, 9))
def test_text_without_colours_is_shown_as_source(text: str, piece_length: int) -> None:
    plain, source, markdown = PlainFlow(20), Flow(20), markdown_flow(20)
    for piece in pieces_of(text, piece_length):
        markdown.add(piece)
        assert rows_added(plain, piece) == source.add(piece)
        assert plain.tail == source.tail
        assert plain.is_open == markdown.is_open
    assert plain.end() == source.end()
    assert not plain.is_open


def test_the_lines_of_a_file_are_joined() -> None:
    rows = render("# A\n\nOne\ntwo\n- *b*", 40, ascii=True)
    assert [without_colours(row) for row in rows] == ["A", "", "One two", "- b"]


REPEATED_TEXTS = [
    *["a\n=\n", "[", "`", "*a ", "_a", "[a](", "**a *b ", "*a\n", "  - a\n", "> a\nb\n", "|a\n", "1. a\n\n"],
    "| a | b |\n|---|---|\n" + "| c | d |\n" * 20,
    "```python\n" + "x = [1]\n" * 9 + "```\n",
]


@pytest.mark.sampled(every=len(REPEATED_TEXTS))
@pytest.mark.parametrize("text", REPEATED_TEXTS)
def test_the_cost_grows_linearly_with_the_text(text: str) -> None:
    def cost_of_streaming(length: int) -> int:
        def stream() -> None:
            flow = markdown_flow(80)
            for piece in pieces_of((text * length)[:length], 120):
                flow.add(piece)
                assert flow.tail is not None  # the terminal shows it after each piece
            flow.end()

        return count_calls(stream)

    warm()  # so that no call is counted that only the first rendering makes
    assert cost_of_streaming(3_000) < 5 * cost_of_streaming(1_000)  # 3 times if linear, 9 times if quadratic
