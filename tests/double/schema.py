"""Whether the API would take a tool's ``input_schema``. Pure.

The API wants JSON schema draft 2020-12 with an object at the top. This checks the keywords that schemas made from type
hints use; it is no full validator of schemas.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_TYPES: Final = {"object", "array", "string", "number", "integer", "boolean", "null"}
_KEY = re.compile(r"[a-zA-Z0-9_.-]{1,64}\Z")
_INVALID: Final = ": JSON schema is invalid. It must match JSON Schema draft 2020-12"


def complaint(raw: object, *, strict: bool = False) -> str | None:
    """What is wrong with the schema, as the end of an error message that begins with its place; or ``None``."""
    if not isinstance(raw, Mapping):
        return ": Input should be a valid dictionary"
    if "type" not in raw:
        return ".type: Field required"
    if raw["type"] != "object":
        return ".type: Input should be 'object'"
    if {"oneOf", "allOf", "anyOf"} & raw.keys():
        return ": input_schema does not support oneOf, allOf, or anyOf at the top level"
    properties = raw.get("properties")
    if isinstance(properties, Mapping) and not all(isinstance(k, str) and _KEY.match(k) for k in properties):
        return ".properties: Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'"
    if (bad := _bad(raw, "", strict)) is not None:
        return bad
    return None


def _bad(raw: object, at: str, strict: bool) -> str | None:
    if isinstance(raw, bool):
        return None
    if not isinstance(raw, Mapping):
        return f"{at}{_INVALID}"
    types = raw.get("type", [])
    if not all(
        isinstance(t, str) and t in _TYPES
        for t in ([types] if isinstance(types, str) else types if isinstance(types, list) else [0])
    ):
        return f"{at}.type{_INVALID}"
    required = raw.get("required", [])
    if not isinstance(required, list) or not all(isinstance(r, str) for r in required):
        return f"{at}.required{_INVALID}"
    if len(set(required)) != len(required) or not isinstance(raw.get("enum", [0]), list):
        return f"{at}{_INVALID}"
    if strict and types == "object" and raw.get("additionalProperties") is not False:
        return f"{at}: For 'object' type, 'additionalProperties' must be explicitly set to false"
    for keyword in ("properties", "$defs", "patternProperties", "dependentSchemas"):
        children = raw.get(keyword, {})
        if not isinstance(children, Mapping):
            return f"{at}.{keyword}{_INVALID}"
        for name, child in children.items():
            if bad := _bad(child, f"{at}.{keyword}.{name}", strict):
                return bad
    for keyword in ("items", "additionalProperties", "not", "contains", "propertyNames"):
        if keyword in raw and (bad := _bad(raw[keyword], f"{at}.{keyword}", strict)):
            return bad
    for keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
        if keyword in raw:
            options = raw[keyword]
            if not isinstance(options, list) or not options:
                return f"{at}.{keyword}{_INVALID}"
            for i, option in enumerate(options):
                if bad := _bad(option, f"{at}.{keyword}.{i}", strict):
                    return bad
    return None
