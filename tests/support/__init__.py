"""What more than one test file needs, once.

Here are the parts that most need: a session in memory, its disks and its user, and the checks of the invariants. The
rest is imported from its module, so that a test of a parser loads no terminal.
"""

from .checks import check_full_disk, check_heard, check_invariants, check_session, check_silence, checked_session
from .disks import BackgroundFile, FullDisk, MemoryFile
from .examples import sharded, trying
from .sessions import INTERRUPTED, SKIPPED, OneConversation, Recorder, Session, at, open_session, settings, wait_quiet
from .users import (
    ANOTHER_MODEL,
    COMPACT,
    DISK_ACTS,
    DROP,
    DROP_FIRST,
    EDIT,
    INTERRUPT,
    LINES,
    MARKED,
    Acts,
    Replies,
)

__all__ = [
    "ANOTHER_MODEL",
    "COMPACT",
    "DISK_ACTS",
    "DROP",
    "DROP_FIRST",
    "EDIT",
    "INTERRUPT",
    "INTERRUPTED",
    "LINES",
    "MARKED",
    "SKIPPED",
    "Acts",
    "BackgroundFile",
    "FullDisk",
    "MemoryFile",
    "OneConversation",
    "Recorder",
    "Replies",
    "Session",
    "at",
    "check_full_disk",
    "check_heard",
    "check_invariants",
    "check_session",
    "check_silence",
    "checked_session",
    "open_session",
    "settings",
    "sharded",
    "trying",
    "wait_quiet",
]
