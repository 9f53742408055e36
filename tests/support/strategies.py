"""Random values of frozen dataclasses, such as events and records, by the types of their fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from chain import messages

WORDS = st.text(max_size=20)
COUNTS = st.integers(0, 10**9)
SECONDS = st.floats(0, 1e9)
JSON = st.recursive(
    st.none() | st.booleans() | COUNTS | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=5,
)
PLAIN: dict[object, st.SearchStrategy[Any]] = {
    str: WORDS,
    bool: st.booleans(),
    int: COUNTS,
    float: SECONDS,
    Any: JSON,
    NoneType: st.none(),
    messages.Role: st.sampled_from(["user", "assistant"]),
    messages.Opaque: st.just(messages.Opaque({"type": "redacted_thinking", "data": "x"})),
}


def instances_of(kind: Any, **strategies: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Draw objects of a dataclass. ``strategies`` are for fields by name; the class need not have all of them."""
    hints = get_type_hints(kind)
    names = [each.name for each in fields(kind) if each.init]
    return st.builds(
        kind, **{name: strategies[name] if name in strategies else values_of(hints[name]) for name in names}
    )


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Draw values of a type."""
    arguments = get_args(hint)
    if hint in PLAIN:
        return PLAIN[hint]
    if get_origin(hint) is Literal:
        return st.sampled_from(arguments)
    if get_origin(hint) in (Union, UnionType):
        return st.one_of(*map(values_of, arguments))
    if get_origin(hint) is tuple:
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    if get_origin(hint) in (dict, Mapping):
        return st.dictionaries(WORDS, values_of(arguments[1]), max_size=3)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(hint)
    assert is_dataclass(hint), hint
    return instances_of(hint)
