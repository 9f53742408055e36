"""CPU time of runs through the whole stack: ``python cpu_chain.py URL ITERATIONS...``, one run for each number.

With ``CHAIN_BENCH_STATE`` the session is kept in the Redis at that address.

It prints a list: for each run the seconds of CPU time of one iteration. Everything that a run costs its process is in
them: events, journal, encoding, HTTP, the reader of the feed, the kernel.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import trio
from workload import WARM_UP, ready_chain, run

from chain.app.sessions import open_store


async def used(url: str, iterations: int) -> float:
    """CPU seconds of one run in a new session."""
    with TemporaryDirectory() as folder:
        store = open_store(Path(folder) / "state", os.environ.get("CHAIN_BENCH_STATE", ""))
        async with ready_chain(Path(folder), url, iterations, store=store) as chain:
            begun = time.process_time()
            await run(chain)
            return time.process_time() - begun


async def main(url: str, runs: list[int]) -> None:
    await used(url, WARM_UP)
    sys.stdout.write(json.dumps([await used(url, iterations) / iterations for iterations in runs]) + "\n")


if __name__ == "__main__":
    trio.run(main, sys.argv[1], [int(n) for n in sys.argv[2:]])
