"""The file under a journal: appended to and synced, and all of it written or nothing.

A network file system may hang in a write, and a thread can be left waiting where the loop cannot: after ``QUICK_S``
``append`` returns, and what it was to write is *late*. Slow writes use this time up together, and it comes back as time
passes without a wait, so that a step with many of them is not held up for each. What is late and all that comes
meanwhile is written in its order. If it cannot be written, it is too late to refuse it, so that is final, as a failed
sync is.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Protocol

import trio

from chain.journal.beside import keep_beside
from chain.journal.lock import lock
from chain.threads import QUICK_S, Threads, quickly

_THREADS = Threads("journals")


class JournalFile(Protocol):
    """The file layer under a journal."""

    def keep(self, digest: str, content: bytes) -> bool | None:
        """Bring a file beside the journal to the disk before what is appended next. As ``append``."""
        ...

    def append(self, data: bytes) -> bool | None:
        """Write all of ``data`` at the end, or nothing. Raises ``OSError``.

        True: it takes long, and is not written yet; the next sync waits for it, and raises what comes of it.
        """
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
        self._size = os.fstat(self._fd).st_size
        # A record that a crash left without its end must not be joined to the next.
        self._is_torn = self._size > 0 and os.pread(self._fd, 1, self._size - 1) != b"\n"
        self._lock = threading.Lock()
        """Guards what follows, which the thread that writes shares."""
        self._path = path
        self._left: list[bytes | Callable[[], None]] = []
        self._is_writing = self._is_late = self._is_closed = False
        self._error: OSError | None = None
        self._caught_up = trio.Event()
        self._patience_s, self._waited_at = QUICK_S, time.monotonic()

    def keep(self, digest: str, content: bytes) -> bool:
        """Bring a file beside this one to the disk. True: it is late, and what is appended meanwhile comes after it."""
        return self._do(partial(keep_beside, self._path, digest, content))

    def append(self, data: bytes) -> bool:
        """Write all of ``data``, or cut the file back to what it was. True: it is late, and follows in its turn."""
        return self._do(data)

    def _do(self, work: bytes | Callable[[], None]) -> bool:
        with self._lock:
            if self._error is not None:
                raise self._error
            self._left.append(work)
            if self._is_writing:
                return True
            self._is_writing = True
        begun = time.monotonic()
        timeout = self._patience_s = min(self._patience_s + begun - self._waited_at, QUICK_S)
        try:
            self._token = trio.lowlevel.current_trio_token()
        except RuntimeError:
            timeout = -1  # there is no loop to hold up
        quickly(self._write_left, timeout)
        self._waited_at = time.monotonic()
        self._patience_s = max(self._patience_s - (self._waited_at - begun), 0)
        with self._lock:
            if self._is_writing:
                self._is_late, self._caught_up = True, trio.Event()
                return True
            error, self._error = self._error, None
        if error is not None:
            raise error
        return False

    def _write_left(self) -> None:
        """Write what is left, in its order, until nothing is or the disk fails."""
        while True:
            with self._lock:
                if self._error is not None or not self._left:
                    self._left.clear()
                    self._is_writing = False
                    if self._is_closed:
                        os.close(self._fd)
                    if self._is_late:
                        self._is_late = False
                        with suppress(trio.RunFinishedError):
                            self._token.run_sync_soon(self._caught_up.set)
                    return
                left = list(self._left)
                self._left.clear()
            try:
                for kind, group in groupby(left, key=type):
                    if kind is bytes:
                        self._write(b"".join(each for each in group if isinstance(each, bytes)))
                    else:
                        for work in group:
                            assert not isinstance(work, bytes)
                            work()
            except OSError as error:
                self._error = error

    def _write(self, data: bytes) -> None:
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
        self._size += len(data)

    def _cut_back(self) -> None:
        try:
            os.ftruncate(self._fd, self._size)
        except OSError:
            # It cannot be cut (chattr +a). How much of the record is there does not matter.
            size = os.fstat(self._fd).st_size
            self._is_torn = self._is_torn or size > self._size
            self._size = size

    async def sync(self) -> None:
        """Bring the file to the disk, in a worker thread."""
        if self._is_late:
            await self._caught_up.wait()
        if self._error is not None:
            raise self._error
        try:
            syncs = _SYNCS.get()
        except LookupError:
            syncs = _Syncs()
            _SYNCS.set(syncs)
        await syncs.sync(self._fd)

    def close(self) -> None:
        """Close the file, which also gives up the lock; one that is being written when that has ended."""
        with self._lock:
            self._is_closed = True
            if not self._is_writing:
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
