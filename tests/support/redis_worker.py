"""A worker in its own process, for tests that kill it: ``redis_worker.py ADDRESS STATE CONFIG LOG LEASE_S AT_ONCE``.

Its tool ``step`` takes 0.1 s, and writes a row to the file LOG when it starts.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import trio

from chain import ToolContext, load_settings, tool
from chain.app.session_worker import Worker, WorkerLimits


@tool(read_only=True)
async def step(context: ToolContext) -> str:
    """Take a step."""
    os.write(LOG, f"{os.getpid()} {context.workspace.name} {context.call_id}\n".encode())
    await trio.sleep(0.1)
    return "stepped"


async def main() -> None:
    settings = load_settings(config=Path(config), environ={}, cwd=Path(state), flags={"state": address})
    limits = WorkerLimits(int(at_once))
    worker = Worker(settings, Path(state), limits, say, tools=[step], lease_s=float(lease_s))
    async with trio.open_nursery() as nursery:
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            nursery.start_soon(worker.run)
            async for _ in signals:
                worker.leave()
                break


def say(text: str) -> None:
    sys.stderr.write(f"{os.getpid()} {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    address, state, config, log, lease_s, at_once = sys.argv[1:]
    LOG = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    trio.run(main)
