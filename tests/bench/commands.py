"""What a command costs under the guard: ``python commands.py COUNT``.

It prints a pair of lists, the seconds of so many commands that do nothing: under the guard with every protection that
this machine has, and by ``trio.run_process``. The two take turns.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import trio

from chain.tools.processes import fence
from chain.tools.processes.fence import Fence
from chain.tools.processes.guarded import Guard
from chain.tools.processes.probe import probe

COMMAND = ["/bin/true"]


async def measure(count: int, folder: Path) -> tuple[list[float], list[float]]:
    """The seconds of each command."""
    found = probe()
    guard, guarded, bare = Guard(), list[float](), list[float]()
    box = Fence(
        writable=[str(folder), *fence.DEVICES] if found.writes else None,
        network=found.network,
        signals=found.signals,
        namespace=found.namespace,
    )
    try:
        for _ in range(count + 1):  # the first starts the guard
            begun = time.perf_counter()
            await guard.run(COMMAND, cwd=folder, env=os.environ, on_output=lambda _: None, fence=box)
            guarded.append(time.perf_counter() - begun)
            begun = time.perf_counter()
            await trio.run_process(COMMAND)
            bare.append(time.perf_counter() - begun)
    finally:
        await guard.close()
    return guarded[1:], bare[1:]


def main() -> None:
    """Print the seconds."""
    with TemporaryDirectory() as folder:
        sys.stdout.write(json.dumps(trio.run(measure, int(sys.argv[1]), Path(folder))) + "\n")


if __name__ == "__main__":
    main()
