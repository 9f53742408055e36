"""The journal of a session: one append-only file of JSON lines, written as things happen.

Two promises are kept here. A record is in the file, whole, before ``record`` returns: a process that is killed loses
nothing of it. And an acknowledgement is given only once the file is on the disk, so that a line that the user saw
acknowledged survives the machine as well. Waiting for the disk is a worker thread's job; all acknowledgements that come
up meanwhile share the next wait, so a pasted burst costs one.

The first promise has a limit, since a network file system may hang in a write, and a thread can be left waiting where
the loop cannot: after ``QUICK_S`` ``record`` returns, and the record is *late*. Slow writes use this time up together,
and it comes back as time passes without a wait, so that a step with many records is not held up for each of them. A
late record and all that come meanwhile are written in their order. No model call and no tool begins before they are
(``flush``, ``written``), and no line that came meanwhile is acknowledged. If a late record cannot be written, it is too
late to refuse it, so that is final, as a failed sync is.

Acknowledgements and what follows from them (a line was delivered, the run ended) leave in the order in which they were
queued, so nobody hears of a delivery before the line itself.
"""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol, TypeAlias

import trio

from chain import record_json
from chain.errors import JournalError
from chain.records import COURSE, AgentEnded, Entry, Record, Unknown, may_be_from_outside
from chain.session.lock import lock
from chain.threads import QUICK_S, Threads, quickly

_THREADS = Threads("journals")

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))

Action: TypeAlias = Callable[[], None]


class JournalFile(Protocol):
    """The file layer under a journal."""

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
        self._left: list[bytes] = []
        self._is_writing = self._is_late = self._is_closed = False
        self._error: OSError | None = None
        self._caught_up = trio.Event()
        self._patience_s, self._waited_at = QUICK_S, time.monotonic()

    def append(self, data: bytes) -> bool:
        """Write all of ``data``, or cut the file back to what it was. True: it is late, and follows in its turn."""
        with self._lock:
            if self._error is not None:
                raise self._error
            self._left.append(data)
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
                data = b"".join(self._left)
                self._left.clear()
            try:
                self._write(data)
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


class Journal:
    """Writes records, and acknowledges them once they are on the disk."""

    def __init__(self, file: JournalFile, *, id: str = "", path: Path | None = None, seq: int = 0) -> None:
        """``seq`` is that of the last record that is there already."""
        self.id = id
        self.path = path
        self._file = file
        self._seq = seq
        self.looks: dict[str, int] = {}
        """By agents, how often each has looked since the last record of its own course."""
        self.before_look: Callable[[str], None] | None = None
        """In a replay, called with the agent before each look."""
        self._watcher: Callable[[Entry], None] | None = None
        self._queue: deque[tuple[Action, bool]] = deque()
        self._queued = 0
        self._done = 0
        self._wanted = trio.Event()
        self._is_over = False
        self._waiters = trio.lowlevel.ParkingLot()
        self._late = self._late_synced = 0
        """How many records were late, and how many of these are on the disk by now."""
        self._failure: str | None = None
        self._at_failure: list[Callable[[JournalError], None]] = []

    @property
    def seq(self) -> int:
        """That of the last record."""
        return self._seq

    @property
    def failure(self) -> str | None:
        """Why the disk failed, if it did. What a failed sync left on the disk is unknown, so it is final."""
        return self._failure

    def look(self, agent: str) -> None:
        """Called by an agent's own code wherever others may just have acted: after each event of its own, and a wait.

        So the record of an act says between which of these looks it came, and a replay does it there again.
        """
        if self.before_look is not None:
            self.before_look(agent)
        self.looks[agent] = self.looks.get(agent, 0) + 1

    def record(self, record: Record | Unknown) -> None:
        """Append one record. Raises ``JournalError``, and the file is then as it was."""
        if self._failure is not None:
            raise JournalError(self._failure)
        self._seq += 1
        looks = {agent: n for agent, n in self.looks.items() if n} if may_be_from_outside(record) else {}
        entry = Entry(self._seq, time.time(), record, looks)
        raw = {"type": record.type, "seq": entry.seq, "time": entry.time, **record_json.to_json(record)}
        if looks:
            raw["looks"] = looks
        # A lone surrogate, which JSON can say and UTF-8 cannot, leaves as the JSON escape that it came as.
        data = _ENCODER.encode(raw).encode(errors="backslashreplace") + b"\n"
        try:
            is_late = self._file.append(data)
        except OSError as error:
            self._seq -= 1
            raise JournalError(f"the session cannot be written to {self._name}: {error.strerror or error}") from error
        if is_late:
            self._late += 1
            self._wanted.set()
        if isinstance(record, COURSE):
            self.looks[record.agent] = 0
        elif isinstance(record, AgentEnded):
            self.looks.pop(record.name, None)
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
        """Wait until everything queued so far has been called, and late records are on the disk.

        Raises ``JournalError`` when the disk failed.
        """
        target, late = self._queued, self._late
        while (self._done < target or self._late_synced < late) and self._failure is None:
            await self._waiters.park()
        if self._failure is not None:
            raise JournalError(self._failure)

    async def written(self) -> None:
        """Wait for late records, if there are any. Raises ``JournalError`` when the disk failed."""
        if self._late > self._late_synced:
            await self.flush()

    async def run(self) -> None:
        """Sync whenever it is asked for, until ``end`` is called; the task that does this outlives every run."""
        is_last = False
        while self._failure is None and not is_last:
            await self._wanted.wait()
            self._wanted = trio.Event()
            is_last = self._is_over  # if the end comes during the sync, another one follows
            await self.sync()

    def end(self) -> None:
        """Let ``run`` return, after a last sync."""
        self._is_over = True
        self._wanted.set()

    async def sync(self) -> None:
        """Sync once, for all that was recorded before the call; never again after a failure."""
        if self._failure is not None:
            return
        covered, late = self._queued, self._late
        try:
            await self._file.sync()
        except OSError as error:
            self._fail(f"the session is not safe on the disk in {self._name}: {error.strerror or error}")
        else:
            self._late_synced = late
            self._release(synced=covered)

    def _enqueue(self, action: Action, *, needs_sync: bool) -> None:
        self._queue.append((action, needs_sync))
        self._queued += 1
        if needs_sync:
            self._wanted.set()

    def _release(self, *, synced: int) -> None:
        """Call the actions at the head of the queue: of the acknowledgements, those among the first ``synced`` ever."""
        while self._queue and (self._done < synced or not self._queue[0][1]):
            action, _ = self._queue.popleft()
            self._done += 1
            action()
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
