"""The text form of a difference: read back it is the same hunks, and no other text is taken for one."""

from __future__ import annotations

import pytest

from chain.hunks import FileDiff, Hunk, HunkRow, read_diff

HUNKS = (
    Hunk(0, 1, (HunkRow("+", "@@ -1 +1 @@"), HunkRow("+", ""))),
    Hunk(4, 6, (HunkRow(" ", "\\ x"), HunkRow("-", "-"), HunkRow("+", "c", ends=False))),
)


def test_the_text_form_is_read_back() -> None:
    for made in (FileDiff("a file +1 −1", HUNKS), FileDiff("empty.txt")):
        assert read_diff(made.text) == made


def test_a_hunk_has_its_two_sides() -> None:
    assert (HUNKS[1].side("-"), HUNKS[1].side("+")) == ("\\ x\n-\n", "\\ x\nc")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "rm -rf x",
        "@@ -1 +1 @@\n-a\n+b",
        "f +1 −0\n+a",
        "f +1 −0\n@@ -1 +1 @@\n-a\n+b",
        "f +1 −1\n@@ -1 +1,2 @@\n-a\n+b",
        "f +1 −1\n@@ -1 +1 @@\n-a\n+b\nand more",
        "f +1 −1\n@@ -01 +1 @@\n-a\n+b",
        "f +1 −1\n@@ -1 +1 @@\n\\ x",
        f"f +0 −0\n@@ -{'1' * 5_000},0 +1,0 @@",
    ],
)
def test_a_text_that_is_not_exactly_one_is_none(text: str) -> None:
    assert read_diff(text) is None
