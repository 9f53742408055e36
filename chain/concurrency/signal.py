"""The one way to wait for a change of something that others hold."""

from __future__ import annotations

import trio


class Signal:
    """Wakes those who wait for a change, however many they are.

    No wake-up is lost: a ``set`` that finds nobody waiting lets the next ``wait`` return at once. Several before that
    count as one. So a wait may also end for a change that was seen already: look in a loop at what is waited for, with
    no await between the look and the wait.
    """

    def __init__(self) -> None:
        self._event = trio.Event()
        self._is_closed = False

    def set(self) -> None:
        """Wake everybody who waits, in trio's thread."""
        self._event.set()

    def close(self) -> None:
        """Let nobody wait from now on: nothing will change any more."""
        self._is_closed = True
        self._event.set()

    async def wait(self) -> None:
        """Wait for a ``set`` that no wait has ended for yet; always a checkpoint."""
        event = self._event
        await event.wait()
        # All who waited for this one wake; the first of them makes the next.
        if event is self._event and not self._is_closed:
            self._event = trio.Event()
