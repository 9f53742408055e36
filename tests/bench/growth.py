"""How costs grow: ``python growth.py WHAT N`` prints a list of pairs of figures that are to be compared.

* ``runs``: the CPU of a run near the N-th of a session, and near the N/10-th.
* ``iterations``: the CPU of an iteration near the N-th of a run, and near the N/10-th.
* ``bytes``: the bytes that a run near the N-th of a session adds to stream-json, and one near the N/10-th; then the
  same for traces.
* ``chains``: the CPU for each chain and iteration, of N concurrent chains and of one chain.
* ``commands``: the seconds of a command that does nothing, under the guard with every protection of this machine and
  by ``trio.run_process``. There are N pairs.

The model is in the process and answers immediately, so all the time is the chain's. The journal is on the disk, and
the events are read.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import trio
from workload import price

from chain.app.open import open_chain
from chain.chain import Chain
from chain.config.load import Settings, load_settings
from chain.messages import Text, ToolCall, assistant
from chain.model import Delta, Reply, Request
from chain.session.event_json import to_json
from chain.session.feed import Feed
from chain.tools.processes import fence
from chain.tools.processes.fence import Fence
from chain.tools.processes.guarded import Guard
from chain.tools.processes.probe import probe

WIDTH = 20
"""A figure of ``runs`` and ``iterations`` is the mean of N / WIDTH of them."""
SIZED_RUNS = 50
"""A figure of ``bytes`` is the mean of this many runs."""
ITERATIONS = 20
"""The iterations of each chain of ``chains``."""
QUERY = "Look up the price of every part."


class Model:
    """A model that calls a small tool ``calls`` times in each run, and ``on_reply`` before each reply."""

    name = "growth"

    def __init__(self, calls: int, on_reply: Callable[[], object] = lambda: None) -> None:
        self._calls = calls
        self._on_reply = on_reply
        self._replies = 0

    async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        await trio.lowlevel.checkpoint()
        self._replies += 1
        self._on_reply()
        on_delta(Delta("text", "The next part."))
        if self._replies > self._calls:
            self._replies = 0
            return Reply(assistant([Text("That is all.")]), "end_turn")
        call = ToolCall(f"call_{id(self)}_{self._replies}", price.name, {"part": "hinge 40x40"})
        return Reply(assistant([Text("The next part."), call]), "tool_use")

    async def prepare(self) -> None:
        """Do nothing."""

    async def aclose(self) -> None:
        """Do nothing."""


@cache
def settings(folder: Path) -> Settings:
    path = folder / "config.yaml"
    path.write_text(
        "models: {default: offline}\nchains: {default: {tools: [], max_iterations: 10000000, timeout_s: 100000}}\n"
    )
    return load_settings(config=path, environ={}, cwd=folder, flags={})


@asynccontextmanager
async def ready_chain(folder: Path, model: Model, *, traces: Path | None = None) -> AsyncIterator[tuple[Chain, Feed]]:
    async with open_chain(
        settings(folder), workspace=folder, state=folder / "state", tools=[price], model=model, traces=traces
    ) as chain:
        yield chain, chain.feed()


@asynccontextmanager
async def reading(feed: Feed) -> AsyncIterator[None]:
    """Read every event for the duration of the block."""

    async def read() -> None:
        while await feed.batch():
            pass

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        yield
        nursery.cancel_scope.cancel()


def late_and_early(marks: list[float], count: int, width: int) -> tuple[float, float]:
    """Return the mean distance of ``width`` marks after the ``count``-th, and after a tenth of that."""
    late, early = ((marks[at + width] - marks[at]) / width for at in (count, count // 10))
    return late, early


async def iterations(count: int, folder: Path) -> list[tuple[float, float]]:
    marks: list[float] = []
    model = Model(count + count // WIDTH, lambda: marks.append(time.process_time()))
    async with ready_chain(folder, model) as (chain, feed), reading(feed):
        chain.start(QUERY)
        await chain.wait_idle()
    return [late_and_early(marks, count, count // WIDTH)]


async def runs(count: int, folder: Path) -> list[tuple[float, float]]:
    marks: list[float] = []
    async with ready_chain(folder, Model(0)) as (chain, feed):
        for n in range(count + count // WIDTH + 1):
            marks.append(time.process_time())
            await one_run(chain, n)
            feed.take()
    return [late_and_early(marks, count, count // WIDTH)]


async def sizes(count: int, folder: Path) -> list[tuple[float, float]]:
    streamed, traced = [0.0], [0.0]
    async with ready_chain(folder, Model(0), traces=folder / "traces") as (chain, feed):
        for n in range(count + SIZED_RUNS):
            await one_run(chain, n)
            size = sum(len(json.dumps(to_json(event), default=str)) for event in feed.take())
            streamed.append(streamed[-1] + size)
            path = chain.state.trace_path()
            assert path is not None
            traced.append(traced[-1] + remove_trace(path))
    return [late_and_early(sums, count, SIZED_RUNS) for sums in (streamed, traced)]


def remove_trace(path: str) -> int:
    """Remove a trace and return its size without the earlier conversation, which each begins with."""
    text = Path(path).read_text(encoding="utf-8")
    os.unlink(path)
    first = next(step for step in json.loads(text)["steps"] if step["type"] == "request")
    return len(text) - len(json.dumps(first["messages"][:-1], ensure_ascii=False))


async def one_run(chain: Chain, n: int) -> None:
    chain.submit(f"line {n:06}")
    await chain.wait_idle()


async def chains(count: int, folder: Path) -> list[tuple[float, float]]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 3 * count)), hard))
    await run_concurrently(1, folder)  # warms up the process
    rounds = max(count // 10, 1)
    alone = sum([await run_concurrently(1, folder) for _ in range(rounds)])
    return [(await run_concurrently(count, folder) / count, alone / rounds)]


async def run_concurrently(count: int, folder: Path) -> float:
    """Return the CPU seconds per iteration of this many concurrent chains, all together."""
    start, all_done = trio.Event(), trio.Event()
    active = count

    async def run_chain(task_status: trio.TaskStatus[None]) -> None:
        nonlocal active
        async with ready_chain(folder, Model(ITERATIONS - 1)) as (chain, feed), reading(feed):
            task_status.started()
            await start.wait()
            chain.start(QUERY)
            await chain.wait_idle()
            assert chain.runs.last_status == "done"
            active -= 1
            if not active:
                all_done.set()
            await all_done.wait()

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            await nursery.start(run_chain)
        before = time.process_time()
        start.set()
        await all_done.wait()
        return (time.process_time() - before) / ITERATIONS


async def commands(count: int, folder: Path) -> list[tuple[float, float]]:
    supported, command = probe(), ["/bin/true"]
    protections = Fence(
        writable=[str(folder), *fence.DEVICES] if supported.writes else None,
        network=supported.network,
        signals=supported.signals,
        namespace=supported.namespace,
    )
    guard, pairs = Guard(), list[tuple[float, float]]()
    try:
        for _ in range(count + 1):
            start = time.perf_counter()
            await guard.run(command, cwd=folder, env=os.environ, on_output=lambda _: None, fence=protections)
            guarded = time.perf_counter() - start
            start = time.perf_counter()
            await trio.run_process(command)
            pairs.append((guarded, time.perf_counter() - start))
    finally:
        await guard.close()
    return pairs[1:]  # the first command also started the guard


WHAT = {"runs": runs, "iterations": iterations, "bytes": sizes, "chains": chains, "commands": commands}


async def main(what: str, count: int) -> list[tuple[float, float]]:
    with TemporaryDirectory() as folder:
        return await WHAT[what](count, Path(folder))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(trio.run(main, sys.argv[1], int(sys.argv[2]))) + "\n")
