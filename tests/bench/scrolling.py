"""The ``chain`` program with a model that does what the query says, until it is killed:

- ``flood`` is answered by a reply of 10,000 lines a second,
- ``report`` runs a tool that reports a line now and then,
- ``tell`` is answered by a reply that streams, piece by piece.

Each of these texts ends in a mark, its number and the moment of its event: ``#17@123.456789``. The moment is by the
machine's monotonic clock, which whoever reads the terminal has as well.
"""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections.abc import Callable

import trio

from chain.app import open as wiring
from chain.messages import ToolCall, assistant
from chain.model import Delta, Reply, Request
from chain.tools.tool import ToolContext, tool
from cli.main import main
from cli.show.renderer import FIRST

LINES_A_SECOND = 10_000
MOST_AT_ONCE = 100
FOREVER_S = 1000.0

REPORTS_S = 0.06
PIECES_S = 0.01
"""Seconds between two events on average. Each gap is drawn up to the double of it, so that no moment of the screen's
own rhythm is preferred."""


def mark(n: int) -> str:
    """The mark of the event that is made now."""
    return f"#{n}@{time.monotonic():.6f}"


async def flood(on_delta: Callable[[Delta], None]) -> None:
    """Say lines, as many as are due each millisecond; what was late is caught up with, but never all at once."""
    begun = time.monotonic()
    told = 0
    while True:
        due = int((time.monotonic() - begun) * LINES_A_SECOND)
        for told in range(told + 1, min(due, told + MOST_AT_ONCE) + 1):  # noqa: B020 - it goes on where it was
            on_delta(Delta("text", f"one of many lines {mark(told)}\n"))
        await trio.sleep(0.001)


NUMBERS = itertools.count(1)


@tool(timeout_s=FOREVER_S)
async def report(ctx: ToolContext) -> str:
    """Report a line now and then, as many as are shown of one call as they come."""
    for _ in range(FIRST):
        await trio.sleep(random.uniform(0, 2 * REPORTS_S))
        ctx.progress(f"a line {mark(next(NUMBERS))}\n")
    return "reported"


class Obedient:
    """A model that calls the tool that the query names, again and again, or streams."""

    name = "obedient"

    def __init__(self) -> None:
        self._calls = itertools.count(1)

    async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        """Obey."""
        query = request.messages[0].text.strip()
        if query == "flood":
            await flood(on_delta)
        if query == "report":
            return Reply(assistant([ToolCall(f"call_{next(self._calls)}", query, {})]), "tool_use")
        for n in itertools.count(1):
            await trio.sleep(random.uniform(0, 2 * PIECES_S))
            on_delta(Delta("text", f"said {mark(n)} "))
        raise AssertionError

    async def prepare(self) -> None:
        """There is nothing to prepare."""

    async def aclose(self) -> None:
        """There is nothing to give up."""


if __name__ == "__main__":
    # Everything else is as the program has it: the command takes no model but the configured one.
    wiring.build_model = lambda settings, **_: Obedient()
    sys.exit(main(sys.argv[1:], tools=[report]))
