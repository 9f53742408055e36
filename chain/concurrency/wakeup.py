"""A wake-up for tasks that wait for a change of shared state."""

from __future__ import annotations

import trio


class Wakeup:
    """An event for tasks that wait for changes. It resets itself when the tasks wake.

    No wake-up is lost: if no task waits when ``set`` is called, the next ``wait`` returns at once. Several calls of
    ``set`` before that count as one. So ``wait`` may return for a change that the task has already seen: check the
    condition in a loop, with no ``await`` between the check and ``wait``.
    """

    def __init__(self) -> None:
        self._event = trio.Event()
        self._is_closed = False

    def set(self) -> None:
        """Wake every waiting task. Call it in trio's thread."""
        self._event.set()

    def close(self) -> None:
        """Wake every waiting task, and make every ``wait`` return at once from now on."""
        self._is_closed = True
        self._event.set()

    async def wait(self) -> None:
        """Wait until ``set`` is called. Return at once if it was called since the last ``wait`` returned.

        This is always a checkpoint.
        """
        event = self._event
        await event.wait()
        # All tasks that waited for this event wake; the first of them replaces it.
        if event is self._event and not self._is_closed:
            self._event = trio.Event()
