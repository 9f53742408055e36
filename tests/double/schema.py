"""What the API refuses of a tool's ``input_schema``. Pure.

The API wants JSON schema draft 2020-12 with an object at the top. This checks the keywords that schemas made from type
hints use; it is no full validator of schemas.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

_TYPES: Final = {"object", "array", "string", "number", "integer", "boolean", "null"}
_KEY = re.compile(r"[a-zA-Z0-9_.-]{1,64}\Z")
_INVALID: Final = ": JSON schema is invalid. It must match JSON Schema draft 2020-12"


def complaint(raw: Any) -> str | None:
    """Return what is wrong with a schema, as the end of an error message that begins with its place; or ``None``."""
    if not isinstance(raw, Mapping):
        return ": Input should be a valid dictionary"
    if raw.get("type") != "object":
        return ".type: Input should be 'object'" if "type" in raw else ".type: Field required"
    if {"oneOf", "allOf", "anyOf"} & raw.keys():
        return ": input_schema does not support oneOf, allOf, or anyOf at the top level"
    properties = raw.get("properties")
    if isinstance(properties, Mapping) and not all(isinstance(k, str) and _KEY.match(k) for k in properties):
        return ".properties: Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'"
    return _bad(raw, "")


def _bad(raw: Any, at: str) -> str | None:
    if isinstance(raw, bool):
        return None
    if not isinstance(raw, Mapping):
        return f"{at}{_INVALID}"
    types, required = raw.get("type", []), raw.get("required", [])
    for name, values in (("type", [types] if isinstance(types, str) else types), ("required", required)):
        if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
            return f"{at}.{name}{_INVALID}"
        if len(set(values)) < len(values) or (name == "type" and not _TYPES.issuperset(values)):
            return f"{at}.{name}{_INVALID}"
    if not isinstance(raw.get("enum", []), list):
        return f"{at}.enum{_INVALID}"
    return next((bad for inner, child in _children(raw, at) if (bad := _bad(child, inner))), None)


def _children(raw: Mapping[str, Any], at: str) -> Iterator[tuple[str, Any]]:
    """The schemas inside of a schema, each with its place; what should hold some and does not, as if it were one."""
    for keyword in raw.keys() & {"properties", "$defs", "patternProperties", "dependentSchemas"}:
        inside = raw[keyword]
        yield from (
            ((f"{at}.{keyword}.{name}", child) for name, child in inside.items())
            if isinstance(inside, Mapping)
            else [(f"{at}.{keyword}", None)]
        )
    for keyword in raw.keys() & {"anyOf", "oneOf", "allOf", "prefixItems"}:
        options = raw[keyword] if isinstance(raw[keyword], list) and raw[keyword] else [None]
        yield from ((f"{at}.{keyword}.{i}", option) for i, option in enumerate(options))
    for keyword in raw.keys() & {"items", "additionalProperties", "not", "contains", "propertyNames"}:
        yield f"{at}.{keyword}", raw[keyword]
