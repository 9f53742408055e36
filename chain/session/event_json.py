"""Conversion of events to JSON and back: the form that users' scripts read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, get_args

from chain.events import Answer, Event, Receipt, Result, ToolResult
from chain.journal.fields import read_fields
from chain.messages import JsonObject


def to_json(event: Event) -> JsonObject:
    """Return the event as a JSON object, ``type`` first."""
    found: JsonObject = {"type": event.type}
    for name in FIELD_NAMES[event.type]:
        value = getattr(event, name)
        found[name] = value if value is None or type(value) in _PLAIN else _value_to_json(value)
    return found


def from_json(raw: Mapping[str, Any]) -> Event | None:
    """Return the event of a JSON object; ``None`` if its type is unknown or a field is invalid.

    Fields that the JSON never contains (``_HIDDEN``) get their defaults.
    """
    kind = _KINDS.get(str(raw.get("type")))
    if kind is None:
        return None
    try:
        event: Event = read_fields(kind, raw)
    except (ValueError, TypeError, OverflowError):
        return None
    return event


_KINDS: Mapping[str, Any] = {kind.type: kind for kind in get_args(Event)}

_PLAIN = frozenset({str, int, float, bool, dict})
"""Types whose values are the same in JSON."""

_HIDDEN = {
    (Receipt.type, "origin"),
    (ToolResult.type, "input"),
    (Answer.type, "is_for_always"),
    (Result.type, "short"),
}
"""Fields that are left out of the JSON, since only front ends in the same process need them."""

FIELD_NAMES = {
    kind.type: tuple(f.name for f in fields(kind) if (kind.type, f.name) not in _HIDDEN) for kind in get_args(Event)
}
"""The names of the fields in the JSON of each event type, in order."""


def _value_to_json(value: Any) -> Any:  # noqa: ANN401 - the JSON boundary
    if isinstance(value, Receipt):
        shown = ("id", "text", "state", "agent", "iteration", "point", "waited_s", "reason", "kind")
        return {name: getattr(value, name) for name in shown}
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _value_to_json(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, tuple):
        return [_value_to_json(v) for v in value]
    return value
