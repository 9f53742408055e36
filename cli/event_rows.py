"""Events as rows of JSON, for standard output and for the side door, the socket of a session for other processes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

from chain import events
from chain.session import event_json
from chain.text.plain import escape_json

TOKENS_PER_PIECE = 1_000
"""The number of JSON tokens in each piece of a large object."""

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def json_row(event: events.Event, **more: str) -> str:
    """Return an event as a row of JSON that ends with a newline. ``more`` are further fields."""
    return row_of({**event_json.to_json(event), **more})


def row_of(event: Mapping[str, Any]) -> str:
    """Return an event, given as the dictionary of its fields, as a row of JSON that ends with a newline."""
    return escape_json(_ENCODER.encode(event)) + "\n"


def pieces_of_row(event: events.Event, **more: str) -> Iterator[str]:
    """Yield the row that ``json_row`` returns in pieces, for an event that may be large."""
    parts = _ENCODER.iterencode({**event_json.to_json(event), **more})
    while piece := "".join(itertools.islice(parts, TOKENS_PER_PIECE)):
        yield escape_json(piece)
    yield "\n"
