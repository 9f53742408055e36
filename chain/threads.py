"""Worker threads for one kind of work, apart from everybody else's.

trio has forty for all of a program. A tool whose thread hangs, on a file system that does not answer, keeps its place
among them, and forty such tools would keep the journal from the disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

T = TypeVar("T")

MOST = 40
"""Threads of one kind at the same time: as many as trio has for everybody."""


class Threads:
    """Threads for the work called ``name``, for whoever runs under one ``trio.run``."""

    def __init__(self, name: str, most: int = MOST) -> None:
        self._most = most
        self._limiter: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar(name)

    async def run(self, work: Callable[[], T], *, abandon_on_cancel: bool = False) -> T:
        """Run ``work`` in a thread; ``abandon_on_cancel`` leaves it behind when the caller is cancelled."""
        try:
            limiter = self._limiter.get()
        except LookupError:
            limiter = trio.CapacityLimiter(self._most)
            self._limiter.set(limiter)
        return await trio.to_thread.run_sync(work, abandon_on_cancel=abandon_on_cancel, limiter=limiter)
