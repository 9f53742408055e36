"""Ends the process at once: where something does not end by itself, and what must be done all the same."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from chain.exit_codes import INTERRUPTED_CODE, SIGTERM_CODE

EXIT_S = 10.0
"""How long the process may take to end after its last output; a tool that never ends would keep it for ever."""

_duties: list[Callable[[], object]] = []


@contextmanager
def even_at_once(duty: Callable[[], object]) -> Iterator[None]:
    """Inside the block, ``exit_at_once`` does this before it ends the process. It must be quick, and may fail."""
    _duties.append(duty)
    try:
        yield
    finally:
        _duties.remove(duty)


def exit_at_once(code: int) -> NoReturn:
    """End the process, in whatever thread and at whatever place this is called."""
    for duty in _duties:
        with suppress(OSError):
            duty()
    os._exit(code)


def exit_soon(code: int) -> None:
    """End the process at once if it has not ended by itself within ``EXIT_S``."""
    last = threading.Timer(EXIT_S, exit_at_once, [code])
    last.daemon = True
    last.start()


def let_signals_end(*numbers: signal.Signals) -> None:
    """From now on these signals end the process at once. Call it in the main thread."""
    for number in numbers:
        # Without a duty by the system's own action, which needs nothing of the interpreter.
        signal.signal(number, _on_signal if _duties else signal.SIG_DFL)


def code_of(number: int) -> int:
    """The exit code of a program that a signal has ended."""
    return INTERRUPTED_CODE if number == signal.SIGINT else SIGTERM_CODE


def _on_signal(number: int, frame: FrameType | None) -> NoReturn:
    exit_at_once(code_of(number))
