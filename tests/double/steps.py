"""What the double does with one request: steps of a script, as a union of frozen values, and short ways to write them.

Blocks are dicts as the Messages API writes them, with three liberties: a ``tool_use`` without ``id`` and a ``thinking``
without ``signature`` get one from the double, and a ``tool_use`` may have ``input_json`` instead of ``input``, a string
that is streamed as it stands, whether it parses or not.

A stream's events are counted from 0: ``message_start``, the first ``content_block_start``, ``ping``, deltas, and so on.
``after=n`` means that n events have been sent. A reply that is not streamed is one event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import trio

Block: TypeAlias = Mapping[str, Any]

KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""The error type that goes with a status: https://docs.anthropic.com/en/api/errors."""


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
    ``text_chunk`` is the length of a delta in characters (0: a block is one delta), ``write_size`` the length of a
    write in bytes (0: whatever may be sent goes in one write). Delays are in seconds: before the first byte, and
    between events.
    """

    blocks: tuple[Block, ...]
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: Mapping[str, int] = field(default_factory=dict)
    text_chunk: int = 0
    write_size: int = 0
    delay_before: float = 0
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
    gates: tuple[Gate, ...] = ()


@dataclass(frozen=True, slots=True)
class ErrorEvent:
    """An ``error`` event in mid-stream, and the end of the stream. Not streamed, it is the status for that type."""

    after: int = 3
    kind: str = "overloaded_error"
    message: str = "Overloaded"
    reply: Say = field(default_factory=_hello)


@dataclass(frozen=True, slots=True)
class Reset:
    """The connection is reset (RST), after so many events; ``None``: before any byte of the response."""

    after: int | None = 3
    reply: Say = field(default_factory=_hello)


@dataclass(frozen=True, slots=True)
class Cut:
    """The connection is closed after so many events and ``extra`` bytes of the next.

    With ``clean`` the response is ended in order, as a proxy that lost its upstream may do: HTTP sees nothing wrong.
    ``after`` ``None`` closes before any byte of the response.
    """

    after: int | None = 3
    extra: int = 0
    clean: bool = False
    reply: Say = field(default_factory=_hello)


@dataclass(frozen=True, slots=True)
class Stall:
    """After so many events (``None``: before the response) nothing more comes, until the client goes away."""

    after: int | None = 3
    reply: Say = field(default_factory=_hello)


Nonsense: TypeAlias = Literal["sse", "json", "shape", "unknown_event", "orphan_delta"]


@dataclass(frozen=True, slots=True)
class Garbage:
    """A stream that breaks the protocol, after so many events of ``reply``.

    ``sse``: lines that are no server-sent events. ``json``: data that does not parse. ``shape``: data that is JSON and
    no event. ``unknown_event``: an event type of the future; the reply then goes on, and a client has to bear it.
    ``orphan_delta``: a delta for a block that never began. Not streamed, all are a body that does not parse.
    """

    kind: Nonsense
    after: int = 3
    reply: Say = field(default_factory=_hello)


@dataclass(frozen=True, slots=True)
class Html:
    """A page from a proxy on the way."""

    code: int = 502
    page: str = "<html><head><title>502 Bad Gateway</title></head><body><h1>Bad Gateway</h1></body></html>"


@dataclass(frozen=True, slots=True)
class Raw:
    """These bytes as they are, instead of a response, and the end of the connection."""

    data: bytes


Step: TypeAlias = Say | Status | ErrorEvent | Reset | Cut | Stall | Garbage | Html | Raw


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


def nameless_call() -> Say:
    """A reply that asks for a tool with an empty name."""
    return calls(("", {}))


def twin_calls(name: str, input: Mapping[str, Any]) -> Say:
    """A reply with two tool calls of one id."""
    call = {"type": "tool_use", "id": "toolu_twin", "name": name, "input": input}
    return Say((call, call))


def cut_call(name: str, input_json: str) -> Say:
    """A tool call whose input the token limit cut off."""
    return Say(({"type": "tool_use", "name": name, "input_json": input_json},), stop_reason="max_tokens")


def rate_limited(retry_after: str = "1") -> Status:
    """429, with how long to wait."""
    return Status(429, message="Number of requests has exceeded your rate limit", headers={"retry-after": retry_after})
