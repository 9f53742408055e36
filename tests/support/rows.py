"""In which order rows are shown, where it does not depend on how fast something is."""

import itertools
import re
from collections.abc import Iterable


def check_order(text: str, parts: Iterable[str]) -> None:
    """The parts follow each other in the text."""
    at = -1
    for part in parts:
        at = text.find(part, at + 1)
        assert at >= 0, part


def without_chance(transcript: str) -> list[str]:
    """The rows without times, the session's id and the sizes of files, which are others each time.

    Files are read at the same time, and end in any order.
    """
    transcript = re.sub(r"\d+(\.\d)? s\b", "0 s", transcript)
    transcript = transcript.replace("thought 0 s\n\n", "")  # one that took less than a second has no row
    transcript = re.sub(r"\d[\d,]*(?= (?:lines?|words?|bytes?|tokens?)\b)", "N", transcript)
    transcript = re.sub(r"^[ \d]+(?=  )", "N", transcript, flags=re.M)
    told = re.sub(r"\d{8}-\d{6}-\w{6}", "ID", transcript).split("\n")
    reading = itertools.groupby(told, key=lambda row: row.startswith(("→ read_file", "✓ read_file")))
    return [row for at_once, group in reading for row in (sorted(group) if at_once else group)]
