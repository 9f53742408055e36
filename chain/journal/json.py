"""Converts the records of a journal to JSON and back.

Each has a ``type``, ``seq`` (from 1) and ``time`` (seconds since the epoch), then the fields of its type. Records of
unknown types are kept as ``Unknown``, so that the journal of a newer version loses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, get_args

from chain import messages
from chain.journal.fields import read_fields
from chain.journal.records import BRIEF, Entry, Record, Unknown
from chain.messages import JsonObject

MAX_TIME = 1e12
"""Seconds since the epoch: thirty thousand years."""


def to_json(record: Record | Unknown) -> JsonObject:
    """Return the fields of a record as JSON, without its ``type``."""
    if isinstance(record, Unknown):
        return dict(record.raw)
    return {_FORM_KEYS[record.type]: record.form, **_fields(record)} if record.form else _fields(record)


def from_json(raw: Mapping[str, Any]) -> Entry:
    """Return the record of a row. Raise ``ValueError`` if it is none."""
    type = raw.get("type")
    seq, time = raw.get("seq"), raw.get("time")
    if not isinstance(type, str) or not isinstance(seq, int) or not isinstance(time, int | float):
        raise ValueError("a record needs a type, a seq and a time")
    if not 0 <= time < MAX_TIME:
        raise ValueError("the time of a record is in seconds since the epoch")
    form = raw.get(_FORM_KEYS[type]) if type in _FORM_KEYS else ""
    kind = _KINDS.get((type, form)) if isinstance(form, str) else None
    if kind is None:
        rest = {name: value for name, value in raw.items() if name not in ("type", "seq", "time")}
        return Entry(seq, float(time), Unknown(type, rest))
    try:
        return Entry(seq, float(time), read_fields(kind, raw))
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise ValueError(f"record {seq}: a {type!r} record has not the form that it should have: {error}") from None


_FORM_KEYS = {"plan": "change", "request": "phase"}
"""The key that names the form, for types with several forms."""

_KINDS: dict[tuple[str, str], Any] = {(kind.type, kind.form): kind for kind in get_args(Record)}

_ALWAYS = object()
"""Equal to no value: such a field is never left out."""

_PLAIN_TYPES = frozenset({str, int, float, bool, type(None)})


@cache
def _names(kind: Any) -> tuple[tuple[str, object], ...]:  # noqa: ANN401 - a dataclass
    """Return the fields of a dataclass, each with the value for which the JSON leaves it out."""
    return tuple((f.name, f.default if f.metadata == BRIEF else _ALWAYS) for f in fields(kind))


def _fields(record: Any) -> JsonObject:  # noqa: ANN401 - a dataclass
    found: JsonObject = {}
    kind: Any = type(record)
    for name, left_out in _names(kind):
        value = getattr(record, name)
        if value != left_out:
            found[name] = value if type(value) in _PLAIN_TYPES else _plain(value)
    return found


def _plain(value: Any) -> Any:  # noqa: ANN401 - the JSON edge
    if isinstance(value, messages.Message):
        return messages.to_json(value)
    if isinstance(value, messages.Image):
        return messages.block_to_json(value)
    if is_dataclass(value):
        return _fields(value)
    return [_plain(each) for each in value] if isinstance(value, tuple) else value
