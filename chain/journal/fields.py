"""The fields of frozen dataclasses, read from JSON by their types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import UnionType
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from chain import messages

_PLAIN = (str, int, bool)
"""Types whose JSON is the value itself."""

_Read: TypeAlias = Callable[[Any], Any]
"""Reads a value from its JSON. Raises ``_WrongForm``."""


def read_fields(kind: Any, raw: Mapping[str, Any]) -> Any:  # noqa: ANN401 - an object of the kind
    """Return a dataclass made from its JSON form. A missing field has its default value."""
    readers, found = _readers(kind), {}
    for name, value in raw.items():
        if name in readers:
            plain, read = readers[name]
            try:
                found[name] = value if type(value) is plain else read(value)
            except _WrongForm:
                raise ValueError(f"{name} is {value!r:.40}") from None
    return kind(**found)


class _WrongForm(Exception):
    """The JSON of a field is not of the type of the field."""


@cache
def _readers(kind: Any) -> Mapping[str, tuple[Any, _Read]]:  # noqa: ANN401 - a dataclass
    """Return for each field the type of a value that is taken as it is, and how to read any other value."""
    hints = {name: hint for name, hint in get_type_hints(kind).items() if name in {f.name for f in fields(kind)}}
    return {name: (hint if hint in _PLAIN else None, _reader(hint)) for name, hint in hints.items()}


def _reader(hint: Any) -> _Read:  # noqa: ANN401 - a type
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        (other,) = (each for each in inside if each is not type(None))
        read = _reader(other)
        return lambda value: None if value is None else read(value)
    if origin is tuple:
        each = _reader(inside[0])
        return lambda value: tuple(map(each, _checked(value, list)))
    if origin is Mapping:
        return lambda value: _checked(value, dict)
    if hint is messages.Message:
        return messages.from_json
    if hint is messages.Image:
        return _image
    if is_dataclass(hint):
        return lambda value: read_fields(hint, _checked(value, dict))
    if origin is Literal:
        return lambda value: _one_of(inside, _checked(value, str))
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return lambda value: hint(_one_of(tuple(hint), value))
    if hint is float:
        return lambda value: float(_checked(value, float, int))
    return lambda value: _checked(value, hint)


def _image(value: Any) -> messages.Image:  # noqa: ANN401 - the JSON edge
    block = messages.block_from_json(_checked(value, dict))
    if not isinstance(block, messages.Image):
        raise _WrongForm
    return block


def _checked(value: Any, *kinds: type[Any]) -> Any:  # noqa: ANN401 - the JSON edge
    # Not isinstance: to Python a bool is an int.
    if type(value) not in kinds:
        raise _WrongForm
    return value


def _one_of(allowed: tuple[Any, ...], value: Any) -> Any:  # noqa: ANN401 - the JSON edge
    if value not in allowed:
        raise _WrongForm
    return value
