"""Refusals, and the shapes that the JSON of a request has to fit, each with the API's words for what is wrong. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

Body: TypeAlias = Mapping[str, Any]
"""A JSON object that is not validated yet."""

_KINDS: Mapping[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    list: "list",
    Mapping: "dictionary",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """A refusal: the HTTP status, the API's error type and its message."""

    status: int
    kind: str
    message: str


class Refused(Exception):
    """The exception by which a rule reports its fault to the functions that check a request."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


def refuse(message: str, status: int = 400, kind: str = "invalid_request_error") -> NoReturn:
    """Refuse the request."""
    raise Refused(Fault(status, kind, message))


def fit(raw: Any, shape: Any, where: str) -> Any:
    """Return ``raw`` if it has this shape, else refuse the request.

    A shape is a type, a tuple of the strings to choose from, a pattern for a string, or a dictionary: an object with
    exactly these fields, of which those with a question mark are optional.
    """
    match shape:
        case dict():
            fit(raw, Mapping, where)
            prefix = f"{where}." if where else ""
            for name in raw:
                if name not in shape and f"{name}?" not in shape:
                    refuse(f"{prefix}{name}: Extra inputs are not permitted")
            for field, inner in shape.items():
                name = field.removesuffix("?")
                if name in raw:
                    fit(raw[name], inner, f"{prefix}{name}")
                elif name == field:
                    refuse(f"{prefix}{name}: Field required")
        case tuple():
            if raw not in shape:
                refuse(f"{where}: Input should be {' or '.join(map(repr, shape))}")
        case re.Pattern():
            if not shape.match(fit(raw, str, where)):
                refuse(f"{where}: String should match pattern '{shape.pattern}'")
        case _:
            kinds = (int, float) if shape is float else shape
            if not isinstance(raw, kinds) or (isinstance(raw, bool) and shape in (int, float)):
                refuse(f"{where}: Input should be a valid {_KINDS[shape]}")
    return raw
