"""The time of a line from its safe point to the service: ``python waiting.py lines URL ITERATIONS``.

There are two runs, with a line in every iteration. In the run ``waiting`` the line is sent while the tool runs, and its
record is on the disk before the safe point. In the run ``late`` the line is sent just before the safe point, and the
model call waits for the disk.

The program prints a list for each run: for each line the number of the request that contains it, from 0, and the
monotonic time of its safe point. That is the time of the ``tool_result`` event, so the figure includes committing the
results, composing the message and writing the journal.

``python waiting.py service ITERATIONS`` is the service, a lean double. It prints its port, and when its input ends the
list of the times at which each request had been read.
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
from workload import price_of, ready_chain, replies, run

from chain import events
from chain.tools.tool import ToolContext, tool

LINE = "prefer the parts made of steel"


async def measure_lines(url: str, iterations: int, *, is_late: bool) -> list[tuple[int, float]]:
    """Return the lines of one run. Iteration k makes request k - 1, and the next request contains its line."""
    safe_points, lines = dict[int, float](), list[tuple[int, float]]()
    queued = trio.Event()

    def submit() -> None:
        nonlocal queued
        queued = trio.Event()
        if chain.submit(LINE).what != "queued":
            raise RuntimeError("the line was not queued")

    @tool(read_only=True)
    async def price(ctx: ToolContext, part: str) -> str:
        """Look up what a part costs."""
        if not is_late:
            submit()
            await queued.wait()
        return price_of(part)

    def listen(event: events.Event) -> None:
        match event:
            case events.LineQueued():
                queued.set()
            case events.ToolResult():
                safe_points[event.iteration] = time.monotonic()
                if is_late:
                    submit()
            case events.UserInterruption():
                assert event.point is events.Point.AFTER_TOOLS
                lines.append((event.iteration, safe_points[event.iteration]))
            case _:
                pass

    with TemporaryDirectory() as folder:
        async with ready_chain(Path(folder), url, iterations, price) as chain:
            chain.listen(listen)
            await run(chain)
    return lines


async def measure_both_runs(url: str, iterations: int) -> None:
    waiting = await measure_lines(url, iterations, is_late=False)
    late = [(iterations + request, at) for request, at in await measure_lines(url, iterations, is_late=True)]
    sys.stdout.write(json.dumps({"waiting": waiting, "late": late}) + "\n")


async def service(iterations: int) -> None:
    steps, arrived = from_json(replies(iterations)), list[float]()
    assert isinstance(steps, list)

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
            trio.run(measure_both_runs, url, int(count))
        case ["service", count]:
            trio.run(service, int(count))
