"""The file under a journal: an append writes all of its data or nothing, and a sync brings it to the disk.

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
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

import trio

from chain.journal.attachments import store_attachment
from chain.journal.lock import lock
from chain.threads import Threads

_THREADS = Threads("journals")


class JournalFile(Protocol):
    """The file layer under a journal."""

    def store_attachment(self, digest: str, content: bytes) -> None:
        """Store an attachment before what is appended next. Raises ``OSError``."""
        ...

    def append(self, data: bytes) -> None:
        """Append all of ``data``, or nothing. Raises ``OSError``."""
        ...

    async def sync(self) -> None:
        """Bring all that was appended before the call to the disk. Raises ``OSError``."""
        ...


class DiskFile:
    """A journal file on a disk, locked against a second writer for as long as it is open.

    Raises ``OSError``: ``FileExistsError`` where one that is to be new is there already, ``BlockingIOError`` for one
    that another process writes.
    """

    def __init__(self, path: Path, *, is_new: bool = False) -> None:
        new = os.O_CREAT | os.O_EXCL if is_new else 0
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | new, 0o600)
        try:
            lock(self._fd)
        except OSError:
            os.close(self._fd)
            raise
        self.size = os.fstat(self._fd).st_size
        """Its length in bytes."""
        # A record that a crash left without its end must not be joined to the next.
        self._is_torn = self.size > 0 and os.pread(self._fd, 1, self.size - 1) != b"\n"
        self._path = path

    def store_attachment(self, digest: str, content: bytes) -> None:
        """Write an attachment next to the journal and fsync it."""
        store_attachment(self._path, digest, content)

    def append(self, data: bytes) -> None:
        """Append ``data`` atomically: on an error, truncate the file to its previous length."""
        if self._is_torn:
            # What is left of a record becomes a row of its own that a reader passes over, also if all of it is there.
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
            # It cannot be cut (chattr +a). How much of the record is there does not matter.
            size = os.fstat(self._fd).st_size
            self._is_torn = self._is_torn or size > self.size
            self.size = size

    async def sync(self) -> None:
        """Bring the file to the disk, in a worker thread."""
        try:
            syncs = _SYNCS.get()
        except LookupError:
            syncs = _Syncs()
            _SYNCS.set(syncs)
        await syncs.sync(self._fd)

    def close(self) -> None:
        """Close the file, which also releases the lock."""
        os.close(self._fd)


@dataclass(eq=False, slots=True)
class _Wanted:
    """A file that somebody wants on the disk."""

    fd: int
    done: trio.Event = field(default_factory=trio.Event)
    error: OSError | None = None


class _Syncs:
    """Brings the files of all journals to the disk: those that are asked for in one step, in one thread.

    Threads take turns with the interpreter, so a thousand that sync would slow down everything else.
    """

    def __init__(self) -> None:
        self._wanted: list[_Wanted] = []

    async def sync(self, fd: int) -> None:
        """Bring a file to the disk. Raises ``OSError``. It cannot be cancelled: its outcome has to be known."""
        mine = _Wanted(fd)
        self._wanted.append(mine)
        with trio.CancelScope(shield=True):
            if self._wanted[0] is mine:
                await trio.lowlevel.checkpoint()  # whoever asks in this step goes along
                group, self._wanted = self._wanted, []
                try:
                    await _THREADS.run(partial(_sync_all, group))
                except RuntimeError as error:  # there is no thread to be had
                    for each in group:
                        each.error = OSError(str(error))
                finally:
                    for each in group:
                        each.done.set()
            else:
                await mine.done.wait()
        if mine.error is not None:
            raise mine.error


_SYNCS: trio.lowlevel.RunVar[_Syncs] = trio.lowlevel.RunVar("syncs")


def _sync_all(group: Iterable[_Wanted]) -> None:
    for each in group:
        try:
            _sync(each.fd)
            if os.fstat(each.fd).st_nlink == 0:
                # What is on the disk without a name is gone with this process.
                raise OSError(errno.ENOENT, "the file was removed")
        except OSError as error:
            each.error = error


_sync = getattr(os, "fdatasync", os.fsync)
"""Not every system can leave out what a reader does not need, such as the time of the change."""
