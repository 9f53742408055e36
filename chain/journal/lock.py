"""The lock that says which process writes a session."""

from __future__ import annotations

import fcntl
import time

PAUSES_S = (0.01, 0.05, 0.2)
"""How long to wait, again and again, for those who only ask whether a session is open."""


def lock(fd: int) -> None:
    """Lock a journal for its only writer. Raises ``BlockingIOError`` if it has one; waits for who only asks."""
    for pause in PAUSES_S:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if has_writer(fd):
                raise
            time.sleep(pause)
        else:
            return
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def has_writer(fd: int) -> bool:
    """Whether another open file has the journal locked as its writer. Raises ``OSError``."""
    try:
        # Shared, so that two who ask do not take each other for a writer.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False
