"""Rows of JSON input that are not understood, and what is said of each."""

from __future__ import annotations

import pytest

from cli.input.json_rows import JsonLine, Malformed, read_row
from cli.input.splitter import RawLine

MALFORMED = {
    "not json": "it is not a JSON object",
    '{"type":"line","text":': "it is not a JSON object",
    "[]": "it is not a JSON object",
    "5": "it is not a JSON object",
    "null": "it is not a JSON object",
    "[" * 50_000: "it is not a JSON object",
    "{}": "it is not a JSON object",
    '{"text":"x"}': "it has no type",
    '{"type":"line"}': "its text is missing or is not a string",
    '{"type":"line","text":5}': "its text is missing or is not a string",
    '{"type":"line","text":null}': "its text is missing or is not a string",
    '{"type":"line","text":"x","urgent":"yes"}': "urgent and now must be true or false",
    '{"type":"line","text":"x","now":1}': "urgent and now must be true or false",
    '{"type":"line","text":"x","id":5}': "its id must be a string",
    '{"type":"line","text":"x","to":5}': "its to must be the name of an agent, a string",
    '{"type":"nonsense","text":"x"}': "the type 'nonsense' is unknown",
    '{"type":["line"],"text":"x"}': "the type \"['line']\" is unknown",
    '{"type":"drop"}': "its id must be a string",
    '{"type":"line","text":"x","id":"a\\u001bb"}': "its id cannot be printed, or is too long",
    f'{{"type":"line","text":"x","id":"{"i" * 201}"}}': "its id cannot be printed, or is too long",
    '{"type":"watch"}': "the type 'watch' is unknown",
    '{"type":"watch","x":1}': "the type 'watch' is unknown",
    '{"type":"line","text":"x","To":"main"}': "the key 'To' is unknown; did you mean 'to'?",
    '{"type":"line","text":"x","urgnet":true}': "the key 'urgnet' is unknown; did you mean 'urgent'?",
    '{"type":"line","text":"x","parent":"main"}': "the key 'parent' is unknown",
    '{"type":"interrupt","now":true}': "the key 'now' is unknown",
    '{"type":"answer","id":"Q1","txt":"y"}': "the key 'txt' is unknown; did you mean 'text'?",
}


@pytest.mark.parametrize("text", MALFORMED, ids=[text[:24] for text in MALFORMED])
def test_a_row_that_is_not_understood_is_told_of_with_what_could_be_written(text: str) -> None:
    row = read_row(RawLine(text, 7))
    assert isinstance(row, Malformed)
    assert row.why.startswith(f"line 7 of the input was not understood ({MALFORMED[text]}); write ")
    assert '{"type":"interrupt"}' in row.why
    assert len(row.text) <= 200


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ("", JsonLine("x")),
        (',"urgent":true', JsonLine("x", urgency="urgent")),
        (',"urgent":true,"now":true', JsonLine("x", urgency="now")),
        (',"id":"mine","to":"plan-1","now":false', JsonLine("x", id="mine", to="plan-1")),
    ],
)
def test_a_line_may_say_how_urgent_it_is_and_for_whom(more: str, line: JsonLine) -> None:
    assert read_row(RawLine(f'{{"type":"line","text":"x"{more}}}', 1)) == line


@pytest.mark.parametrize("text", ["", "  "])
def test_a_blank_row_asks_for_nothing(text: str) -> None:
    assert read_row(RawLine(text, 1)) is None
