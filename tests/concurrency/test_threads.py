"""Limited threads: work waits only for threads of its own kind, and abandoned ones do not count in a later run."""

from __future__ import annotations

from functools import partial
from threading import Event

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from chain.concurrency.threads import Threads


async def test_work_does_not_wait_for_other_threads() -> None:
    gate, ours, others = Event(), Threads("ours", 2), Threads("others", 2)
    too_many = trio.to_thread.current_default_thread_limiter().total_tokens + 1
    run_by_trio = partial(trio.to_thread.run_sync, gate.wait, abandon_on_cancel=True)
    try:
        async with trio.open_nursery() as nursery:
            for run in (run_by_trio, partial(others.run, gate.wait, abandon_on_cancel=True)):
                for _ in range(too_many):
                    nursery.start_soon(run)
            await wait_all_tasks_blocked()
            assert await ours.run(lambda: True)
            nursery.cancel_scope.cancel()
    finally:
        gate.set()


async def test_work_waits_for_threads_of_its_kind(autojump_clock: MockClock) -> None:
    gate, ours = Event(), Threads("ours", 1)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(ours.run, gate.wait, abandon_on_cancel=True))
            await wait_all_tasks_blocked()
            with trio.move_on_after(1) as limit:
                await ours.run(lambda: None)
            assert limit.cancelled_caught
            nursery.cancel_scope.cancel()
    finally:
        gate.set()


def test_abandoned_threads_do_not_count_in_later_runs() -> None:
    gate, ours = Event(), Threads("ours", 1)

    async def abandon_thread() -> None:
        with trio.move_on_after(0.001):
            await ours.run(gate.wait, abandon_on_cancel=True)

    async def work() -> bool:
        return await ours.run(lambda: True)

    try:
        trio.run(abandon_thread)
        assert trio.run(work)
    finally:
        gate.set()
