"""``chain help``: the topics, found by the start of a name or by a heading."""

from __future__ import annotations

import pytest

from chain.errors import UserError
from cli.subcommands.help import TOPICS, index, read_topic


def test_the_index_has_a_row_for_each_topic() -> None:
    rows = index()
    for topic in TOPICS:
        (row,) = [row for row in rows if row.startswith(f"  {topic} ")]
        assert row.endswith(".")
        assert len(row) <= 110, "a row of the index is short"


@pytest.mark.parametrize(
    ("words", "title"),
    [
        ("lines", "# Lines"),
        ("exit codes", "# Exit codes"),
        ("EXIT_CODES", "# Exit codes"),
        ("to", "# Tools"),  # the start of the name
        # Headings in the page of a topic.
        ("allowances", "# Tools"),
        ("json input", "# Scripting"),
        ("trust", "# Configuration"),
    ],
)
def test_part_of_a_name_finds_a_topic(words: str, title: str) -> None:
    assert read_topic(words).startswith(f"{title}\n")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("kyes", "did you mean keys?"),
        ("m", "could be moments or mcp or models"),
        ("zzz", "the topics are lines, "),
        ("", "the topics are lines, "),
        ("exit codes please", "did you mean exit-codes?"),
    ],
)
def test_another_word_suggests_the_nearest_topic(words: str, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        read_topic(words)
    assert hint in str(caught.value)
