"""Resume a long session: ``python resuming.py ITERATIONS``.

Writes the journal of a session of one run with this many iterations, a tool call each, opens it, and prints the seconds
until it could be used, the bytes by which the peak of the memory grew, and those of the journal.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio
from memory import held, peak

from chain import messages
from chain.app.open import open_chain
from chain.config.load import load_settings
from chain.journal import json as record_json
from chain.journal import records
from chain.messages import Text, ToolCall, ToolResult, Usage, assistant, tool_results, user_text

ID = "20260101-120000-abcdef"
RESULT = "docs/products.md:12: SKU 4711 is checked before it is shipped, and once more when it comes back. " * 8


@dataclass
class Written:
    """A journal that is made up: what a run writes, record by record."""

    seq: int = 0
    calls: int = 0
    rows: list[bytes] = field(default_factory=list)

    def add(self, record: records.Record) -> bytes:
        self.seq += 1
        raw = {"type": record.type, "seq": self.seq, "time": 1.75e9 + self.seq, **record_json.to_json(record)}
        return json.dumps(raw, separators=(",", ":")).encode() + b"\n"

    def run(self, iterations: int) -> Iterator[bytes]:
        id = "L1"
        yield self.add(records.Line(id, "look for the SKU", "verbatim", "next", "main"))
        yield self._message(user_text("look for the SKU"), line_ids=(id,), point="start")
        yield self.add(records.Receipt(id, "delivered", "main", 0, "start", 0.001))
        for n in range(1, iterations + 1):
            call = f"call_{self.calls}"
            self.calls += 1
            yield self.add(records.RequestSent("main", n, "0" * 16, "0" * 16, iterations + 1))
            yield self.add(records.RequestEnded("main", n, "tool_use", Usage(1_000, 20)))
            said = assistant([Text(f"I look once more, step {n}."), ToolCall(call, "search_files", {"pattern": "SKU"})])
            yield self._message(said)
            yield self.add(records.ToolStarted(call, "search_files", "main"))
            yield self.add(records.ToolFinished(call, "main", False, 0.01))
            yield self._message(tool_results([ToolResult(call, RESULT)]))
        yield self.add(records.RequestSent("main", iterations + 1, "0" * 16, "0" * 16, iterations + 1))
        yield self.add(records.RequestEnded("main", iterations + 1, "end_turn", Usage(1_000, 20)))
        yield self._message(assistant([Text("That is all.")]))
        yield self.add(
            records.Result("done", "That is all.", iterations + 1, Usage(1_000 * iterations, 20 * iterations))
        )

    def _message(self, message: messages.Message, **more: Any) -> bytes:
        return self.add(records.Message(message, "main", "root", **more))


def write(path: Path, workspace: Path, iterations: int) -> None:
    written = Written()
    with path.open("wb") as file:
        file.write(written.add(records.Session(ID, "0.1.0", "offline", str(workspace))))
        file.writelines(written.run(iterations))


async def open_once(workspace: Path, state: Path) -> tuple[float, int]:
    settings = load_settings(config=None, environ={"CHAIN_MODEL": "offline"}, cwd=workspace, flags={})
    before, began = held(), time.perf_counter()
    async with open_chain(settings, workspace=workspace, state=state, interactive=True, resume=ID) as chain:
        took = time.perf_counter() - began
        assert chain.resumed is not None
        return took, peak() - before


def main(iterations: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        workspace, state = Path(place) / "workspace", Path(place) / "state"
        workspace.mkdir()
        (state / "sessions").mkdir(parents=True)
        path = state / "sessions" / f"{ID}.jsonl"
        write(path, workspace, iterations)
        seconds, grown = trio.run(open_once, workspace, state)
        sys.stdout.write(f"{seconds:.3f} {grown} {path.stat().st_size}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
