"""Rows of JSON input, and the errors of malformed ones."""

from __future__ import annotations

import pytest

from cli.input.json_rows import MAX_LINE_ID, MAX_SHOWN_ROW, JsonLine, Malformed, read_row
from cli.input.splitter import RawLine

LONG_ID = "i" * (MAX_LINE_ID + 1)
MALFORMED = {
    "not json": "it is not a JSON object",
    '{"type":"line","text":': "it is not a JSON object",
    "[]": "it is not a JSON object",
    "[" * 50_000: "it is not a JSON object",
    "{}": "it is not a JSON object",
    '{"text":"x"}': "it has no type",
    '{"type":"line"}': "its text is missing or is not a string",
    '{"type":"line","text":5}': "its text is missing or is not a string",
    '{"type":"line","text":"x","urgent":"yes"}': "urgent and now must be true or false",
    '{"type":"line","text":"x","now":1}': "urgent and now must be true or false",
    '{"type":"line","text":"x","id":5}': "its id must be a string",
    '{"type":"line","text":"x","to":5}': "the value of to must be a string, the name of an agent",
    '{"type":"nonsense","text":"x"}': "the type 'nonsense' is unknown",
    '{"type":["line"],"text":"x"}': "the type \"['line']\" is unknown",
    '{"type":"drop"}': "its id must be a string",
    '{"type":"answer","id":"Q1"}': "its id and its text must be strings",
    '{"type":"line","text":"x","id":"a\\u001bb"}': "its id is too long, or has characters that cannot be printed",
    f'{{"type":"line","text":"x","id":"{LONG_ID}"}}': "its id is too long, or has characters that cannot be printed",
    '{"type":"watch"}': "the type 'watch' is unknown",  # which is known only at the side door
    '{"type":"line","text":"x","To":"main"}': "the key 'To' is unknown; did you mean 'to'?",
    '{"type":"line","text":"x","parent":"main"}': "the key 'parent' is unknown",
    '{"type":"interrupt","now":true}': "the key 'now' is unknown",
}


@pytest.mark.parametrize(("text", "error"), MALFORMED.items(), ids=[text[:24] for text in MALFORMED])
def test_a_malformed_row_is_an_error_with_examples(text: str, error: str) -> None:
    row = read_row(RawLine(text, 7))
    assert isinstance(row, Malformed)
    assert row.error.startswith(f"line 7 of the input was not understood ({error}); write ")
    assert '{"type":"interrupt"}' in row.error
    assert len(row.text) <= MAX_SHOWN_ROW


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ('{"type":"line","text":"x"}', JsonLine("x")),
        ('{"type":"line","text":"x","urgent":true}', JsonLine("x", urgency="urgent")),
        ('{"type":"line","text":"x","urgent":true,"now":true}', JsonLine("x", urgency="now")),
        ('{"type":"line","text":"x","id":"mine","to":"plan-1","now":false}', JsonLine("x", id="mine", to="plan-1")),
        ("", None),
        ("  ", None),
    ],
    ids=["text", "urgent", "now", "all keys", "empty", "blank"],
)
def test_a_row_is_a_line_or_blank(text: str, row: JsonLine | None) -> None:
    assert read_row(RawLine(text, 1)) == row


def test_a_cut_row_is_an_identified_error() -> None:
    row = read_row(RawLine('{"type":"line","id":"long","text":"xxx', 7, is_cut=True))
    assert isinstance(row, Malformed)
    assert (row.id, row.error) == ("long", "line 7 of the input is too long; a line has at most 100,000 characters")
