"""A diff as data, its two sides and its text form."""

from __future__ import annotations

from chain.text.hunks import FileDiff, Hunk

HUNKS = (
    Hunk(old=0, new=1, rows=("+@@ -1 +1 @@", "+")),
    Hunk(old=4, new=6, rows=(" \\ x", "--", "+c"), unended="+"),
)
"""Hunks with lines that look like the head of a hunk, or like a note or a removed line."""


def test_text_form_is_a_unified_diff() -> None:
    assert FileDiff("a file", HUNKS).text.split("\n") == [
        "a file +3 −1",
        "@@ -0,0 +1,2 @@",
        "+@@ -1 +1 @@",
        "+",
        "@@ -4,2 +6,2 @@",
        " \\ x",
        "--",
        "+c",
        "\\ No newline at end of file",
    ]


def test_hunk_has_two_sides() -> None:
    _, hunk = HUNKS
    assert (hunk.side("-"), hunk.side("+")) == ("\\ x\n-\n", "\\ x\nc")
