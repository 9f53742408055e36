"""Worker threads for one kind of work, with a limit of their own.

trio's limit of forty holds for the whole program. A thread that hangs, on a file system that does not respond, counts
towards it until it ends, and forty such tools would leave the journal without a thread to write with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

T = TypeVar("T")

MAX_THREADS = 40
"""Threads of one kind at the same time: as many as trio's own limit."""


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
