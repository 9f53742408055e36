"""Streaming Markdown is split into the parser's blocks, each as soon as it is certainly complete."""

from __future__ import annotations

import re
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import trying

from cli.show.blocks import MAX_UNFINISHED, Blocks, is_blank
from cli.show.markdown_layout import parser

PIECES = [
    *["text", "\n", "\n", "\n\n", " ", "  ", "    ", "\t", "é", "漢", "\\"],
    *["- a", "1. b", "2) c", "-", "+", "1.", "10. ", "- - x", "\n- ", "\n1. ", "\n  ", "\n    ", "\n\n  "],
    *["> q", "> - y", "- > z", "\n> ", "# h", "---", "===", "***", "*", "_", "[a]: http://x"],
    *["```", "~~~", "```py", "`", "|", "a | b", "--|--", "|---|"],
    *["<", ">"],
]
INDENTED_TOO_LITTLE = re.compile(r"^ {1,3}(?![-+*\d ])\S", re.MULTILINE)
"""Text that is indented, but less than the list item before it: a documented exception."""
texts = st.lists(st.sampled_from(PIECES), max_size=25).map("".join)


def parts_of(text: str) -> list[str]:
    blocks = Blocks()
    return [*blocks.add(text), blocks.end()]


def starts_in_the_whole(text: str) -> set[int]:
    """Return the lines where the parser, given the whole text, starts a block."""
    starts = set()
    for token in parser().parse(text):
        is_list = token.type in ("bullet_list_open", "ordered_list_open")
        if token.map is not None and (
            (token.level == 0 and not is_list) or (token.level == 1 and token.type == "list_item_open")
        ):
            starts.add(token.map[0])
    return starts


@trying(500)
@given(texts.filter(lambda text: not INDENTED_TOO_LITTLE.search(text)))
def test_parts_start_where_the_parser_starts_blocks(text: str) -> None:
    parts = parts_of(text)
    assert "".join(parts) == text
    lines = text.split("\n")
    for at in accumulate(part.count("\n") for part in parts[:-1]):
        while at < len(lines) and is_blank(lines[at]):  # blank lines between two blocks belong to either
            at += 1
        assert at in starts_in_the_whole(text) or at == len(lines)


@pytest.mark.parametrize(
    ("text", "completed"),
    [
        ("One\ntwo\n\n", "One\ntwo\n\n"),
        ("One\ntwo\n", ""),
        ("# One\n", "# One\n"),
        ("One\n===\n", ""),
        ("One\n# Two\n", "One\n# Two\n"),
        ("One\n- two\n", "One\n"),
        ("One\n2. two\n", ""),
        ("- one\n- two\n", "- one\n"),
        ("- one\n\n", ""),
        ("- one\n\n  more\n", ""),
        ("- one\nlazy\n", ""),
        ("- one\n\nT", "- one\n\n"),
        ("1. one\n   ```\n   a\n\n   b\n   ```\n", ""),
        ("1. one\n```\n", "1. one\n"),
        ("7. x\n8. y\n\nz\n", "7. x\n8. y\n\n"),
        ("- one\n  - inner\n- two\n", "- one\n  - inner\n"),
        ("- ```\n  # code\n", ""),
        ("```py\n# code\n\n- code\n", ""),
        ("````\n```\n````\n", "````\n```\n````\n"),
        ("~~~\n```\n", ""),
        ("| a |\n|---|\n| b |\n", ""),
        ("| a |\n|---|\n" + "| b |\n" * 99 + "\n", "| a |\n|---|\n" + "| b |\n" * 99 + "\n"),
        ("> one\nlazy\n", ""),
        ("    code\n\n    code\n", ""),
        ("    code\n\ntext\n", "    code\n\n"),
        ("<div>\ntext\n\n", "<div>\ntext\n\n"),
        (f"- {'word ' * 99}\n\n```py\n", f"- {'word ' * 99}\n\n"),
    ],
)
def test_a_block_is_returned_once_it_is_complete(text: str, completed: str) -> None:
    blocks = Blocks()
    assert "".join(blocks.add(text)) == completed
    rest = text.removeprefix(completed)
    assert blocks.is_open is bool(rest.strip())
    for count in range(1, len(rest) + 2):
        assert rest.endswith(last := blocks.last(count))
        assert min(count, len(rest)) <= len(last) < 2 * count


def test_blank_lines_open_no_block() -> None:
    blocks = Blocks()
    blocks.add("\n \n")
    assert not blocks.is_open
    blocks.add("T")
    assert blocks.is_open


def test_only_code_may_be_long() -> None:
    code = "    word\n\n\tword\n" * MAX_UNFINISHED
    assert parts_of(f"{code}text\n\n")[:2] == [code, "text\n\n"]
    text = "word\n" * MAX_UNFINISHED
    parts = parts_of(text)
    assert "".join(parts) == text
    assert max(map(len, parts)) <= MAX_UNFINISHED + 10
