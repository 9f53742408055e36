"""How a program of our own gets its input, and what it may do from then on. For programs that are run by their path.

The input comes over a pipe that stays open. When its other end closes, also after a ``kill -9`` of the starter, the
kernel sends SIGIO, which ends the program whatever it is doing, in the middle of a search of a C library too. It is not
PR_SET_PDEATHSIG, which follows the thread that forked, and needs no second process to watch.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys

from chain.tools.processes import fence

LENGTH = 8
"""Bytes of the number, big end first, that says how many follow."""


def framed(data: bytes) -> bytes:
    """What the starter writes."""
    return len(data).to_bytes(LENGTH, "big") + data


def received() -> bytes:
    """The input, once all of it has come.

    From here on the program ends when the starter lets go of the pipe, writes no file, and reaches nobody: its input
    may be hostile.
    """
    data = _exactly(int.from_bytes(_exactly(LENGTH), "big"))
    # Whoever started chain may have it ignored or blocked, which is inherited.
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGIO})
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | getattr(os, "O_ASYNC", 0))
    # It may have been let go before that.
    poll = select.poll()
    poll.register(0, select.POLLIN)
    if poll.poll(0):
        sys.exit(1)
    fence.enter_all()
    return data


def _exactly(size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = os.read(0, size - len(data))
        if not chunk:
            sys.exit(1)
        data += chunk
    return bytes(data)
