"""The rules of the API for the ``input_schema`` of a tool. Pure.

The API accepts JSON schema draft 2020-12 with an object at the top. Only the keywords of schemas that are made from
type hints are checked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

_TYPES: Final = {"object", "array", "string", "number", "integer", "boolean", "null"}
_KEY = re.compile(r"[a-zA-Z0-9_.-]{1,64}\Z")
_INVALID: Final = ": JSON schema is invalid. It must match JSON Schema draft 2020-12"


def complaint(raw: Any) -> str | None:
    """Return what is wrong with a schema, or ``None``. The text continues an error message that names the tool."""
    if not isinstance(raw, Mapping):
        return ": Input should be a valid dictionary"
    if raw.get("type") != "object":
        return ".type: Input should be 'object'" if "type" in raw else ".type: Field required"
    if {"oneOf", "allOf", "anyOf"} & raw.keys():
        return ": input_schema does not support oneOf, allOf, or anyOf at the top level"
    properties = raw.get("properties")
    if isinstance(properties, Mapping) and not all(isinstance(k, str) and _KEY.match(k) for k in properties):
        return ".properties: Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'"
    return None if _is_valid(raw) else _INVALID


def _is_valid(raw: Any) -> bool:
    if isinstance(raw, bool):
        return True
    if not isinstance(raw, Mapping) or not isinstance(raw.get("enum", []), list):
        return False
    types = [raw["type"]] if isinstance(raw.get("type"), str) else raw.get("type", [])
    for values in (types, raw.get("required", [])):
        if not isinstance(values, list) or not all(isinstance(v, str) for v in values) or len({*values}) < len(values):
            return False
    inner: list[Any] = [raw[key] for key in raw.keys() & {"items", "additionalProperties", "not"}]
    for key in raw.keys() & {"properties", "$defs"}:
        inner += raw[key].values() if isinstance(raw[key], Mapping) else [None]
    for key in raw.keys() & {"anyOf", "oneOf", "allOf", "prefixItems"}:
        inner += raw[key] if isinstance(raw[key], list) and raw[key] else [None]
    return _TYPES.issuperset(types) and all(map(_is_valid, inner))
