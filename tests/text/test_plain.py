"""Plain text without characters that a terminal or a reader of JSON rows would interpret."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.text.plain import escape_json, sanitize

FORBIDDEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@pytest.mark.parametrize(
    ("text", "sanitized"),
    [
        ("plain ✓ 漢字 é\n\ttext", "plain ✓ 漢字 é\n\ttext"),
        # Control sequences.
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[2J\x1b[1;1H\x1b[?25lgone", "gone"),
        ("\x9b31mred", "red"),
        # Strings with their terminators: OSC, DCS, APC.
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9d0;title\x9ctext", "text"),
        ("\x1bPq#0\x1b\\text", "text"),
        ("\x1b_apc\x1b\\text", "text"),
        # Other escapes, unfinished ones, and one that the removal of another would create.
        ("\x1bc\x1b7\x1b(0text", "text"),
        ("\x1b]0;unended", "0;unended"),
        ("\x1b[12", "12"),
        ("\x1b", ""),
        ("\x1b\x1b[31m[2J", "[2J"),
        # Control characters, text directions, lone surrogates.
        ("a\rb\x08c\x07d\x00e\x7ff", "abcdef"),
        ("a\x85b\x9fc", "abc"),
        ("a\u202eb\u2066c\u2069d", "abcd"),
        ("a\ud800b\udfff", "ab"),
        ("line\r\nline", "line\nline"),
    ],
)
def test_control_sequences_are_removed(text: str, sanitized: str) -> None:
    assert sanitize(text) == sanitized


@given(st.text(st.one_of(st.sampled_from("\x1b[];?0m\x07\x9b\x9c\x9d\\\r\n\t\u202e\ud800 "), st.characters())))
def test_no_control_character_is_left(text: str) -> None:
    assert not FORBIDDEN.search(sanitize(text))
    assert sanitize(sanitize(text)) == sanitize(text)


@given(st.text(st.characters(exclude_categories=["C"], exclude_characters="\x7f")))
def test_other_characters_stay(text: str) -> None:
    assert sanitize(text) == text


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("start", ["\x1b]", "\x9d", "\x1b[", "\x1b[0", "\x1b ", "\x1bP\x9b", "\x9d\x1b"])
def test_the_time_is_linear(start: str) -> None:
    assert not FORBIDDEN.search(sanitize(start * 200_000)), "quadratic time would be minutes"


def test_escaped_json_is_one_safe_row() -> None:
    value = {"".join(map(chr, range(0x20, 0x3000))): "half \ud800 and \udfff"}
    row = escape_json(json.dumps(value, ensure_ascii=False))
    assert len(row.encode().decode().splitlines()) == 1
    assert not any(0x7F <= ord(char) < 0xA0 for char in row)
    assert "é" in row
    assert json.loads(row) == value
