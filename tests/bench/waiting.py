"""How long a line takes from its safe point to the service: ``python waiting.py lines URL ITERATIONS``.

A line comes in every iteration of two runs. It prints for each run a list: for each line the number of the request that
carries it, from 0, and the moment of its safe point by the machine's monotonic clock. That moment is the
``tool_result`` event of the iteration: the last thing before point D that can be seen from outside. So the commit of
the results, the composing of the message and the journal are counted too.

In the first run, ``waiting``, the line comes while the tool runs, and its record is on the disk before the safe point.
In the second, ``late``, it comes in the very step before the safe point, so that the model call waits for the disk.

``python waiting.py service ITERATIONS`` is the service, a lean double. It prints its port first; when its input ends it
prints a list: for each request the moment at which all of it had been read.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import trio
from double import Say, Step, serve
from double.rules import Body
from double.steps import from_json
from workload import looked_up, ready_chain, replies, run

from chain import events
from chain.chain import Chain
from chain.tools.tool import Tool, ToolContext, tool

LINE = "prefer the parts made of steel"


class Typist:
    """Submits a line in every iteration, and notes its safe point."""

    def __init__(self, when: str) -> None:
        self.when = when
        self.chain: Chain | None = None
        self.at: dict[int, float] = {}
        self.carried: list[tuple[int, float]] = []
        self._queued = trio.Event()

    def tool(self) -> Tool:
        """A tool that runs until the line that came meanwhile is on the disk."""

        @tool(read_only=True)
        async def price(ctx: ToolContext, part: str) -> str:
            """Look up what a part costs."""
            if self.when == "waiting":
                self._submit()
                await self._queued.wait()
            return looked_up(part)

        return price

    def listen(self, event: events.Event) -> None:
        match event:
            case events.LineQueued():
                self._queued.set()
            case events.ToolResult():
                self.at[event.iteration] = time.monotonic()
                if self.when == "late":
                    self._submit()
            case events.UserInterruption():
                assert event.point == "D"
                self.carried.append((event.iteration, self.at[event.iteration]))
            case _:
                pass

    def _submit(self) -> None:
        assert self.chain is not None
        self._queued = trio.Event()
        if self.chain.submit(LINE).what != "queued":
            raise RuntimeError("the line was not queued")


async def lines(url: str, iterations: int, when: str) -> list[tuple[int, float]]:
    """One run, and the lines that it carried. Iteration k makes request k - 1 and its line goes with the next."""
    typist = Typist(when)
    with TemporaryDirectory() as folder:
        async with ready_chain(Path(folder), url, iterations, typist.tool()) as chain:
            typist.chain = chain
            chain.listen(typist.listen)
            await run(chain)
    return typist.carried


async def carried(url: str, iterations: int) -> None:
    found = {"waiting": await lines(url, iterations, "waiting")}
    found["late"] = [(iterations + request, at) for request, at in await lines(url, iterations, "late")]
    sys.stdout.write(json.dumps(found) + "\n")


async def service(iterations: int) -> None:
    steps = from_json(replies(iterations))
    assert isinstance(steps, list)
    arrived: list[float] = []

    def answer(_: Body, n: int) -> Step:
        arrived.append(time.monotonic())
        step = steps[n % len(steps)]
        assert isinstance(step, Say)
        return step

    async with serve(answer, lean=True) as double:
        sys.stdout.write(double.url.rsplit(":", 1)[1] + "\n")
        sys.stdout.flush()
        async with trio.lowlevel.FdStream(sys.stdin.fileno()) as stream:
            async for _ in stream:
                pass
    sys.stdout.write(json.dumps(arrived) + "\n")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["lines", url, count]:
            trio.run(carried, url, int(count))
        case ["service", count]:
            trio.run(service, int(count))
