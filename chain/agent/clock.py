"""Time limits that stand still while the user is asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import trio


class Clock:
    """The time limit of a cancel scope. It may be held by several who ask; it goes on when the last has its answer."""

    def __init__(self, scope: trio.CancelScope) -> None:
        self._scope = scope
        self._holders = 0
        self._left_s = 0.0

    @contextmanager
    def held(self) -> Iterator[None]:
        """Stand still for the time of this block."""
        if self._holders == 0:
            self._left_s = self._scope.deadline - trio.current_time()
            self._scope.deadline = float("inf")
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1
            if self._holders == 0:
                self._scope.deadline = trio.current_time() + self._left_s


@contextmanager
def all_held(clocks: tuple[Clock, ...]) -> Iterator[None]:
    """Hold several clocks for the time of this block."""
    with ExitStack() as stack:
        for clock in clocks:
            stack.enter_context(clock.held())
        yield
