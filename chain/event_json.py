"""Events as JSON: the form that users' scripts read."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, get_args

from chain.events import Event, Receipt
from chain.messages import JsonObject


def to_json(event: Event) -> JsonObject:
    """The event as a JSON object, ``type`` first."""
    found: JsonObject = {"type": event.type}
    for name in _NAMES[event.type]:
        value = getattr(event, name)
        found[name] = value if value is None or type(value) in _PLAIN else _plain(value)
    return found


_PLAIN = frozenset({str, int, float, bool, dict})
"""Types whose values JSON says as they are."""

_HIDDEN = {(Receipt.type, "origin")}
"""What only front ends in the same process need."""

_NAMES = {
    kind.type: tuple(f.name for f in fields(kind) if (kind.type, f.name) not in _HIDDEN) for kind in get_args(Event)
}


def _plain(value: Any) -> Any:  # noqa: ANN401 - the JSON edge
    if isinstance(value, Receipt):
        shown = ("id", "text", "state", "agent", "iteration", "point", "waited_s", "reason")
        return {name: getattr(value, name) for name in shown}
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    return value
