"""What late work costs beside early work, in one process: ``python growth.py WHAT NUMBER``.

``runs N``: CPU of a run near the N-th of a session, a line each, and near the tenth of that. ``iterations N``: CPU of
an iteration of one run, likewise. ``bytes N``: what the N-th run of a session adds to stream-json and to the traces,
and the tenth of that, as two pairs. ``chains N``: CPU per chain and iteration of N chains that run at once, and of
chains that run one after the other. ``commands N``: the seconds of N commands that do nothing, under the guard with
every protection that this machine has, and by ``trio.run_process``, as pairs.

It prints a list of pairs, the late figure first. The model is in the process and answers at once, so that all of the
time is the chain's; the journal is on the disk, and somebody reads the events.
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
from workload import looked_up, price

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
"""A figure is the mean of the N / WIDTH runs or iterations around it."""

RUNS = 50
"""Runs around the N-th whose bytes a figure is the mean of."""

ITERATIONS = 20
"""Of each of many chains."""


class Model:
    """Calls a small tool so often in each run, and then answers; ``noted(n)`` hears of the n-th call of a run."""

    name = "growth"

    def __init__(self, calls: int, noted: Callable[[int], object] = lambda n: None) -> None:
        self._calls = calls
        self._noted = noted
        self._asked = 0

    async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        await trio.lowlevel.checkpoint()
        self._asked += 1
        self._noted(self._asked)
        on_delta(Delta("text", "The next part."))
        if self._asked > self._calls:
            self._asked = 0
            return Reply(assistant([Text("That is all.")]), "end_turn")
        call = ToolCall(f"call_{id(self)}_{self._asked}", price.name, {"part": "hinge 40x40"})
        return Reply(assistant([Text("The next part."), call]), "tool_use")

    async def prepare(self) -> None:
        """There is nothing to prepare."""

    async def aclose(self) -> None:
        """There is nothing to give up."""


@cache
def settings(folder: Path) -> Settings:
    """The settings that all chains have in common."""
    path = folder / "config.yaml"
    path.write_text(
        "models: {default: offline}\nchains: {default: {tools: [], max_iterations: 10000000, timeout_s: 100000}}\n"
    )
    return load_settings(config=path, environ={}, cwd=folder, flags={})


@asynccontextmanager
async def opened(folder: Path, model: Model, *, traces: Path | None = None) -> AsyncIterator[Chain]:
    async with open_chain(
        settings(folder), workspace=folder, state=folder / "state", tools=[price], model=model, traces=traces
    ) as chain:
        yield chain


async def discard(feed: Feed) -> None:
    """Take every event."""
    while await feed.batch():
        pass


def mean(marks: list[float], at: int, width: int) -> float:
    """The mean distance of the marks from ``at`` on."""
    return (marks[at + width] - marks[at]) / width


async def iterations(count: int, folder: Path) -> list[tuple[float, float]]:
    marks: list[float] = []
    model = Model(count + count // WIDTH, lambda _: marks.append(time.process_time()))
    async with opened(folder, model) as chain, trio.open_nursery() as nursery:
        nursery.start_soon(discard, chain.feed())
        chain.start("Look up the price of every part.")
        await chain.wait_idle()
        nursery.cancel_scope.cancel()
    return [(mean(marks, count, count // WIDTH), mean(marks, count // 10, count // WIDTH))]


async def runs(count: int, folder: Path) -> list[tuple[float, float]]:
    marks: list[float] = []
    async with opened(folder, Model(0)) as chain:
        feed = chain.feed()
        for n in range(count + count // WIDTH + 1):
            marks.append(time.process_time())
            await one_run(chain, n)
            feed.take()
    return [(mean(marks, count, count // WIDTH), mean(marks, count // 10, count // WIDTH))]


async def sizes(count: int, folder: Path) -> list[tuple[float, float]]:
    told: list[float] = [0]
    traced: list[float] = [0]
    async with opened(folder, Model(0), traces=folder / "traces") as chain:
        feed = chain.feed()
        for n in range(count + RUNS):
            await one_run(chain, n)
            told.append(told[-1] + sum(len(json.dumps(to_json(event), default=str)) for event in feed.take()))
            assert chain.state.trace_path() is not None
            traced.append(traced[-1] + taken_away(chain.state.trace_path()))
    return [(mean(of, count, RUNS), mean(of, count // 10, RUNS)) for of in (told, traced)]


def taken_away(path: str) -> int:
    """The size of a trace that is not needed any more, without the conversation so far, which each begins with."""
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
    await together(1, folder)  # what a process does once
    alone = 0.0
    rounds = max(count // 10, 1)
    for _ in range(rounds):
        alone += await together(1, folder)
    return [(await together(count, folder) / count, alone / rounds)]


async def together(count: int, folder: Path) -> float:
    """CPU seconds per iteration of so many chains, all of them."""
    begin, over = trio.Event(), trio.Event()
    left = count

    async def one(task_status: trio.TaskStatus[None]) -> None:
        nonlocal left
        async with opened(folder, Model(ITERATIONS - 1)) as chain, trio.open_nursery() as readers:
            readers.start_soon(discard, chain.feed())
            task_status.started()
            await begin.wait()
            chain.start("Look up the price of every part.")
            await chain.wait_idle()
            assert chain.runs.last_status == "done"
            left -= 1
            if not left:
                over.set()
            await over.wait()
            readers.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            await nursery.start(one)
        before = time.process_time()
        begin.set()
        await over.wait()
        return (time.process_time() - before) / ITERATIONS


async def commands(count: int, folder: Path) -> list[tuple[float, float]]:
    found, command = probe(), ["/bin/true"]
    box = Fence(
        writable=[str(folder), *fence.DEVICES] if found.writes else None,
        network=found.network,
        signals=found.signals,
        namespace=found.namespace,
    )
    guard, pairs = Guard(), list[tuple[float, float]]()
    try:
        for _ in range(count + 1):  # the first starts the guard
            begun = time.perf_counter()
            await guard.run(command, cwd=folder, env=os.environ, on_output=lambda _: None, fence=box)
            guarded = time.perf_counter() - begun
            begun = time.perf_counter()
            await trio.run_process(command)
            pairs.append((guarded, time.perf_counter() - begun))
    finally:
        await guard.close()
    return pairs[1:]


WHAT = {
    "runs": runs,
    "iterations": iterations,
    "bytes": sizes,
    "chains": chains,
    "commands": commands,
}


async def main(what: str, count: int) -> list[tuple[float, float]]:
    with TemporaryDirectory() as folder:
        return await WHAT[what](count, Path(folder))


if __name__ == "__main__":
    assert looked_up("a part")
    sys.stdout.write(json.dumps(trio.run(main, sys.argv[1], int(sys.argv[2]))) + "\n")
