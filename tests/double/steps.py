"""The steps of a script: what the double does with each request.

Blocks are dicts in the form of the Messages API. A ``tool_use`` without ``id`` and a ``thinking`` without ``signature``
get one from the double. A ``tool_use`` may have ``input_json``, a string that is streamed unchanged, instead of
``input``.

The events of a stream are ``message_start``, the first ``content_block_start``, ``ping``, deltas, and so on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

Block: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Say:
    """A reply.

    Without ``stop_reason`` it depends on the blocks. ``usage`` overrides fields of the usage. ``text_chunk`` is the
    length of a delta in characters (0: a block is one delta). ``delay_between`` are the seconds between events; without
    them all events are sent in one write.
    """

    blocks: tuple[Block, ...]
    stop_reason: str | None = None
    usage: Mapping[str, int] = field(default_factory=dict)
    text_chunk: int = 0
    delay_between: float = 0
    pings: bool = True


@dataclass(frozen=True, slots=True)
class Status:
    """An HTTP status. Without ``body``, the error of the API for it."""

    code: int
    body: Mapping[str, Any] | bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    message: str = "Scripted error"


@dataclass(frozen=True, slots=True)
class Broken:
    """A reply that fails after this many events. With ``None`` it fails before any byte of the response."""

    after: int | None = 3
    reply: Say = field(default_factory=lambda: text("Hello there, this reply is not going to end well."))


@dataclass(frozen=True, slots=True)
class ErrorEvent(Broken):
    """An ``error`` event, and the end of the stream."""

    kind: str = "overloaded_error"
    message: str = "Overloaded"


class Garbage(Broken):
    """An event whose data does not parse, and the end of the stream."""


class Reset(Broken):
    """The connection is reset (RST)."""


class Stall(Broken):
    """Nothing more is sent, until the client disconnects."""


@dataclass(frozen=True, slots=True)
class Cut(Broken):
    """The connection is closed after ``extra`` bytes of the next event.

    With ``clean`` the response ends regularly, as from a proxy that lost its upstream.
    """

    extra: int = 0
    clean: bool = False


@dataclass(frozen=True, slots=True)
class Raw:
    """These bytes instead of a response, and the end of the connection."""

    data: bytes


Step: TypeAlias = Say | Status | Broken | Raw


def text(*texts: str, **options: Any) -> Say:
    """Return a reply of text blocks. ``options`` are fields of ``Say``."""
    return Say(tuple({"type": "text", "text": t} for t in texts), **options)


def calls(*calls: tuple[str, Mapping[str, Any]], say: str = "", **options: Any) -> Say:
    """Return a reply that calls tools, each by name and input, after some text. ``options`` are fields of ``Say``."""
    texts: tuple[Block, ...] = ({"type": "text", "text": say},) if say else ()
    return Say((*texts, *({"type": "tool_use", "name": n, "input": i} for n, i in calls)), **options)


def thinking(thought: str, then: Say) -> Say:
    """Return the reply with thinking before it."""
    return replace(then, blocks=({"type": "thinking", "thinking": thought}, *then.blocks))


def nothing() -> Say:
    """Return a reply without content."""
    return Say(())


def html(code: int = 502, page: str = "<html><body><h1>Bad Gateway</h1></body></html>") -> Status:
    """Return the page of a proxy."""
    return Status(code, page.encode(), {"content-type": "text/html"})


def from_json(steps: list[dict[str, Any]]) -> list[Step]:
    """Return a script of replies. Each has the type "say", the fields of ``Say``, and ``times``."""
    read: list[Step] = []
    for raw in steps:
        fields = {name: value for name, value in raw.items() if name not in ("type", "times")}
        read += [Say(**{**fields, "blocks": tuple(fields["blocks"])})] * raw.get("times", 1)
    return read
