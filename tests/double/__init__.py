"""A strict double of the Messages API, for tests.

It listens on loopback, speaks HTTP/1.1 and server-sent events, refuses what the API refuses in the API's words, answers
from a script, and keeps every request. When its context ends it raises for each request that broke a rule of the API,
or I7, unless the test said that one would:

    async def test_a_tool_is_called() -> None:
        script = [calls(("search", {"q": "prices"})), Status(429), text("Done.")]
        async with serve(script) as double:
            ...  # run the program against double.url with the key "test-key"
            second = await double.request(2)
            assert second.messages[-1]["content"][0]["tool_use_id"] == double.requests[0].reply[0]["id"]

Lock-step: a ``Gate`` holds a reply at a point of its stream.

    gate = Gate(after=4)
    async with serve([text("one two", text_chunk=4).holding(gate)]) as double:
        ...
        await gate.reached.wait()    # four events are on the wire
        ...                          # type a line, press a key
        gate.open.set()

Faults: ``Status``, ``ErrorEvent``, ``Reset``, ``Cut``, ``Stall``, ``Garbage``, ``Raw``, ``html()``; ``async
with double.refusing()`` for refused connections.

Rules that are to be broken: ``double.expect_fault("deprecated for this model")``. I7:
``double.expect_new_conversation()`` for each child agent and each session after the first, ``expect_withdrawal()``
after a refusal; ``serve(tail=function)`` says how long each request's tail is. ``double.reuse`` is the part of the
repeatable input that was read from the cache.
"""

from .cache import Account, PromptCache, reuse
from .continuity import Conversations
from .models import NEWER, OLDER, SHORT
from .rules import Issued, Policy, check, check_messages
from .serving import Double, RulesBroken, Script, Seen, serve
from .steps import (
    Cut,
    ErrorEvent,
    Garbage,
    Gate,
    Raw,
    Reset,
    Say,
    Stall,
    Status,
    Step,
    calls,
    html,
    nothing,
    text,
    thinking,
)

__all__ = [
    "NEWER",
    "OLDER",
    "SHORT",
    "Account",
    "Conversations",
    "Cut",
    "Double",
    "ErrorEvent",
    "Garbage",
    "Gate",
    "Issued",
    "Policy",
    "PromptCache",
    "Raw",
    "Reset",
    "RulesBroken",
    "Say",
    "Script",
    "Seen",
    "Stall",
    "Status",
    "Step",
    "calls",
    "check",
    "check_messages",
    "html",
    "nothing",
    "reuse",
    "serve",
    "text",
    "thinking",
]
