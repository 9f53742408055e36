"""The signals that end the program."""

from __future__ import annotations

import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType

import trio

from cli.ending import code_of, exit_at_once
from cli.screen import tty

LEAVING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

UNRECEIVED_S = 1.0
"""A signal ends the program if an earlier one has not been received for this long: something blocks the program."""


class Signals:
    """The signals, one by one."""

    def __init__(self, received: AsyncIterator[int]) -> None:
        self._received = received
        self._waiting_since: float | None = None

    def __aiter__(self) -> Signals:
        return self

    async def __anext__(self) -> int:
        number = await self._received.__anext__()
        self._waiting_since = None
        return number

    def record(self, then: Callable[[int, FrameType | None], object], number: int, frame: FrameType | None) -> None:
        """Record that a signal came, and call trio's handler. It may run at any place of the program."""
        now = time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        elif number in LEAVING and now - self._waiting_since > UNRECEIVED_S:
            # What was acknowledged is on the disk, so nothing is lost.
            tty.restore()
            exit_at_once(code_of(number))
        then(number, frame)


@contextmanager
def received_signals(*numbers: signal.Signals) -> Iterator[Signals]:
    """Receive these signals, in the main thread. Those that are ignored stay ignored, as nohup needs it."""
    handled = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    with trio.open_signal_receiver(*handled) as numbers_received:
        signals = Signals(numbers_received)
        for number in handled:
            handler = signal.getsignal(number)
            assert callable(handler)
            signal.signal(number, partial(signals.record, handler))
        yield signals
