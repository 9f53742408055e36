"""The CPU time of runs with everything that a user's run has: ``python cpu_chain.py URL ITERATIONS...``.

There is one run for each number. The program prints the seconds of CPU time of one iteration of each run: events,
journal, encoding, HTTP, feed and kernel.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import trio
from workload import WARM_UP, ready_chain, run


async def cpu_seconds(url: str, iterations: int) -> float:
    """Return the CPU seconds of one run in a new session."""
    with TemporaryDirectory() as folder:
        async with ready_chain(Path(folder), url, iterations) as chain:
            start = time.process_time()
            await run(chain)
            return time.process_time() - start


async def main(url: str, runs: list[int]) -> None:
    await cpu_seconds(url, WARM_UP)
    sys.stdout.write(json.dumps([await cpu_seconds(url, iterations) / iterations for iterations in runs]) + "\n")


if __name__ == "__main__":
    trio.run(main, sys.argv[1], [int(n) for n in sys.argv[2:]])
