"""Signals that end the program, and immediate exits for the case that the program does not end by itself.

Trio is imported late, because the prompt appears first.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from types import FrameType
from typing import NoReturn

from chain.session.exit_codes import INTERRUPTED_CODE, SIGTERM_CODE
from cli.screen import tty

LEAVING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

UNRECEIVED_S = 1.0
"""If the program has not received a signal for this many seconds, the next signal ends it."""

EXIT_S = 10.0
"""The time limit, in seconds, for the process to end after its last output. A tool could delay the end forever."""

_duties: list[Callable[[], object]] = []


@contextmanager
def at_immediate_exit(duty: Callable[[], object]) -> Iterator[None]:
    """Call the quick ``duty`` if ``exit_at_once`` ends the process inside the block. Errors of the disk are ignored."""
    _duties.append(duty)
    try:
        yield
    finally:
        _duties.remove(duty)


def exit_at_once(code: int) -> NoReturn:
    """End the process immediately, from any thread."""
    for duty in _duties:
        with suppress(OSError):
            duty()
    os._exit(code)


def exit_soon(code: int) -> None:
    """End the process immediately if it has not ended by itself within ``EXIT_S``."""
    last = threading.Timer(EXIT_S, exit_at_once, [code])
    last.daemon = True
    last.start()


def exit_on_signals(*numbers: signal.Signals) -> None:
    """Let these signals end the process immediately from now on. Only the main thread may call this function."""
    for number in numbers:
        # Without a duty use the system's default action, which does not depend on the interpreter.
        signal.signal(number, _on_signal if _duties else signal.SIG_DFL)


def exit_on_interrupt() -> None:
    """Let SIGINT end the process, unless SIGINT is ignored. Only the main thread may call this function."""
    # A ``KeyboardInterrupt`` could get lost.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _on_signal)


def exit_code_of(number: int) -> int:
    """Return the exit code of the program when it ends because of the signal ``number``."""
    return INTERRUPTED_CODE if number == signal.SIGINT else SIGTERM_CODE


def _on_signal(number: int, frame: FrameType | None) -> NoReturn:
    exit_at_once(exit_code_of(number))


class Signals:
    """An iterator over the received signals."""

    def __init__(self, received: AsyncIterator[int]) -> None:
        self._received = received
        self._waiting_since: float | None = None

    def __aiter__(self) -> Signals:
        return self

    async def __anext__(self) -> int:
        number = await self._received.__anext__()
        self._waiting_since = None
        return number

    def record(self, handler: Callable[[int, FrameType | None], object], number: int, frame: FrameType | None) -> None:
        """Record the time of a signal, and pass the signal to trio's ``handler``.

        Ignore a Ctrl-C while another program uses the terminal. End the process if an earlier signal has waited longer
        than ``UNRECEIVED_S``. Python may call this method at any point, even during a system call that hangs.
        """
        if number == signal.SIGINT and tty.is_lent():
            return
        now = time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        elif number in LEAVING and now - self._waiting_since > UNRECEIVED_S:
            # Acknowledged lines are on the disk, so nothing is lost.
            tty.restore()
            exit_at_once(exit_code_of(number))
        handler(number, frame)


@contextmanager
def received_signals(*numbers: signal.Signals) -> Iterator[Signals]:
    """Yield an iterator over received signals with these numbers. Only the main thread may call this function."""
    # Ignored signals stay ignored, as nohup requires.
    handled = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    import trio

    with trio.open_signal_receiver(*handled) as numbers_received:
        signals = Signals(numbers_received)
        for number in handled:
            handler = signal.getsignal(number)
            assert callable(handler)
            signal.signal(number, partial(signals.record, handler))
        yield signals


@asynccontextmanager
async def leaving_at_signal(leave: Callable[[int], object]) -> AsyncIterator[None]:
    """Call ``leave`` with the first signal of ``LEAVING`` in the block. The second one ends the process immediately."""
    from chain.concurrency.nurseries import background_task

    async def receive() -> None:
        first = await anext(signals)
        leave(first)
        second = await anext(signals)
        # Acknowledged lines are on the disk, so nothing is lost.
        exit_at_once(INTERRUPTED_CODE if signal.SIGINT in (first, second) else SIGTERM_CODE)

    with received_signals(*LEAVING) as signals:
        async with background_task(receive):
            yield
