"""Waiting for a change: no wake-up is lost, however many wait."""

import trio
from trio.testing import wait_all_tasks_blocked

from chain.concurrency.wakeup import Wakeup


async def test_one_set_wakes_all_waiters() -> None:
    signal, woken = Wakeup(), list[int]()

    async def wait(n: int) -> None:
        await signal.wait()
        woken.append(n)

    async with trio.open_nursery() as nursery:
        for n in range(3):
            nursery.start_soon(wait, n)
        await wait_all_tasks_blocked()
        assert woken == []
        signal.set()
    assert sorted(woken) == [0, 1, 2]


async def test_a_set_without_waiters_ends_one_wait() -> None:
    signal = Wakeup()
    signal.set()
    signal.set()
    await signal.wait()

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(signal.wait)
            await wait_all_tasks_blocked()
            scope.cancel()
    assert scope.cancelled_caught


async def test_a_cancelled_wait_uses_up_nothing() -> None:
    signal = Wakeup()
    with trio.CancelScope() as scope:
        scope.cancel()
        await signal.wait()
    signal.set()
    await signal.wait()


async def test_a_closed_wakeup_never_blocks() -> None:
    signal = Wakeup()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(signal.wait)
        await wait_all_tasks_blocked()
        signal.close()
    for _ in range(2):
        await signal.wait()
