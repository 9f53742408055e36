"""A run with many interruptions, whose cache use the strict double counts: ``python interrupted.py URL ITERATIONS``.

It prints the number of delivered lines. Every fifth iteration gets lines: of each kind that is delivered, several at
once, and urgent ones that skip tools. In every twentieth iteration, one reply calls more tools than a cache breakpoint
looks back over.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import trio
from workload import price, ready_chain, replies, run

from chain import events

LINES = (
    ("prefer the parts made of steel",),
    ("how many are left?",),
    ("todo: add compare with last year's prices",),
    ("!leave out the handles",),
    ("context: the budget is 2000", "also check the hinges", "todo: complete 1", "status"),
)
EVERY = 5
MANY_EVERY = 20
MANY_CALLS = 25


def steps(iterations: int) -> list[dict[str, Any]]:
    usual_reply, last_reply = replies(iterations)
    calls = [{"type": "tool_use", "name": price.name, "input": {"part": f"bolt M{n}"}} for n in range(MANY_CALLS)]
    many = {**usual_reply, "blocks": calls, "times": 1}
    usual = {**usual_reply, "times": 1}
    return [*(usual if n % MANY_EVERY else many for n in range(1, iterations)), last_reply]


async def main(url: str, iterations: int) -> None:
    delivered = 0

    def listen(event: events.Event) -> None:
        nonlocal delivered
        match event:
            case events.IterationStarted(iteration=n) if n % EVERY == 0 and n < iterations:
                for text in LINES[n // EVERY % len(LINES)]:  # urgent lines wait before the tools start
                    if chain.submit(text).what != "queued":
                        raise RuntimeError(f"{text!r} was not queued")
            case events.Receipt(state="delivered"):
                delivered += 1
            case _:
                pass

    with TemporaryDirectory() as folder:
        async with ready_chain(Path(folder), url, iterations) as chain:
            chain.listen(listen)
            await run(chain)
    sys.stdout.write(f"{delivered}\n")


if __name__ == "__main__":
    trio.run(main, sys.argv[1], int(sys.argv[2]))
