"""A lean double in a process of its own that notes when requests arrive: ``python arrivals.py ITERATIONS``.

The first line on stdout is the port. When stdin ends the last line is a list: for each request the moment, by the
machine's monotonic clock, at which all of it had been read.
"""

from __future__ import annotations

import json
import sys
import time

import trio
from double import Say, Step, serve
from double.rules import Body
from double.script import setup
from workload import replies


async def main(iterations: int) -> None:
    steps = setup({"steps": replies(iterations)}).script
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
    trio.run(main, int(sys.argv[1]))
