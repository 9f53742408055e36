"""Worker threads for one kind of work with a limit of their own, time limits, and the garbage collector.

trio's limit of forty holds for the whole program. A thread that hangs, on a file system that does not respond, counts
towards it until it ends, and forty such tools would leave the journal without a thread to write with.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import trio

T = TypeVar("T")

MAX_THREADS = 40
"""Threads of one kind at the same time: as many as trio's own limit."""


def run_with_timeout(work: Callable[[], object], timeout: float) -> bool:
    """Run ``work`` in a thread and wait up to ``timeout`` seconds. Return whether it finished.

    The calling thread is blocked meanwhile. Work that does not finish in time goes on, and its exceptions are lost.
    """
    finished = threading.Event()
    try:
        trio.lowlevel.start_thread_soon(work, lambda _: finished.set())
    except RuntimeError:  # there is no thread to be had
        with suppress(Exception):
            work()
        return True
    return finished.wait(timeout)


@contextmanager
def without_collector() -> Iterator[None]:
    """Disable the garbage collector for a block, such as an import, and then exempt the objects that exist.

    A collection stops every thread: after reading a session of 10,000 iterations, for 0.2 s.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if was_on:
            gc.enable()


class Threads:
    """Threads for the work called ``name``; each ``trio.run`` has a limit of its own."""

    def __init__(self, name: str, limit: int = MAX_THREADS) -> None:
        self._limit = limit
        self._limiter: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar(name)

    async def run(self, work: Callable[[], T], *, abandon_on_cancel: bool = False) -> T:
        """Run ``work`` in a thread. With ``abandon_on_cancel`` a cancelled caller does not wait for it to end."""
        try:
            limiter = self._limiter.get()
        except LookupError:
            limiter = trio.CapacityLimiter(self._limit)
            self._limiter.set(limiter)
        return await trio.to_thread.run_sync(work, abandon_on_cancel=abandon_on_cancel, limiter=limiter)
