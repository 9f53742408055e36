"""The lock that makes one process the only writer of a session."""

from __future__ import annotations

import fcntl
import time

PAUSES_S = (0.01, 0.05, 0.2)
"""The pauses between attempts to lock a journal, in seconds.

Another process holds the lock for a moment when it calls ``has_writer``.
"""


def lock(fd: int) -> None:
    """Lock a journal for its only writer. Raise ``BlockingIOError`` if another writer has it locked."""
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
    """Return whether another open file has the journal locked as its writer. Raise ``OSError`` on failure."""
    try:
        # A shared lock, so that two callers of this function do not see each other as a writer.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False
