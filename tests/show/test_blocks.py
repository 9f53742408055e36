"""Streaming Markdown is split into blocks, each as soon as it is certainly complete.

That the rows of the parts are those of the whole is tested in ``test_markdown.py``.
"""

import pytest

from cli.show.blocks import MAX_UNFINISHED, Blocks

# Both are shorter than MAX_UNFINISHED.
LONG_TABLE = "| a |\n|---|\n" + "| b |\n" * 99
LONG_ITEM = f"- {'word ' * 99}\n\n"


@pytest.mark.parametrize(
    ("completed", "unfinished"),
    [
        pytest.param("One\ntwo\n\n", "", id="paragraph"),
        pytest.param("", "One\ntwo\n", id="paragraph without a blank line after it"),
        pytest.param("# One\n", "", id="heading"),
        pytest.param("", "One\n===\n", id="underlined heading"),
        pytest.param("One\n# Two\n", "", id="heading below a paragraph"),
        pytest.param("One\n", "- two\n", id="list below a paragraph"),
        pytest.param("", "One\n2. two\n", id="number other than 1 below a paragraph"),
        pytest.param("- one\n", "- two\n", id="item before an item"),
        pytest.param("", "- one\n\n", id="item before a blank line"),
        pytest.param("", "- one\n\n  more\n", id="item of two paragraphs"),
        pytest.param("", "- one\nlazy\n", id="item with an unindented line"),
        pytest.param("- one\n\n", "Text", id="item before a paragraph"),
        pytest.param("", "1. one\n   ```\n   a\n\n   b\n   ```\n", id="item with code"),
        pytest.param("1. one\n", "```\n", id="item before code"),
        pytest.param("7. x\n8. y\n\n", "z\n", id="list that starts at 7"),
        pytest.param("- one\n  - inner\n", "- two\n", id="nested list"),
        pytest.param("", "- ```\n  # code\n", id="open code in an item"),
        pytest.param("", "```py\n# code\n\n- code\n", id="open code"),
        pytest.param("````\n```\n````\n", "", id="code with a shorter fence inside"),
        pytest.param("", "~~~\n```\n", id="code with another fence inside"),
        pytest.param("", "| a |\n|---|\n| b |\n", id="open table"),
        pytest.param(f"{LONG_TABLE}\n", "", id="long table"),
        pytest.param("", "> one\nlazy\n", id="quote with an unmarked line"),
        pytest.param("", "    code\n\n    code\n", id="open indented code"),
        pytest.param("    code\n\n", "text\n", id="indented code"),
        pytest.param("<div>\ntext\n\n", "", id="HTML"),
        pytest.param(LONG_ITEM, "```py\n", id="long item before code"),
    ],
)
def test_a_block_is_returned_once_it_is_complete(completed: str, unfinished: str) -> None:
    blocks = Blocks()
    assert "".join(blocks.add(completed + unfinished)) == completed
    assert blocks.is_open is bool(unfinished.strip())
    for count in range(1, len(unfinished) + 2):  # also one more than there are
        end = blocks.last(count)
        assert unfinished.endswith(end)
        # At least ``count`` characters, or all of a shorter part, but always fewer than twice as many.
        assert min(count, len(unfinished)) <= len(end) < 2 * count


def test_blank_lines_open_no_block() -> None:
    blocks = Blocks()
    blocks.add("\n \n")
    assert not blocks.is_open
    blocks.add("Text")
    assert blocks.is_open


def parts_of(text: str) -> list[str]:
    blocks = Blocks()
    return [*blocks.add(text), blocks.end()]


def test_code_is_not_cut_at_the_maximum_length() -> None:
    code, text = "    word\n\n\tword\n" * MAX_UNFINISHED, "text\n\n"
    assert parts_of(code + text) == [code, text, ""]


def test_a_long_paragraph_is_cut() -> None:
    text = "word\n" * MAX_UNFINISHED
    parts = parts_of(text)
    assert "".join(parts) == text
    # A part ends with the line that reaches the maximum.
    assert max(map(len, parts)) <= MAX_UNFINISHED + len("word\n")
