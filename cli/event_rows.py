"""Events as rows of JSON, for standard output and the side door."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from chain import event_json, events

PARTS = 1_000
"""JSON tokens of a large object that are made into text at once."""

_ESCAPED = re.compile("[\x7f-\x9f\ud800-\udfff]")

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def json_row(event: events.Event, **more: str) -> str:
    """An event as one row, with its line end; ``more`` are further fields."""
    return row_of({**event_json.to_json(event), **more})


def row_of(event: Mapping[str, Any]) -> str:
    """The row of an event that is JSON already."""
    return _escaped(_ENCODER.encode(event)) + "\n"


def pieces_of_row(event: events.Event, **more: str) -> Iterator[str]:
    """The same in parts, for an event that may be large."""
    parts = _ENCODER.iterencode({**event_json.to_json(event), **more})
    while piece := "".join(itertools.islice(parts, PARTS)):
        yield _escaped(piece)
    yield "\n"


def _escaped(text: str) -> str:
    # What JSON can express and UTF-8 cannot (half a surrogate pair) is written as an escape, and so are the control
    # characters that a terminal would obey: JSON itself escapes only the first 32.
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
