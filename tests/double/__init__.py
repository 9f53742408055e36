"""A strict double of the Messages API, for tests.

It listens on loopback, speaks HTTP/1.1 and server-sent events, refuses what the API refuses in the API's words, answers
from a script, and keeps every request. When its context ends it raises for each request that broke a rule of the API,
or I7, unless the test said that one would:

    async def test_a_tool_is_called() -> None:
        script = [calls(("search", {"q": "prices"})), rate_limited("2"), text("Done.")]
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

Faults: ``Status``, ``ErrorEvent``, ``Reset``, ``Cut``, ``Stall``, ``Garbage``, ``Html``, ``Raw``, ``nothing()``,
``nameless_call()``, ``twin_calls()``, ``cut_call()``; ``async with double.refusing()`` for refused connections.

Rules that are to be broken: ``double.expect_fault("deprecated for this model")``. I7:
``double.expect_new_conversation()`` for each child agent and each session after the first, ``expect_withdrawal()``
after a refusal, ``expect_new_run()`` when the system prompt or the tools may change; ``serve(tail=0)`` says that no
request has a tail, ``serve(tail=function)`` how long each one's is. ``double.reuse`` is the part of the repeatable
input that was read from the cache.
"""

from .cache import Account, PromptCache, reuse
from .continuity import Conversations
from .models import MODELS, NEWER, OLDER, Features
from .rules import Fault, Issued, Policy, check, check_count, check_messages
from .seen import Headers, Seen
from .serving import Double, RulesBroken, Script, serve
from .steps import (
    Block,
    Cut,
    ErrorEvent,
    Garbage,
    Gate,
    Html,
    Raw,
    Reset,
    Say,
    Stall,
    Status,
    Step,
    calls,
    cut_call,
    nameless_call,
    nothing,
    rate_limited,
    text,
    thinking,
    twin_calls,
)

__all__ = [
    "MODELS",
    "NEWER",
    "OLDER",
    "Account",
    "Block",
    "Conversations",
    "Cut",
    "Double",
    "ErrorEvent",
    "Fault",
    "Features",
    "Garbage",
    "Gate",
    "Headers",
    "Html",
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
    "check_count",
    "check_messages",
    "cut_call",
    "nameless_call",
    "nothing",
    "rate_limited",
    "reuse",
    "serve",
    "text",
    "thinking",
    "twin_calls",
]
