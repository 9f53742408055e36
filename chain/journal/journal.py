"""The journal of a session: one append-only file of JSON lines, written as things happen.

A record is in the file, whole, before ``record`` returns (in a store behind a network: before ``wait_written``
returns), so a process that is killed loses no record. An acknowledgement is given once the file is on the disk. Syncs
run in a worker thread, and all acknowledgements that wait meanwhile share the next sync.

Acknowledgements and what follows from them (a line was delivered, the run ended) are emitted in the order in which they
were queued.

Each record that was written is applied to the state of the session, which returns its events. The code that commits the
record says when they are emitted::

    journal.record(...).emit()                     at once
    journal.acknowledge(journal.record(...).emit)  once the record is on the disk
    journal.in_order(journal.record(...).emit)     after the acknowledgements that wait
"""

from __future__ import annotations

import json
import time
from base64 import b64decode
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import trio

from chain.concurrency.signal import Signal
from chain.errors import JournalError
from chain.events import Event
from chain.journal import json as record_json
from chain.journal.attachments import read_attachment
from chain.journal.file import JournalFile, MemoryFile
from chain.journal.records import Entry, Line, Message, Record, ToolFinished, Unknown
from chain.messages import Image
from chain.text.plain import escape_json

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))

Action: TypeAlias = Callable[[], None]
Emit: TypeAlias = Callable[[Event], None]
Apply: TypeAlias = Callable[[Entry], Sequence[Event]]
"""Applies a record to the state of a session, and returns its events."""


@dataclass(frozen=True, slots=True)
class Projected:
    """The events of a record, for the code that commits it to emit."""

    events: Sequence[Event]
    _emit: Emit

    def emit(self) -> None:
        """Emit them."""
        for event in self.events:
            self._emit(event)


def _images(record: Record | Unknown) -> Sequence[Image]:
    match record:
        case Message(message=message):
            return message.images
        case Line(images=images) | ToolFinished(images=images):
            return images
        case _:
            return ()


