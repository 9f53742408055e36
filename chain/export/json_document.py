"""A session as one JSON document: what it is, and its records as they are, those of other versions too."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from chain.messages import JsonObject

# What is not ASCII is escaped: a journal may hold characters that a terminal obeys, and halves of pairs.
_ENCODER = json.JSONEncoder(separators=(",", ":"))


def document(id: str, rows: Iterable[bytes]) -> Iterator[str]:
    """The document, in pieces, from the rows of a journal: ``session``, then ``records``, one a row.

    A row that is no record, such as a torn one, is left out.
    """
    found = filter(None, map(_record, rows))
    first = next(found, None)
    session: JsonObject = {"id": id}
    if first is not None and first["type"] == "session":
        own = {name: value for name, value in first.items() if name not in ("type", "seq", "time")}
        session = {**own, "began": first.get("time"), "id": id}
    yield f'{{"session": {_ENCODER.encode(session)},\n"records": ['
    if first is not None:
        yield f"\n{_ENCODER.encode(first)}"
    for record in found:
        yield f",\n{_ENCODER.encode(record)}"
    yield "\n]}\n"


def _record(row: bytes) -> JsonObject | None:
    try:
        raw = json.loads(row)
    except (ValueError, RecursionError):
        return None
    return raw if isinstance(raw, dict) and isinstance(raw.get("type"), str) else None
