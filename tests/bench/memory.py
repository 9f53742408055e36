"""The memory of a long run, of its conversation alone, and of resuming its session, each in a process of its own.

* ``python memory.py run URL ITERATIONS FOLDER`` runs a chain and prints the growth of its peak memory in bytes:
  history, journal, requests, replies and events.
* ``python memory.py hold FOLDER`` reads the journal of that run and prints the memory of its messages, which are the
  same objects as in the chain.
* ``python memory.py resume FOLDER`` opens that session and prints the seconds, the growth of the peak memory, and the
  size of the journal.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import time
from dataclasses import replace
from pathlib import Path

import trio
from workload import WARM_UP, ready_chain, run, settings

from chain.app.open import open_chain
from chain.messages import Message, ToolResult, from_json


def peak() -> int:
    """Return the peak memory of the process in bytes."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def current() -> int:
    """Return the memory of the process in bytes, or its peak where only that is known."""
    gc.collect()
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return peak()
    return pages * os.sysconf("SC_PAGE_SIZE")


async def run_one(url: str, iterations: int, folder: Path) -> int:
    async with ready_chain(folder, url, iterations) as chain:
        before = current()
        await run(chain)
        return peak() - before


async def measure(url: str, iterations: int, folder: Path) -> int:
    """Measure a run, after a short one."""
    await run_one(url, WARM_UP, folder / "warm-up")
    return await run_one(url, iterations, folder / "measured")


def journal_in(folder: Path) -> Path:
    (journal,) = (folder / "measured/state/sessions").glob("*.jsonl")
    return journal


def hold(folder: Path) -> int:
    messages: list[Message] = []
    before = current()
    with journal_in(folder).open(encoding="utf-8") as rows:
        for row in rows:
            record = json.loads(row)
            if record["type"] == "message":
                messages.append(_with_shared_ids(from_json(record["message"]), messages))
    del row, record
    return current() - before


def _with_shared_ids(message: Message, before: list[Message]) -> Message:
    """Return a message whose results share the ids of their calls, as in the chain."""
    ids = {call.id: call.id for call in before[-1].calls} if before else {}
    blocks = (replace(b, id=ids[b.id]) if isinstance(b, ToolResult) else b for b in message.blocks)
    return Message("user" if message.role == "user" else "assistant", tuple(blocks))


async def resume(folder: Path) -> tuple[float, int, int]:
    journal, workspace = journal_in(folder), folder / "measured"
    use = settings(workspace, "http://127.0.0.1:9", 1)
    before, start = current(), time.perf_counter()
    async with open_chain(use, workspace=workspace, state=workspace / "state", resume=journal.stem) as chain:
        seconds = time.perf_counter() - start
        assert chain.resumed is not None
        return seconds, peak() - before, journal.stat().st_size


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["run", url, count, folder]:
            for name in ("warm-up", "measured"):
                Path(folder, name).mkdir()
            figures: tuple[float, ...] = (trio.run(measure, url, int(count), Path(folder)),)
        case ["hold", folder]:
            figures = (hold(Path(folder)),)
        case ["resume", folder]:
            figures = trio.run(resume, Path(folder))
    sys.stdout.write(f"{json.dumps(figures)}\n")
