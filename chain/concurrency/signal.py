"""A wake-up for tasks that wait for a change of shared state."""

from __future__ import annotations

import trio


class Signal:
    """Wakes all tasks that wait for a change.

    No wake-up is lost: if no task waits, the next ``wait`` returns at once. Several calls of ``set`` before that count
    as one. A wait can therefore end for a change that was seen already: check the condition in a loop, with no await
    between the check and ``wait``.
    """

    def __init__(self) -> None:
        self._event = trio.Event()
        self._is_closed = False

    def set(self) -> None:
        """Wake every task that waits. Call it in trio's thread."""
        self._event.set()

    def close(self) -> None:
        """Make every ``wait`` return at once from now on, because nothing will change any more."""
        self._is_closed = True
        self._event.set()

    async def wait(self) -> None:
        """Wait until ``set`` is called, or return at once if it was called since the last wait. Always a checkpoint."""
        event = self._event
        await event.wait()
        # All who waited for this one wake; the first of them makes the next.
        if event is self._event and not self._is_closed:
            self._event = trio.Event()
