"""The helpers that most tests need: a session in memory, its disks and its user, and the checks of the invariants.

Import other helpers from their own modules, so that a test of a parser loads no terminal.
"""

# ruff: noqa: F401
from .checks import check_heard, check_invariants, check_session, check_silence, checked_session
from .disks import BackgroundFile, FullDisk, MemoryFile
from .examples import sharded, trying
from .sessions import INTERRUPTED, SKIPPED, OneConversation, Recorder, Session, at, open_session, settings, wait_quiet
from .users import ANOTHER_MODEL, COMPACT, DISK_ACTS, DROP, DROP_FIRST, EDIT, INTERRUPT, LINES, MARKED, Acts, Replies