class Journal:
    """Writes records, and acknowledges them once they are on the disk."""

    def __init__(
        self,
        file: JournalFile,
        *,
        id: str = "",
        path: Path | None = None,
        seq: int = 0,
        note: Callable[[Record | Unknown], None] = lambda record: None,
        writes_later: bool = False,
    ) -> None:
        """``seq`` is that of the last record in the file; ``note`` is called with each record that is appended.

        ``writes_later``: the file is in a store behind a network, and written in the background.
        """
        self.id = id
        self.path = path
        self._file = file
        self.seq = seq
        self._note = note
        self._apply: Apply = lambda entry: ()
        self._writes_later = writes_later
        self._emit: Emit = lambda event: None
        self._queue: deque[tuple[Action, int]] = deque()
        """Actions, each with the ``seq`` up to which records must be on the disk."""
        self._wanted = Signal()
        self._is_over = False
        self._synced = 0
        """The ``seq`` up to which records are on the disk. A journal that is resumed is synced once more."""
        self.failure: str | None = None
        """Why a sync failed. That is final, since what is on the disk is unknown then."""
        self._at_failure: list[Callable[[JournalError], None]] = []

    def connect(self, apply: Apply, emit: Emit) -> None:
        """Set the functions that apply each new record (``apply``) and emit the events that this returns (``emit``)."""
        self._apply, self._emit = apply, emit

    def record(self, record: Record | Unknown) -> Projected:
        """Append a record and return its events. Raise ``JournalError``, and the file is as it was."""
        if self.failure is not None:
            raise JournalError(self.failure)
        self.seq += 1
        entry = Entry(self.seq, time.time(), record)
        raw = {"type": record.type, "seq": entry.seq, "time": entry.time, **record_json.to_json(record)}
        data = escape_json(_ENCODER.encode(raw)).encode() + b"\n"
        try:
            # In this order: no record names an attachment that is not there.
            for image in _images(record):
                if image.data:
                    self._file.store_attachment(image.digest, b64decode(image.data))
            self._file.append(data)
        except OSError as error:
            self.seq -= 1
            raise JournalError(f"the session cannot be written to {self._name}: {error.strerror or error}") from error
        self._note(record)
        return Projected(self._apply(entry), self._emit)

    def store_attachment(self, digest: str, content: bytes) -> None:
        """Store the content of a file next to the journal. Raise ``JournalError``."""
        try:
            self._file.store_attachment(digest, content)
        except OSError as error:
            raise JournalError(f"a file cannot be stored next to {self._name}: {error.strerror or error}") from error

    @property
    def reads_attachments(self) -> bool:
        """Whether ``read_attachment`` can find anything: not in a store behind a network."""
        return self.path is not None or isinstance(self._file, MemoryFile)

    def read_attachment(self, digest: str) -> bytes | None:
        """Return the content of an attachment; ``None`` if it is gone."""
        if isinstance(self._file, MemoryFile):
            return self._file.attachments.get(digest)
        return None if self.path is None else read_attachment(self.path, digest)

    def record_if_possible(self, record: Record) -> Projected:
        """Append a record and return its events. If the disk is full, apply it all the same."""
        try:
            return self.record(record)
        except JournalError:
            return self.apply_unrecorded(record)

    def apply_unrecorded(self, record: Record) -> Projected:
        """Apply a record without writing it, and return its events. It is lost when the session is resumed."""
        return Projected(self._apply(Entry(self.seq, time.time(), record)), self._emit)

    def acknowledge(self, action: Action) -> None:
        """Call ``action`` once all records so far are on the disk; never, if that fails."""
        if self.failure is None:
            self._enqueue(action, self.seq)

    def in_order(self, action: Action) -> None:
        """Call ``action`` after the acknowledgements that wait; at once if none does."""
        self._enqueue(action, 0)

    def when_failed(self, action: Callable[[JournalError], None]) -> None:
        """Call ``action`` when the disk fails for good."""
        self._at_failure.append(action)

    async def flush(self) -> None:
        """Wait until every action queued so far has run. Raise ``JournalError`` if the disk failed.

        Returns at once if no acknowledgement is queued.
        """
        if self._queue:
            done = trio.Event()
            self.in_order(done.set)
            await done.wait()
        if self.failure is not None:
            raise JournalError(self.failure)

    async def wait_written(self) -> None:
        """Wait until every record is written, before a call that has effects. Raise ``JournalError`` if that failed.

        Returns at once unless the file is written in the background.
        """
        if self._writes_later:
            self.acknowledge(lambda: None)
            await self.flush()

    async def run(self) -> None:
        """Sync whenever an acknowledgement waits, until ``end`` is called."""
        is_last = False
        while self.failure is None and not is_last:
            await self._wanted.wait()
            is_last = self._is_over  # if the end comes during the sync, another one follows
            await self.sync()

    def end(self) -> None:
        """Let ``run`` return, after a last sync."""
        self._is_over = True
        self._wanted.set()

    async def sync(self) -> None:
        """Sync the records made before the call, unless they are on the disk already. Do nothing after a failure."""
        seq = self.seq
        if self.failure is not None or seq <= self._synced:
            return
        try:
            await self._file.sync()
        except OSError as error:
            self._fail(f"the session is not safe on the disk in {self._name}: {error.strerror or error}")
        else:
            self._synced = max(seq, self._synced)
            self._release()

    def _enqueue(self, action: Action, needed: int) -> None:
        self._queue.append((action, needed))
        if needed > self._synced:
            # Release nothing now: a listener of an earlier event would act while the caller accepts a line.
            self._wanted.set()
        else:
            self._release()

    def _release(self) -> None:
        """Call the actions at the head of the queue whose records are on the disk."""
        while self._queue and self._queue[0][1] <= self._synced:
            action, _ = self._queue.popleft()
            action()

    def _fail(self, why: str) -> None:
        """Drop the acknowledgements, and call the other actions in their order."""
        self.failure = why
        self._queue = deque(entry for entry in self._queue if entry[1] == 0)
        for action in self._at_failure:
            action(JournalError(why))
        self._release()

    @property
    def _name(self) -> str:
        return str(self.path) if self.path else "its journal"
