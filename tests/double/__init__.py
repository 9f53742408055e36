"""A strict double of the Messages API, for tests.

It listens on loopback, refuses what the API refuses in the words of the API, answers from a script, and stores every
request. When its context ends, it raises for each request that broke a rule of the API, or I7, unless the test has
expected that:

    async with serve([calls(("search", {"q": "prices"})), Status(429), text("Done.")]) as double:
        ...  # run the program against double.url with the key "test-key"
        second = await double.request(2)
        assert second.messages[-1]["content"][0]["tool_use_id"] == double.requests[0].reply[0]["id"]

Faults are ``Status``, ``ErrorEvent``, ``Reset``, ``Cut``, ``Stall``, ``Garbage``, ``Raw`` and ``html()``, and
``async with double.refusing()`` for refused connections.

A rule that a test breaks is expected by ``double.expect_fault("deprecated for this model")``. For I7 there are
``double.expect_new_conversation()`` (a child agent, or a session after the first) and ``expect_withdrawal()`` (after a
refusal); ``serve(tail=function)`` gives the length of the tail of each request. ``double.reuse`` is the part of the
repeatable input that was read from the cache.
"""

from .cache import Account, PromptCache, reuse
from .continuity import Conversations
from .models import NEWER, OLDER, SHORT
from .rules import Issued, Policy, check, check_messages
from .serving import Double, RulesBroken, Script, Seen, serve
from .steps import Cut, ErrorEvent, Garbage, Raw, Reset, Say, Stall, Status, Step, calls, html, nothing, text, thinking

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
