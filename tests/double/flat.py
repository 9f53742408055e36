"""A request as one flat row of blocks, which is how a prompt cache and I7 see it. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))

Part: TypeAlias = Literal["tools", "system", "messages"]


@dataclass(frozen=True, slots=True)
class Flat:
    """One block: where it stands, its canonical JSON without ``cache_control``, and whether it is a breakpoint."""

    part: Part
    role: str
    kind: str
    text: bytes
    breakpoint: bool


def flatten(body: Mapping[str, Any]) -> list[Flat]:
    """The blocks in the order in which the service reads them: tools, system, messages.

    Where one message ends and the next of the same role begins makes no difference, as for the service, which joins
    them. A string is one text block. Expects a body that the rules have accepted, or nearly so.
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
    """JSON that is the same for equal values but for the order of keys, which the service's cache also sees."""
    return _JSON.encode(value).encode("utf-8", "surrogatepass")
