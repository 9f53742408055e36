"""The signals that end the program."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import trio

from chain.exit_codes import INTERRUPTED_CODE, SIGTERM_CODE
from cli.screen import tty

LEAVING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

UNHEARD_S = 1.0
"""A signal that comes when an earlier one has waited for so long ends the program: something holds it up."""


class Signals:
    """The signals that come, one by one."""

    def __init__(self, received: AsyncIterator[int]) -> None:
        self._received = received
        self._waiting_since: float | None = None

    def __aiter__(self) -> Signals:
        return self

    async def __anext__(self) -> int:
        number = await self._received.__anext__()
        self._waiting_since = None
        return number

    def note(self, number: int) -> None:
        """Take note that a signal came; it may be anywhere in the program that this is called."""
        now = time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        elif number in LEAVING and now - self._waiting_since > UNHEARD_S:
            # Lines that were acknowledged are on the disk, so nothing is lost.
            tty.restore()
            os._exit(INTERRUPTED_CODE if number == signal.SIGINT else SIGTERM_CODE)


@contextmanager
def received(*numbers: signal.Signals) -> Iterator[Signals]:
    """Receive these signals instead of what they do by themselves, in the main thread.

    Those that are ignored stay so: who started us may have had one ignored, as nohup does.
    """
    heard = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    with trio.open_signal_receiver(*heard) as numbers_received:
        signals = Signals(numbers_received)
        for number in heard:
            signal.signal(number, _noting(signals, signal.getsignal(number)))
        yield signals


def _noting(signals: Signals, then: object) -> Callable[[int, FrameType | None], None]:
    def handle(number: int, frame: FrameType | None) -> None:
        signals.note(number)
        if callable(then):
            then(number, frame)

    return handle
