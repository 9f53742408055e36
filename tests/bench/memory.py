"""What a run needs of memory, and what its conversation alone does, each in a process of its own.

``python memory.py run URL ITERATIONS FOLDER`` runs a chain and prints by how many bytes its peak exceeds what the
process held as the run began: history, journal, requests, replies, events, whatever it is.

``python memory.py hold FOLDER`` reads that run's journal and holds its messages in a list, as the objects that they are
in the chain. It prints by how many bytes the process grew.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
from dataclasses import replace
from pathlib import Path

import trio
from workload import WARM_UP, ready_chain, run

from chain.messages import Message, ToolResult, from_json

WARM, MEASURED = "warm-up", "measured"


def peak() -> int:
    """The most that the process ever held, in bytes."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def held() -> int:
    """What the process holds now, in bytes; where that cannot be asked, the most that it ever held."""
    gc.collect()
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return peak()
    return pages * os.sysconf("SC_PAGE_SIZE")


async def run_one(url: str, iterations: int, folder: Path) -> int:
    async with ready_chain(folder, url, iterations) as chain:
        before = held()
        await run(chain)
        return peak() - before


async def measure(url: str, iterations: int, folder: Path) -> int:
    await run_one(url, WARM_UP, folder / WARM)
    return await run_one(url, iterations, folder / MEASURED)


def hold(folder: Path) -> int:
    """Hold the conversation as the chain does: its texts are its own, and a result has the id of its call."""
    (journal,) = (folder / MEASURED / "state" / "sessions").glob("*.jsonl")
    messages: list[Message] = []
    before = held()
    with journal.open(encoding="utf-8") as rows:
        for row in rows:
            record = json.loads(row)
            if record["type"] == "message":
                messages.append(_shared(from_json(record["message"]), messages))
    del row, record
    return held() - before


def _shared(message: Message, before: list[Message]) -> Message:
    ids = {call.id: call.id for call in before[-1].calls} if before else {}
    blocks = (replace(b, id=ids[b.id]) if isinstance(b, ToolResult) else b for b in message.blocks)
    return Message("user" if message.role == "user" else "assistant", tuple(blocks))


if __name__ == "__main__":
    if sys.argv[1] == "run":
        place = Path(sys.argv[4])
        for name in (WARM, MEASURED):
            (place / name).mkdir()
        grown = trio.run(measure, sys.argv[2], int(sys.argv[3]), place)
    else:
        grown = hold(Path(sys.argv[2]))
    sys.stdout.write(f"{grown}\n")
