"""Waiting for a change: no wake-up is lost, however many wait."""

import trio
from trio.testing import wait_all_tasks_blocked

from chain.concurrency.wakeup import Wakeup


async def test_all_who_wait_are_woken_by_one_set() -> None:
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


async def test_what_was_set_while_nobody_waited_ends_one_wait() -> None:
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


async def test_a_wait_that_was_cancelled_leaves_the_wake_up_to_the_next() -> None:
    signal = Wakeup()
    with trio.CancelScope() as scope:
        scope.cancel()
        await signal.wait()
    signal.set()
    await signal.wait()


async def test_nobody_waits_for_one_that_is_closed() -> None:
    signal = Wakeup()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(signal.wait)
        await wait_all_tasks_blocked()
        signal.close()
    for _ in range(2):
        await signal.wait()
