"""What the double remembers of a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import trio

from .cache import Account
from .rules import Fault
from .steps import Block, Step

_SECRET = ("x-api-key", "authorization")


class Headers(dict[str, str]):
    """Headers by their names in lower case. Keys do not show when it is printed."""

    def __repr__(self) -> str:
        return repr({k: "…" if k in _SECRET else v for k, v in self.items()})


@dataclass(slots=True, eq=False)
class Seen:
    """One request and what became of it.

    ``number`` counts from 1 over the requests for messages. ``fault`` is the rule of the API that it broke, ``breach``
    what it broke beside those: I7, or a script that has no step left. ``step`` is what it was answered with, ``reply``
    the blocks of that with their ids. ``finished`` is set when the response was sent to its end (also to a scripted bad
    one), ``disconnected`` when the client went away before.
    """

    number: int
    path: str
    headers: Headers
    body: Mapping[str, Any]
    connection: int
    fault: Fault | None = None
    breach: str | None = None
    step: Step | None = None
    reply: tuple[Block, ...] = ()
    account: Account | None = None
    finished: trio.Event = field(default_factory=trio.Event, repr=False)
    disconnected: trio.Event = field(default_factory=trio.Event, repr=False)

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages of the body."""
        return list(self.body.get("messages", []))

    @property
    def complaints(self) -> list[str]:
        """What is wrong with the request, if anything."""
        return [c for c in (self.fault and self.fault.message, self.breach) if c]
