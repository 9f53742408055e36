"""A request as a flat list of blocks, as a prompt cache and I7 see it. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))

Part: TypeAlias = Literal["tools", "system", "messages"]


@dataclass(frozen=True, slots=True)
class Flat:
    """One block: its part, its canonical JSON without ``cache_control``, and whether it is a breakpoint."""

    part: Part
    role: str
    kind: str
    text: bytes
    breakpoint: bool


def flatten(body: Mapping[str, Any]) -> list[Flat]:
    """Return the blocks in the order in which the service reads them: tools, system, messages.

    Boundaries between messages of the same role do not matter, since the service joins such messages. A string is one
    text block. ``body`` must satisfy the rules, at least roughly.
    """
    return [*_blocks(body)]


def _blocks(body: Mapping[str, Any]) -> Iterator[Flat]:
    for tool in body.get("tools") or ():
        yield _flat("tools", "", tool)
    for block in _content(body.get("system") or ()):
        yield _flat("system", "", block)
    for message in body.get("messages") or ():
        for block in _content(message["content"]):
            yield _flat("messages", message["role"], block)


def _content(raw: Any) -> Any:
    return [{"type": "text", "text": raw}] if isinstance(raw, str) else raw


def _flat(part: Part, role: str, block: Mapping[str, Any]) -> Flat:
    kind = "tool" if part == "tools" else block["type"]
    bare = {k: v for k, v in block.items() if k != "cache_control"}
    return Flat(part, role, kind, canonical(bare), "cache_control" in block)


def canonical(value: object) -> bytes:
    """Return JSON that is equal for equal values. The order of keys counts, as it does for the service's cache."""
    return _JSON.encode(value).encode("utf-8", "surrogatepass")
