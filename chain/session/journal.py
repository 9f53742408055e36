"""The journal of a session: one append-only file of JSON lines, written as things happen.

Two promises are kept here. A record is in the file, whole, before ``record`` returns: a process that is killed loses
nothing of it. And an acknowledgement is given only once the file is on the disk, so that a line that the user saw
acknowledged survives the machine as well. Waiting for the disk is a worker thread's job; all acknowledgements that come
up meanwhile share the next wait, so a pasted burst costs one.

Acknowledgements and what follows from them (a line was delivered, the run ended) leave in the order in which they were
queued, so nobody hears of a delivery before the line itself.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol, TypeAlias

import trio

from chain import record_json
from chain.errors import JournalError
from chain.records import SYNCED, Entry, Record, Unknown
from chain.session.lock import lock
from chain.threads import Threads

_THREADS = Threads("journals")

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))

Action: TypeAlias = Callable[[], None]


class JournalFile(Protocol):
    """The file layer under a journal."""

    def append(self, data: bytes) -> None:
        """Write all of ``data`` at the end, or nothing. Raises ``OSError``."""
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

    def append(self, data: bytes) -> None:
        """Write all of ``data``, or cut the file back to what it was."""
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
        try:
            syncs = _SYNCS.get()
        except LookupError:
            syncs = _Syncs()
            _SYNCS.set(syncs)
        await syncs.sync(self._fd)

    def close(self) -> None:
        """Close the file, which also gives up the lock."""
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


class Journal:
    """Writes records, and acknowledges them once they are on the disk."""

    def __init__(self, file: JournalFile, *, id: str = "", path: Path | None = None, seq: int = 0) -> None:
        """``seq`` is that of the last record that is there already."""
        self.id = id
        self.path = path
        self.upon: Callable[[], str] = lambda: ""
        """The event in whose step a record is written, if somebody acts on hearing of it just now."""
        self._file = file
        self._seq = seq
        self._watcher: Callable[[Entry], None] | None = None
        self._queue: deque[tuple[Action, bool]] = deque()
        self._queued = 0
        self._done = 0
        self._wanted = trio.Event()
        self._waiters = trio.lowlevel.ParkingLot()
        self._is_synced = False
        """Whether what is called just now had waited for the disk."""
        self._failure: str | None = None
        self._at_failure: list[Callable[[JournalError], None]] = []

    @property
    def failure(self) -> str | None:
        """Why the disk failed, if it did. What a failed sync left on the disk is unknown, so it is final."""
        return self._failure

    def record(self, record: Record | Unknown) -> None:
        """Append one record. Raises ``JournalError``, and the file is then as it was."""
        if self._failure is not None:
            raise JournalError(self._failure)
        self._seq += 1
        upon = self.upon()
        entry = Entry(self._seq, time.time(), record, f"{upon}{SYNCED}" if upon and self._is_synced else upon)
        raw = {"type": record.type, "seq": entry.seq, "time": entry.time, **record_json.to_json(record)}
        if entry.upon:
            raw["upon"] = entry.upon
        # A lone surrogate, which JSON can say and UTF-8 cannot, leaves as the JSON escape that it came as.
        data = _ENCODER.encode(raw).encode(errors="backslashreplace") + b"\n"
        try:
            self._file.append(data)
        except OSError as error:
            self._seq -= 1
            raise JournalError(f"the session cannot be written to {self._name}: {error.strerror or error}") from error
        if self._watcher is not None:
            self._watcher(entry)

    @contextmanager
    def watched(self, watcher: Callable[[Entry], None]) -> Iterator[None]:
        """Inside the block, call ``watcher`` with each record that is written."""
        self._watcher = watcher
        try:
            yield
        finally:
            self._watcher = None

    def acknowledge(self, action: Action) -> None:
        """Call ``action`` once everything recorded so far is on the disk; never, if that fails."""
        if self._failure is None:
            self._enqueue(action, needs_sync=True)

    def in_order(self, action: Action) -> None:
        """Call ``action`` after the acknowledgements that wait; at once when none does."""
        self._enqueue(action, needs_sync=False)
        self._release(synced=0)

    def when_failed(self, action: Callable[[JournalError], None]) -> None:
        """Call ``action`` when the disk fails for good."""
        self._at_failure.append(action)

    async def flush(self) -> None:
        """Wait until everything queued so far has been called. Raises ``JournalError`` when the disk failed."""
        target = self._queued
        while self._done < target and self._failure is None:
            await self._waiters.park()
        if self._failure is not None:
            raise JournalError(self._failure)

    async def run(self) -> None:
        """Sync whenever it is asked for; the task that does this outlives every run."""
        while self._failure is None:
            await self._wanted.wait()
            self._wanted = trio.Event()
            await self.sync()

    async def sync(self) -> None:
        """Sync once, for all that was recorded before the call; never again after a failure."""
        if self._failure is not None:
            return
        covered = self._queued
        try:
            await self._file.sync()
        except OSError as error:
            self._fail(f"the session is not safe on the disk in {self._name}: {error.strerror or error}")
        else:
            self._release(synced=covered)

    def _enqueue(self, action: Action, *, needs_sync: bool) -> None:
        self._queue.append((action, needs_sync))
        self._queued += 1
        if needs_sync:
            self._wanted.set()

    def _release(self, *, synced: int) -> None:
        """Call the actions at the head of the queue: of the acknowledgements, those among the first ``synced`` ever."""
        before, self._is_synced = self._is_synced, synced > 0
        try:
            while self._queue and (self._done < synced or not self._queue[0][1]):
                action, _ = self._queue.popleft()
                self._done += 1
                action()
        finally:
            self._is_synced = before
        self._waiters.unpark_all()

    def _fail(self, why: str) -> None:
        """Drop the acknowledgements, which would be lies now, and let the rest go on in its order."""
        self._failure = why
        others = [entry for entry in self._queue if not entry[1]]
        self._done += len(self._queue) - len(others)
        self._queue = deque(others)
        for action in self._at_failure:
            action(JournalError(why))
        self._release(synced=0)

    @property
    def _name(self) -> str:
        return str(self.path) if self.path else "its journal"


_sync = getattr(os, "fdatasync", os.fsync)
"""Not every system can leave out what a reader does not need, such as the time of the change."""
