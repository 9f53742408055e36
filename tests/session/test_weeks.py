"""A session that stays open for weeks, and a disk that does not keep up: nothing grows, and nobody waits."""

from __future__ import annotations

import itertools
import os
import threading
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
from support import settings
from support.examples import fewer
from support.gate import TWO_STEPS, Gate

from chain import events
from chain.app.open import open_chain
from chain.chain import Chain
from chain.journal import file as journal
from chain.providers.scripted.scripted_model import ScriptedModel

RUNS = fewer(150, divided_by=3)
"""Runs of one stretch."""

GUARD_S = 60
"""A disk that stands for longer than this waits for a loop that waits for it."""


@asynccontextmanager
async def opened(folder: Path, rules: str, *gates: Gate) -> AsyncIterator[Chain]:
    """A chain whose journal is on the disk."""
    tools = [gate.tool for gate in gates]
    model = ScriptedModel.parse(rules)
    use = settings(inbox_size=20)
    async with open_chain(use, workspace=folder, state=folder, tools=tools, model=model, interactive=True) as chain:
        yield chain


@dataclass(frozen=True)
class Measured:
    """What a session has used by now. ``bytes`` are those of its journal."""

    memory: int
    bytes: int
    files: int = field(default_factory=lambda: len(os.listdir("/proc/self/fd")))
    threads: int = field(default_factory=threading.active_count)
    tasks: int = field(default_factory=lambda: trio.lowlevel.current_statistics().tasks_living)


@pytest.mark.slow
async def test_the_last_of_many_runs_takes_what_the_first_ones_did(tmp_path: Path) -> None:
    async with opened(tmp_path, "rules: [{text: The answer.}]") as chain, trio.open_nursery() as nursery:
        feed = chain.feed()

        async def show() -> None:
            while await feed.batch():
                pass

        async def stretch() -> Measured:
            for _ in range(RUNS):
                chain.submit("the same question")
                await chain.wait_idle()
            assert chain.journal_path is not None
            return Measured(tracemalloc.get_traced_memory()[0], chain.journal_path.stat().st_size)

        nursery.start_soon(show)
        tracemalloc.start()
        try:
            at = [await stretch() for _ in range(4)]
        finally:
            tracemalloc.stop()
        nursery.cancel_scope.cancel()
    assert {(each.files, each.tasks) for each in at} == {(at[0].files, at[0].tasks)}
    # trio keeps idle workers for 10 s, and starts another one where a busy machine has not marked one as idle yet.
    assert max(each.threads for each in at) - at[0].threads < 3, "no run keeps a thread"
    _, *memory = (after.memory - before.memory for before, after in itertools.pairwise(at))
    assert max(memory) < 1.3 * min(memory), "each run keeps its messages and its receipt, and nothing else"
    written = [after.bytes - before.bytes for before, after in itertools.pairwise(at)]
    assert max(written) < 1.05 * min(written), "but for the digits of its numbers each run writes the same"


async def test_nothing_waits_for_a_disk_that_stands_but_what_must(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, sync = threading.Event(), journal._fdatasync

    def stand(fd: int) -> None:
        assert disk.wait(GUARD_S)
        sync(fd)

    gate = Gate()
    heard: list[events.Event] = []
    async with opened(tmp_path, TWO_STEPS, gate) as chain:
        chain.listen(heard.append)
        chain.submit("Do the task")
        await gate.started.wait()
        monkeypatch.setattr(journal, "_fdatasync", stand)
        # The disk goes on only when the loop says so: were a step of it to wait for the disk, nothing would.
        lines = [chain.submit(f"line {n}").id for n in range(9)]
        chain.lines.drop(lines.pop())
        chain.submit("todo: add buy milk")
        for _ in range(1_000):
            await trio.lowlevel.checkpoint()
        assert [accepted.id for accepted in chain.lines.waiting][:8] == lines
        assert not [event for event in heard if isinstance(event, events.LineQueued)], "I6: nobody was told"
        assert chain.journal_path is not None
        assert chain.journal_path.read_bytes().count(b'{"type":"line"') == 11, "they are in the file"
        gate.open.set()
        for _ in range(1_000):
            await trio.lowlevel.checkpoint()
        assert chain.is_running, "a request that carries the lines waits for them"
        disk.set()
        await chain.wait_idle()
        assert chain.runs.last_status == "done"
        assert [event.id for event in heard if isinstance(event, events.LineQueued)][:8] == lines
