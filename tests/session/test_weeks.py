"""A session that stays open for weeks: no resource grows with its runs, except the journal."""

from __future__ import annotations

import itertools
import os
import threading
import tracemalloc
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
from support.examples import fewer
from support.places import Place

RUNS = fewer(150, divided_by=3)
"""The number of runs between two measurements."""


@dataclass(frozen=True)
class Measured:
    """The resources that a session uses. ``bytes`` is the size of its journal."""

    memory: int
    bytes: int
    files: int = field(default_factory=lambda: len(os.listdir("/proc/self/fd")))
    threads: int = field(default_factory=threading.active_count)
    tasks: int = field(default_factory=lambda: trio.lowlevel.current_statistics().tasks_living)


@pytest.mark.slow
async def test_late_runs_use_no_more_than_early_ones(tmp_path: Path) -> None:
    place = Place(tmp_path, tmp_path, "rules: [{text: The answer.}]")
    async with place.open() as chain, trio.open_nursery() as nursery:
        feed = chain.feed()

        async def show() -> None:
            while await feed.batch():
                pass

        async def stretch() -> Measured:
            await place.ask(chain, *["the same question"] * RUNS)
            place.heard.clear()
            place.model.requests.clear()
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
