"""Waiting for a change: no wake-up is lost, however many wait."""

import trio
from trio.testing import wait_all_tasks_blocked

from chain.concurrency.wakeup import Wakeup


async def test_one_set_wakes_all_waiters() -> None:
    wakeup, woken = Wakeup(), list[int]()

    async def wait(n: int) -> None:
        await wakeup.wait()
        woken.append(n)

    async with trio.open_nursery() as nursery:
        for n in range(3):
            nursery.start_soon(wait, n)
        await wait_all_tasks_blocked()
        assert woken == []
        wakeup.set()
    assert sorted(woken) == [0, 1, 2]


async def test_a_set_without_waiters_ends_one_wait() -> None:
    wakeup = Wakeup()
    for _ in range(2):
        wakeup.set()
    await wakeup.wait()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wakeup.wait)
            await wait_all_tasks_blocked()
            scope.cancel()
    assert scope.cancelled_caught


async def test_a_cancelled_wait_uses_up_nothing() -> None:
    wakeup = Wakeup()
    with trio.CancelScope() as scope:
        scope.cancel()
        await wakeup.wait()
    wakeup.set()
    await wakeup.wait()


async def test_a_closed_wakeup_never_blocks() -> None:
    wakeup = Wakeup()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wakeup.wait)
        await wait_all_tasks_blocked()
        wakeup.close()
    for _ in range(2):  # one set would end one wait only
        await wakeup.wait()
