"""Tasks beside a block, whose exceptions come out as they are and not in a group."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

import trio

Task: TypeAlias = Callable[[], Awaitable[object]]


@asynccontextmanager
async def beside(*tasks: Task, when_cancelled: Callable[[], object] = lambda: None) -> AsyncIterator[None]:
    """Run tasks beside the block, and wait for them after it. What cancels the block leaves them alone.

    ``when_cancelled`` is called at once, since the block may take its time to end, and when it has ended. An exception
    that leaves the block, or a task, comes out as it is; several come out as a group.
    """

    async def shielded(task: Task) -> None:
        # These outlive the block, so that what it commits last is on the disk and told; each has an end of its own.
        with trio.CancelScope(shield=True):
            await task()

    async def wait_for_cancellation() -> None:
        try:
            await trio.sleep_forever()
        finally:
            when_cancelled()

    async with bare_nursery() as nursery:
        nursery.start_soon(wait_for_cancellation)
        for task in tasks:
            nursery.start_soon(shielded, task)
        yield
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def during(task: Task) -> AsyncIterator[None]:
    """Run a task beside the block, and cancel it at the end. Exceptions come out as with ``beside``."""
    async with bare_nursery() as nursery:
        nursery.start_soon(task)
        yield
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def bare_nursery() -> AsyncIterator[trio.Nursery]:
    """A nursery that wraps no single exception in a group; one that was raised as a group stays one."""
    try:
        async with trio.open_nursery() as nursery:
            yield nursery
        return
    except BaseExceptionGroup as group:
        raised = group
    raise raised if len(raised.exceptions) > 1 else raised.exceptions[0]


def unwrapped(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The exception inside groups of one, or the group of several."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
