"""Comparisons of shown rows that do not depend on speed."""

import itertools
import re
from collections.abc import Iterable


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
    reading = itertools.groupby(rows, key=lambda row: row.startswith(("→ read_file", "✓ read_file")))
    return [row for at_once, group in reading for row in (sorted(group) if at_once else group)]
