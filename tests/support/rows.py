"""Checks and comparisons of shown rows."""

import itertools
import re
from collections.abc import Iterable

from chain.text.plain import sanitize
from cli.show.text_rows import columns

_SGR = re.compile(r"\x1b\[[0-9;]+m")


def without_colours(row: str) -> str:
    """Return the row without its SGR sequences."""
    return _SGR.sub("", row)


def check_row(row: str, width: int) -> None:
    """Assert that a row fits, resets its colours, and contains no other control characters."""
    text = without_colours(row)
    assert columns(text) <= width
    assert sanitize(text) == text
    assert not {"\n", "\t"} & set(text)
    assert (_SGR.findall(row) or ["\x1b[0m"])[-1] == "\x1b[0m"


def pieces_of(text: str, length: int) -> list[str]:
    """Cut a text into pieces, as it would stream."""
    return [text[start : start + length] for start in range(0, len(text), length)]


def check_order(text: str, parts: Iterable[str]) -> None:
    """Assert that the text contains the parts in this order."""
    at = -1
    for part in parts:
        at = text.find(part, at + 1)
        assert at >= 0, part


def without_chance(transcript: str) -> list[str]:
    """Return the rows without times, session ids and the sizes of files, which differ in each run.

    Rows of files that are read in parallel are sorted.
    """
    transcript = re.sub(r"\d+(\.\d)? s\b", "0 s", transcript)
    transcript = transcript.replace("thought 0 s\n\n", "")  # a shorter thought has no row
    transcript = re.sub(r"\d[\d,]*(?= (?:lines?|words?|bytes?|tokens?)\b)", "N", transcript)
    transcript = re.sub(r"^[ \d]+(?=  )", "N", transcript, flags=re.M)
    rows = re.sub(r"\d{8}-\d{6}-\w{6}", "ID", transcript).split("\n")
    groups = itertools.groupby(rows, key=lambda row: row.startswith(("→ read_file", "✓ read_file")))
    return [row for is_reading, group in groups for row in (sorted(group) if is_reading else group)]
