"""Streaming Markdown is split into blocks, each as soon as it is certainly complete.

That the rows of the parts are those of the whole is tested in ``test_markdown.py``.
"""

from __future__ import annotations

import pytest

from cli.show.blocks import MAX_UNFINISHED, Blocks


def parts_of(text: str) -> list[str]:
    blocks = Blocks()
    return [*blocks.add(text), blocks.end()]


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
