"""Conversion of records to JSON and back.

Each record has a ``type``, ``seq`` (from 1) and ``time`` (seconds since the epoch), then the fields of its type.
A record of an unknown type becomes ``Unknown``, so that this version can process a journal of a newer one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, get_args

from chain import messages
from chain.journal.fields import read_fields
from chain.journal.records import OMIT_DEFAULT, Entry, Record, Unknown
from chain.messages import JsonObject

MAX_TIME = 1e12
"""The first ``time`` that is not valid, in seconds since the epoch: in the year 33,658."""


def to_json(record: Record | Unknown) -> JsonObject:
    """Return the fields of a record as JSON, without ``type``, ``seq`` and ``time``."""
    if isinstance(record, Unknown):
        return dict(record.raw)
    return {_FORM_KEYS[record.type]: record.form, **_fields_to_json(record)} if record.form else _fields_to_json(record)


def from_json(raw: Mapping[str, Any]) -> Entry:
    """Return the record in a JSON object, with its ``seq`` and ``time``. Raise ``ValueError`` if it is not valid."""
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
        raise ValueError(f"record {seq}: not a valid {type!r} record: {error}") from None


_FORM_KEYS = {"plan": "change", "request": "phase"}
"""The JSON key of the form (``_Typed``), for each type that has several forms."""

_KINDS: dict[tuple[str, str], Any] = {(kind.type, kind.form): kind for kind in get_args(Record)}

_ALWAYS = object()
"""The omitted value of a field that is always written: no value is equal to it."""

_PLAIN_TYPES = frozenset({str, int, float, bool, type(None)})


@cache
def _fields_with_omitted_value(kind: Any) -> tuple[tuple[str, object], ...]:  # noqa: ANN401 - a dataclass
    """Return the name of each field of a dataclass, with the value for which the JSON omits the field."""
    return tuple((f.name, f.default if f.metadata == OMIT_DEFAULT else _ALWAYS) for f in fields(kind))


def _fields_to_json(record: Any) -> JsonObject:  # noqa: ANN401 - a dataclass
    found: JsonObject = {}
    kind: Any = type(record)
    for name, omitted in _fields_with_omitted_value(kind):
        value = getattr(record, name)
        if value != omitted:
            found[name] = value if type(value) in _PLAIN_TYPES else _value_to_json(value)
    return found


def _value_to_json(value: Any) -> Any:  # noqa: ANN401 - the JSON boundary
    if isinstance(value, messages.Message):
        return messages.to_json(value)
    if isinstance(value, messages.Image):
        return messages.block_to_json(value)
    if is_dataclass(value):
        return _fields_to_json(value)
    return [_value_to_json(each) for each in value] if isinstance(value, tuple) else value
