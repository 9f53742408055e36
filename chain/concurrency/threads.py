"""Worker threads with a limit for each kind of work, time limits, and control of the garbage collector.

trio's limit of forty threads is for the whole program. A thread that hangs because a file system does not respond
counts towards this limit until it ends. With forty such threads the journal could no longer be synced.
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
"""The maximum number of threads for one kind of work at the same time: trio's own limit."""


def run_with_timeout(work: Callable[[], object], timeout: float) -> bool:
    """Run ``work`` in a thread and wait up to ``timeout`` seconds. Return whether it finished.

    The calling thread is blocked meanwhile. Work that does not finish in time continues. Exceptions of the work are
    lost. If no thread can be started, the work runs in the calling thread.
    """
    finished = threading.Event()
    try:
        trio.lowlevel.start_thread_soon(work, lambda _: finished.set())
    except RuntimeError:  # no thread can be started
        with suppress(Exception):
            work()
        return True
    return finished.wait(timeout)


@contextmanager
def without_collector() -> Iterator[None]:
    """Disable the garbage collector for a block, such as an import, then exempt all existing objects from collection.

    A collection pauses all threads, for example for 0.2 s after a session of 10,000 iterations was read.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if was_enabled:
            gc.enable()


class Threads:
    """Worker threads for one kind of work. ``limit`` is their maximum number in each ``trio.run``."""

    def __init__(self, name: str, limit: int = MAX_THREADS) -> None:
        self._limit = limit
        self._limiter: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar(name)

    async def run(self, work: Callable[[], T], *, abandon_on_cancel: bool = False) -> T:
        """Run ``work`` in a thread and return its result.

        With ``abandon_on_cancel``, a cancelled caller does not wait for the thread to end.
        """
        try:
            limiter = self._limiter.get()
        except LookupError:
            limiter = trio.CapacityLimiter(self._limit)
            self._limiter.set(limiter)
        return await trio.to_thread.run_sync(work, abandon_on_cancel=abandon_on_cancel, limiter=limiter)
