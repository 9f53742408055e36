"""The file under a journal: an append writes all of its data or nothing, and a sync flushes it to the disk.

Appends are written in the caller's thread, which is trio's: the kernel copies them to its page cache, in microseconds.
Syncs run in a worker thread, since each waits for the disk.

A disk that hangs, as a network file system may:

- A sync that hangs, the usual case, holds up its worker thread and whoever waits for the acknowledgements of the
  journal. The loop goes on.
- A write that hangs (the page cache is full of data that cannot be written), and an attachment, which is synced at
  once, hold up the loop until the file system answers. Signals still end the program where such a call can be
  interrupted: it is restarted only after Python's signal handlers have run (``cli/ending.py``). In an uninterruptible
  wait, as of NFS, no signal but SIGKILL has an effect, and in some not even that.
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
    """The file layer under a journal."""

    def store_attachment(self, digest: str, content: bytes) -> None:
        """Store an attachment before what is appended next. Raise ``OSError``."""
        ...

    def append(self, data: bytes) -> None:
        """Append all of ``data``, or nothing. Raise ``OSError``."""
        ...

    async def sync(self) -> None:
        """Flush all that was appended before the call to the disk. Raise ``OSError``."""
        ...


class DiskFile:
    """A journal file on a disk, locked against a second writer while it is open.

    Raise ``OSError`` if it cannot be opened: ``FileExistsError`` for a new one if there is such a file,
    ``BlockingIOError`` if another process has it open.
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
        """Its length in bytes."""
        # The next record must not be joined to one that a crash left without its end.
        self._is_torn = self.size > 0 and os.pread(self._fd, 1, self.size - 1) != b"\n"
        self._path = path

    def store_attachment(self, digest: str, content: bytes) -> None:
        """Write an attachment next to the journal and fsync it."""
        store_attachment(self._path, digest, content)

    def append(self, data: bytes) -> None:
        """Append ``data`` atomically: on an error, truncate the file to its previous length."""
        if self._is_torn:
            # What is left of a record becomes a row that a reader skips, even if only its end of line was missing.
            data = b"\0\n" + data
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError:
            self._cut_back()
            raise
        self._is_torn = False
        self.size += len(data)

    def _cut_back(self) -> None:
        try:
            os.ftruncate(self._fd, self.size)
        except OSError:
            # The file is append-only (chattr +a). What is there of the record counts as torn.
            size = os.fstat(self._fd).st_size
            self._is_torn = self._is_torn or size > self.size
            self.size = size

    async def sync(self) -> None:
        """Flush the file in a worker thread. It cannot be cancelled, since its outcome has to be known."""
        with trio.CancelScope(shield=True):
            try:
                await _THREADS.run(partial(_sync_file, self._fd))
            except RuntimeError as error:  # no thread can be started
                raise OSError(str(error)) from None

    def close(self) -> None:
        """Close the file, which also releases the lock."""
        os.close(self._fd)


class MemoryFile:
    """A journal file that writes nothing to a disk. Its attachments last as long as the process."""

    def __init__(self) -> None:
        self.attachments: dict[str, bytes] = {}
        """The contents by their digests."""

    def store_attachment(self, digest: str, content: bytes) -> None:
        """Hold an attachment in memory."""
        self.attachments[digest] = content

    def append(self, data: bytes) -> None:
        """Drop the data: the state of the session has what it says."""

    async def sync(self) -> None:
        """Return at once."""
        await trio.lowlevel.checkpoint()


def _sync_file(fd: int) -> None:
    _sync(fd)
    if os.fstat(fd).st_nlink == 0:
        # A file without a name is gone when this process ends.
        raise OSError(errno.ENOENT, "the file was removed")


_sync = getattr(os, "fdatasync", os.fsync)
"""macOS has no ``fdatasync``."""
