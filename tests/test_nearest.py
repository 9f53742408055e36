"""Which command a mistyped word was meant to be."""

from __future__ import annotations

import pytest

from cli.nearest import edits, nearest_command

COMMANDS = ("check", "demo", "explain", "help", "init")


@pytest.mark.parametrize(
    ("word", "command"),
    [
        ("chek", "check"),
        ("chekc", "check"),
        ("CHECK", "check"),
        ("Init", "init"),
        ("dmo", "demo"),
        ("exlain", "explain"),
        ("hepl", "help"),
        ("helpp", "help"),
        ("in", "init"),
        ("hello", None),
        ("Hey", None),
        ("hi", None),
        ("test", None),
        ("status", None),
        ("list", None),
        ("explanation", None),
        ("count the lines", None),
        ("x" * 1_000_000, None),
        ("", None),
    ],
)
def test_a_word_near_a_command(word: str, command: str | None) -> None:
    assert nearest_command(word, COMMANDS) == command


def test_a_short_command_has_no_word_near_that_shares_one_letter_with_it() -> None:
    assert nearest_command("ask", ["acp"]) is None
    assert nearest_command("apc", ["acp", "check"]) is None
    assert nearest_command("ac", ["acp"]) == "acp"


@pytest.mark.parametrize(
    ("one", "other", "distance"), [("same", "same", 0), ("", "ab", 2), ("ab", "ba", 2), ("kitten", "sitting", 3)]
)
def test_the_edit_distance(one: str, other: str, distance: int) -> None:
    assert edits(one, other) == edits(other, one) == distance
