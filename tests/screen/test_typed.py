"""What keys do to a line at a terminal without an editor."""

import pytest

from cli.screen.dumb import TypedLine


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ("hello", "hello"),
        ("hellp\x7fo", "hello"),
        ("hellp\x08o", "hello"),
        ("\x7f\x7fa", "a"),
        ("日本\x7f", "日"),
        ("a👨‍👩‍👧\x7fé\x7f", "a"),
        ("two words\x17", "two "),
        ("two words  \x17x", "two x"),
        ("all of it\x15b", "b"),
        ("a\x1b[Ab\x1bOCc\x1b[1;5Dd", "abcd"),
        ("a\x1bb", "ab"),
        ("a\x1b\x1b[Ab", "ab"),
        ("a\x1b]11;rgb:1/2/3\x07b\x1bP1$r0m\x1b\\c", "abc"),
        ("a\x1b\x1bb", "ab"),
        ("a\tb", "a\tb"),
        ("a\x01\x0b\x00b", "ab"),
        ("a\x04b", "ab"),
    ],
)
def test_keys_change_the_text(keys: str, text: str) -> None:
    line = TypedLine()
    assert {line.press(key) for key in keys} == {"changed"}
    assert line.take() == text
    assert line.text == ""


@pytest.mark.parametrize(
    ("key", "press"), [("\r", "enter"), ("\n", "enter"), ("\x03", "interrupt"), ("\x1a", "suspend"), ("\x04", "end")]
)
def test_keys_that_are_more_than_text(key: str, press: str) -> None:
    line = TypedLine()
    assert line.press(key) == press
    for char in "\x1b":
        line.press(char)
    assert line.press(key) == press
