"""What the double does with one request: steps of a script, as a union of frozen values, and short ways to write them.

Blocks are dicts as the Messages API writes them, with three liberties: a ``tool_use`` without ``id`` and a ``thinking``
without ``signature`` get one from the double, and a ``tool_use`` may have ``input_json`` instead of ``input``, a string
that is streamed as it stands, whether it parses or not.

A stream's events are counted from 0: ``message_start``, the first ``content_block_start``, ``ping``, deltas, and so on.
``after=n`` means that n events have been sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import trio

Block: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Gate:
    """Holds a reply: ``after`` 0 before anything of it is sent, else after so many events.

    The double sets ``reached`` when it stands there, and goes on when the test sets ``open``.
    """

    after: int = 0
    reached: trio.Event = field(default_factory=trio.Event)
    open: trio.Event = field(default_factory=trio.Event)


@dataclass(frozen=True, slots=True)
class Say:
    """A reply.

    ``stop_reason`` is by default what the blocks suggest. ``usage`` overrides fields of the accounted usage.
    ``text_chunk`` is the length of a delta in characters (0: a block is one delta), ``delay_between`` the time in
    seconds between events. What may be sent goes in one write.
    """

    blocks: tuple[Block, ...]
    stop_reason: str | None = None
    usage: Mapping[str, int] = field(default_factory=dict)
    text_chunk: int = 0
    delay_between: float = 0
    gates: tuple[Gate, ...] = ()
    pings: bool = True

    def holding(self, *gates: Gate) -> Say:
        """The same reply, held at these gates."""
        return replace(self, gates=(*self.gates, *gates))


def _hello() -> Say:
    return text("Hello there, this reply is not going to end well.")


@dataclass(frozen=True, slots=True)
class Status:
    """An HTTP status; ``body`` is by default the API's error for it."""

    code: int
    body: Mapping[str, Any] | bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    message: str = "Scripted error"


@dataclass(frozen=True, slots=True)
class Broken:
    """A reply that goes wrong after so many events; ``None``: before any byte of the response."""

    after: int | None = 3
    reply: Say = field(default_factory=_hello)


@dataclass(frozen=True, slots=True)
class ErrorEvent(Broken):
    """An ``error`` event in mid-stream, and the end of the stream."""

    kind: str = "overloaded_error"
    message: str = "Overloaded"


class Garbage(Broken):
    """An event whose data does not parse, and the end of the stream."""


class Reset(Broken):
    """The connection is reset (RST)."""


class Stall(Broken):
    """Nothing more comes, until the client goes away."""


@dataclass(frozen=True, slots=True)
class Cut(Broken):
    """The connection is closed after ``extra`` bytes of the next event.

    With ``clean`` the response is ended in order, as a proxy that lost its upstream may do: HTTP sees nothing wrong.
    """

    extra: int = 0
    clean: bool = False


@dataclass(frozen=True, slots=True)
class Raw:
    """These bytes as they are, instead of a response, and the end of the connection."""

    data: bytes


Step: TypeAlias = Say | Status | Broken | Raw


def text(*texts: str, **options: Any) -> Say:
    """A reply of these text blocks; ``options`` are fields of ``Say``."""
    return Say(tuple({"type": "text", "text": t} for t in texts), **options)


def calls(*calls: tuple[str, Mapping[str, Any]], say: str = "", **options: Any) -> Say:
    """A reply that asks for tools, each by name and input, after some text; ``options`` are fields of ``Say``."""
    said: tuple[Block, ...] = ({"type": "text", "text": say},) if say else ()
    return Say((*said, *({"type": "tool_use", "name": n, "input": i} for n, i in calls)), **options)


def thinking(thought: str, then: Say) -> Say:
    """The same reply, with this thought before it."""
    return replace(then, blocks=({"type": "thinking", "thinking": thought}, *then.blocks))


def nothing() -> Say:
    """A reply without content."""
    return Say(())


def html(code: int = 502, page: str = "<html><body><h1>Bad Gateway</h1></body></html>") -> Status:
    """A page from a proxy on the way."""
    return Status(code, page.encode(), {"content-type": "text/html"})


def from_json(steps: list[dict[str, Any]]) -> list[Step]:
    """Read a script of replies: each has the type "say", the fields of ``Say``, and how many times it comes."""
    read: list[Step] = []
    for raw in steps:
        fields = {name: value for name, value in raw.items() if name not in ("type", "times")}
        read += [Say(**{**fields, "blocks": tuple(fields["blocks"])})] * raw.get("times", 1)
    return read
