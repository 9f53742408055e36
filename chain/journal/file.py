"""The file of a journal: an append writes all of its data or nothing, and a sync flushes the file to disk.

Appends run in the caller's thread, which is trio's: the kernel copies the data to its page cache in microseconds. Syncs
run in a worker thread, since each waits for the disk.

What happens if the disk hangs, which is possible with a network file system:

- Usually a sync hangs. It blocks its worker thread and the tasks that wait for an acknowledgement, but not the event
  loop.
- A write hangs if the page cache is full. It blocks the event loop until the file system responds, like the sync of an
  attachment. If the call can be interrupted, signals still end the program: Python runs its signal handlers before it
  restarts the call (``cli/ending.py``). An uninterruptible wait, as on NFS, ends at the earliest on SIGKILL.
"""

from __future__ import annotations

import errno
import os
from functools import partial
from pathlib import Path
from typing import Protocol

import trio

from chain.concurrency.threads import Threads
from chain.journal.attachments import store_attachment, sync_folder
from chain.journal.lock import lock

_THREADS = Threads("journals")


class JournalFile(Protocol):
    """The interface of the file that a journal writes."""

    def store_attachment(self, digest: str, content: bytes) -> None:
        """Store an attachment before the record that names it is appended. Raise ``OSError`` if this fails."""
        ...

    def append(self, data: bytes) -> None:
        """Append all of ``data``, or nothing and raise ``OSError``."""
        ...

    async def sync(self) -> None:
        """Flush all data appended before this call to disk. Raise ``OSError`` if this fails."""
        ...


class DiskFile:
    """A journal file on disk, locked against a second writer while it is open.

    The constructor raises ``OSError`` if the file cannot be opened: ``FileExistsError`` if ``is_new`` is set and the
    file exists, ``BlockingIOError`` if another process has the file locked.
    """

    def __init__(self, path: Path, *, is_new: bool = False) -> None:
        new = os.O_CREAT | os.O_EXCL if is_new else 0
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | new, 0o600)
        try:
            lock(self._fd)
            if is_new:
                sync_folder(path.parent)
        except OSError:
            os.close(self._fd)
            raise
        self.size = os.fstat(self._fd).st_size
        """The length of the file in bytes."""
        # A crash may have left the last record incomplete. The next record must not become part of that row.
        self._is_torn = self.size > 0 and os.pread(self._fd, 1, self.size - 1) != b"\n"
        self._path = path

    def store_attachment(self, digest: str, content: bytes) -> None:
        """Write an attachment next to the journal and fsync it."""
        store_attachment(self._path, digest, content)

    def append(self, data: bytes) -> None:
        """Append ``data`` atomically: on an error, truncate the file to its previous length."""
        if self._is_torn:
            # The end of line turns an incomplete record into a row that readers skip.
            data = b"\0\n" + data
        remaining = memoryview(data)
        try:
            while remaining:
                remaining = remaining[os.write(self._fd, remaining) :]
        except OSError:
            self._undo_append()
            raise
        self._is_torn = False
        self.size += len(data)

    def _undo_append(self) -> None:
        """Truncate the file to the length that it had before the failed append."""
        try:
            os.ftruncate(self._fd, self.size)
        except OSError:
            # The file is append-only (chattr +a), so the partial record stays and counts as torn.
            size = os.fstat(self._fd).st_size
            self._is_torn = self._is_torn or size > self.size
            self.size = size

    async def sync(self) -> None:
        """Fsync the file in a worker thread. This cannot be cancelled, since the caller needs the outcome."""
        # A worker thread cannot be cancelled, and an unknown outcome would break the order of acknowledgements.
        with trio.CancelScope(shield=True):
            try:
                await _THREADS.run(partial(_sync_file, self._fd))
            except RuntimeError as error:  # no thread can be started
                raise OSError(str(error)) from None

    def close(self) -> None:
        """Close the file and release the lock."""
        os.close(self._fd)


class MemoryFile:
    """A journal file that is not written to disk. Its attachments last as long as the process."""

    def __init__(self) -> None:
        self.attachments: dict[str, bytes] = {}
        """The contents of the attachments, by digest."""

    def store_attachment(self, digest: str, content: bytes) -> None:
        """Store an attachment in memory."""
        self.attachments[digest] = content

    def append(self, data: bytes) -> None:
        """Do nothing: the session's state in memory already contains the records."""

    async def sync(self) -> None:
        """Return at once."""
        await trio.lowlevel.checkpoint()


def _sync_file(fd: int) -> None:
    _fdatasync(fd)
    if os.fstat(fd).st_nlink == 0:
        # A deleted file is lost when this process ends.
        raise OSError(errno.ENOENT, "the file was removed")


_fdatasync = getattr(os, "fdatasync", os.fsync)
"""``os.fdatasync``, or ``os.fsync`` on macOS, which has no ``fdatasync``."""
