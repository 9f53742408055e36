"""Worker threads for one kind of work, with a limit of their own, and work that a disk must not hold up for long.

trio's limit of forty holds for the whole program. A thread that hangs, on a file system that does not respond, counts
towards it until it ends, and forty such tools would leave the journal without a thread to write with.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import trio

T = TypeVar("T")

MAX_THREADS = 40
"""Threads of one kind at the same time: as many as trio's own limit."""

QUICK_S = 0.025
"""How long a write may hold up everything else: shorter than what somebody who types would notice."""


def quickly(
    work: Callable[[], object], seconds: float = QUICK_S, *, when_late: Callable[[], object] = lambda: None
) -> bool:
    """Run work in a thread, and wait so many seconds for it at most (-1: however long it takes). Whether it has ended.

    All but a disk that hangs ends it at once. What the work raises is lost. ``when_late`` is called in the thread when
    work that was not waited for has ended.
    """
    ended, decided = threading.Lock(), threading.Lock()
    ended.acquire()

    def end(_: object) -> None:
        ended.release()
        if not decided.acquire(blocking=False):
            when_late()

    try:
        trio.lowlevel.start_thread_soon(work, end)
    except RuntimeError:  # there is no thread to be had
        with suppress(Exception):
            work()
        return True
    # The thread is the first to come to ``decided`` if it has ended just now.
    return ended.acquire(timeout=seconds) or not decided.acquire(blocking=False)


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
