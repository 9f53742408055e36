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
    assert nearest_command("ac", ["acp"]) == nearest_command("apc", ["acp", "check"]) == "acp"
    assert nearest_command("ask", []) is None


@pytest.mark.parametrize(("word", "command"), [("tood", "todo"), ("modle", "model"), ("foo", None), ("copy", None)])
def test_with_more_letters_for_each_edit_fewer_words_are_near(word: str, command: str | None) -> None:
    assert nearest_command(word, ["mcp", "model", "to", "todo"], letters=3) == command


@pytest.mark.parametrize(
    ("one", "other", "distance"),
    [("same", "same", 0), ("", "ab", 2), ("ab", "ba", 1), ("ca", "abc", 3), ("kitten", "sitting", 3)],
)
def test_the_edit_distance(one: str, other: str, distance: int) -> None:
    assert edits(one, other) == edits(other, one) == distance
