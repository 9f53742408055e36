"""Nurseries around a block that raise a single exception without a group."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

import trio

Task: TypeAlias = Callable[[], Awaitable[object]]


@asynccontextmanager
async def background_tasks(*tasks: Task, when_cancelled: Callable[[], object] = lambda: None) -> AsyncIterator[None]:
    """Run tasks for the duration of the block, then wait until all tasks have ended.

    A cancellation of the block does not cancel the tasks. ``when_cancelled`` is called once: when the block is
    cancelled, or otherwise when it has ended. A single exception of the block or of a task is raised without a group;
    several exceptions are raised as a group.
    """

    async def run_shielded(task: Task) -> None:
        # The tasks outlive the block, so that its last records are synced and emitted. Each task ends by itself.
        with trio.CancelScope(shield=True):
            await task()

    async def wait_for_cancellation() -> None:
        try:
            await trio.sleep_forever()
        finally:
            when_cancelled()

    async with open_bare_nursery() as nursery:
        nursery.start_soon(wait_for_cancellation)
        for task in tasks:
            nursery.start_soon(run_shielded, task)
        yield
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def background_task(task: Task) -> AsyncIterator[None]:
    """Run a task for the duration of the block; cancel it on exit.

    A single exception of the block or of the task is raised without a group.
    """
    async with open_bare_nursery() as nursery:
        nursery.start_soon(task)
        yield
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_bare_nursery() -> AsyncIterator[trio.Nursery]:
    """Open a nursery that raises a single exception without a group around it.

    Several exceptions are raised as a group. An exception group that a task raised is not changed.
    """
    try:
        async with trio.open_nursery() as nursery:
            yield nursery
        return
    except BaseExceptionGroup as group:
        raised = group
    raise raised if len(raised.exceptions) > 1 else raised.exceptions[0]


def unwrap_group(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the only exception in a group, which may be nested. If a group contains several, return that group."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
