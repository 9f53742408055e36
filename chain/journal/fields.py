"""Conversion of JSON to frozen dataclasses by the types of their fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import UnionType
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from chain import messages

_PLAIN = (str, int, bool)
"""Types whose values are the same in JSON."""

_Converter: TypeAlias = Callable[[Any], Any]
"""A function that converts the JSON of a field to its value. It raises ``_WrongType`` for JSON of another type."""


def read_fields(kind: Any, raw: Mapping[str, Any]) -> Any:  # noqa: ANN401 - an object of the kind
    """Return an object of the dataclass ``kind`` from its JSON. Missing fields have their default values.

    Raise ``ValueError`` if a field has the wrong type, and ``TypeError`` if a required field is missing.
    """
    converters, values = _converters(kind), {}
    for name, value in raw.items():
        if name in converters:
            plain, convert = converters[name]
            try:
                values[name] = value if type(value) is plain else convert(value)
            except _WrongType:
                raise ValueError(f"{name} is {value!r:.40}") from None
    return kind(**values)


class _WrongType(Exception):
    """An error for JSON that does not have the type of its field."""


@cache
def _converters(kind: Any) -> Mapping[str, tuple[Any, _Converter]]:  # noqa: ANN401 - a dataclass
    """Return, by field name, a plain type or ``None``, and a converter. JSON of the plain type is not converted."""
    hints = {name: hint for name, hint in get_type_hints(kind).items() if name in {f.name for f in fields(kind)}}
    return {name: (hint if hint in _PLAIN else None, _converter_for(hint)) for name, hint in hints.items()}


def _converter_for(hint: Any) -> _Converter:  # noqa: ANN401 - a type
    """Return the converter for fields with the type annotation ``hint``."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        (other,) = (each for each in inside if each is not type(None))
        convert = _converter_for(other)
        return lambda value: None if value is None else convert(value)
    if origin is tuple:
        convert = _converter_for(inside[0])
        return lambda value: tuple(map(convert, _require_type(value, list)))
    if origin is Mapping:
        return lambda value: _require_type(value, dict)
    if hint is messages.Message:
        return messages.from_json
    if hint is messages.Image:
        return _read_image
    if is_dataclass(hint):
        return lambda value: read_fields(hint, _require_type(value, dict))
    if origin is Literal:
        return lambda value: _require_member(inside, _require_type(value, str))
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return lambda value: hint(_require_member(tuple(hint), value))
    if hint is float:
        return lambda value: float(_require_type(value, float, int))
    return lambda value: _require_type(value, hint)


def _read_image(value: Any) -> messages.Image:  # noqa: ANN401 - the JSON boundary
    block = messages.block_from_json(_require_type(value, dict))
    if not isinstance(block, messages.Image):
        raise _WrongType
    return block


def _require_type(value: Any, *kinds: type[Any]) -> Any:  # noqa: ANN401 - the JSON boundary
    # Not isinstance, which accepts a bool for an int.
    if type(value) not in kinds:
        raise _WrongType
    return value


def _require_member(allowed: tuple[Any, ...], value: Any) -> Any:  # noqa: ANN401 - the JSON boundary
    if value not in allowed:
        raise _WrongType
    return value
