"""Nurseries around a block, whose exceptions are raised as they are instead of in a group."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

import trio

Task: TypeAlias = Callable[[], Awaitable[object]]


@asynccontextmanager
async def beside(*tasks: Task, when_cancelled: Callable[[], object] = lambda: None) -> AsyncIterator[None]:
    """Run tasks for the duration of the block, and wait for them after it.

    A cancellation of the block does not cancel them.

    ``when_cancelled`` is called as soon as the block is cancelled, and again when the block has ended. A single
    exception of the block or of a task is raised as it is; several are raised as a group.
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
    """Run a task for the duration of the block, and cancel it on exit. Exceptions are raised as by ``bare_nursery``."""
    async with bare_nursery() as nursery:
        nursery.start_soon(task)
        yield
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def bare_nursery() -> AsyncIterator[trio.Nursery]:
    """Open a nursery that raises a single exception as it is, without a group around it.

    A group that a task raised itself stays a group.
    """
    try:
        async with trio.open_nursery() as nursery:
            yield nursery
        return
    except BaseExceptionGroup as group:
        raised = group
    raise raised if len(raised.exceptions) > 1 else raised.exceptions[0]


def unwrapped(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the exception inside nested groups of one, or the group if it holds several."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
