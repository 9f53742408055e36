"""Threads of one kind: they wait for their own kind alone, and a program that runs twice has all of them twice."""

from __future__ import annotations

from functools import partial
from threading import Event

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from chain.concurrency.threads import Threads


@pytest.mark.parametrize("hung", ["trio's own", "of another kind", "of the same kind"])
async def test_work_waits_only_for_its_own_threads(hung: str) -> None:
    gate, ours, others = Event(), Threads("ours", 2), Threads("others", 2)
    run = {
        "trio's own": partial(trio.to_thread.run_sync, gate.wait, abandon_on_cancel=True),
        "of another kind": partial(others.run, gate.wait, abandon_on_cancel=True),
        "of the same kind": partial(ours.run, gate.wait, abandon_on_cancel=True),
    }[hung]
    done: list[bool] = []

    async def work() -> None:
        done.append(await ours.run(lambda: True))

    try:
        async with trio.open_nursery() as nursery:
            for _ in range(trio.to_thread.current_default_thread_limiter().total_tokens + 1):
                nursery.start_soon(run)
            await wait_all_tasks_blocked()
            if hung != "of the same kind":
                await work()
            else:
                nursery.start_soon(work)
                await wait_all_tasks_blocked()
                assert done == []
            nursery.cancel_scope.cancel()
    finally:
        gate.set()


def test_abandoned_threads_do_not_count_in_later_runs() -> None:
    gate, ours = Event(), Threads("ours", 1)

    async def leave_behind() -> None:
        with trio.move_on_after(0.001):
            await ours.run(gate.wait, abandon_on_cancel=True)

    async def work() -> bool:
        return await ours.run(lambda: True)

    try:
        trio.run(leave_behind)
        assert trio.run(work)
    finally:
        gate.set()
