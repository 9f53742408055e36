"""The journal of a session: an append-only file of JSON lines, one for each record.

A complete record is in the file before ``record`` returns (in a store behind a network: before ``wait_written``
returns), so a killed process loses no record. An acknowledgement is an action that runs once all earlier records are on
disk. Acknowledgements that are queued during a sync share the next one. Actions run in the order in which they were
queued.

Each record that was written is applied to the state of the session, which returns the events of the record. The code
that commits the record decides when the events are emitted::

    journal.record(...).emit()                         at once
    journal.acknowledge(journal.record(...).emit)      once the record is on disk
    journal.emit_after_acks(journal.record(...).emit)  after the acknowledgements queued so far
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

from chain.concurrency.wakeup import Wakeup
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
"""A function that applies a record to the state of a session, and returns the events of the record."""


@dataclass(frozen=True, slots=True)
class RecordedEvents:
    """The events of a record. The code that commits the record emits them."""

    events: Sequence[Event]
    _emit: Emit

    def emit(self) -> None:
        """Emit the events in order."""
        for event in self.events:
            self._emit(event)


def _images_of(record: Record | Unknown) -> Sequence[Image]:
    match record:
        case Message(message=message):
            return message.images
        case Line(images=images) | ToolFinished(images=images):
            return images
        case _:
            return ()


class Journal:
    """A writer of records that runs acknowledgements once the records are on disk."""

    def __init__(
        self,
        file: JournalFile,
        *,
        id: str = "",
        path: Path | None = None,
        seq: int = 0,
        on_written: Callable[[Record | Unknown], None] = lambda record: None,
        writes_later: bool = False,
    ) -> None:
        """``seq`` is the number of the last record in the file. ``on_written`` is called with each appended record.

        ``writes_later``: the file is in a store behind a network, and is written in the background.
        """
        self.id = id
        self.path = path
        self._file = file
        self.seq = seq
        self._on_written = on_written
        self._apply: Apply = lambda entry: ()
        self._writes_later = writes_later
        self._emit: Emit = lambda event: None
        self._queue: deque[tuple[Action, int]] = deque()
        """Actions, each with the ``seq`` up to which records must be on disk; 0 if only earlier actions must run."""
        self._sync_wanted = Wakeup()
        self._is_ending = False
        self._synced_seq = 0
        """The ``seq`` up to which records are on disk. A resumed journal is synced once more."""
        self.failure: str | None = None
        """The error of a failed sync, or ``None``. A failure is final, since the state of the disk is then unknown."""
        self._failure_callbacks: list[Callable[[JournalError], None]] = []

    def connect(self, apply: Apply, emit: Emit) -> None:
        """Set ``apply``, which applies each new record, and ``emit``, which emits an event that ``apply`` returned."""
        self._apply, self._emit = apply, emit

    def record(self, record: Record | Unknown) -> RecordedEvents:
        """Append a record, apply it and return its events. Raise ``JournalError`` if it cannot be written.

        After an error the file is unchanged and the record is not applied.
        """
        if self.failure is not None:
            raise JournalError(self.failure)
        self.seq += 1
        entry = Entry(self.seq, time.time(), record)
        raw = {"type": record.type, "seq": entry.seq, "time": entry.time, **record_json.to_json(record)}
        data = escape_json(_ENCODER.encode(raw)).encode() + b"\n"
        try:
            # Attachments first: no record may name a missing one.
            for image in _images_of(record):
                if image.data:
                    self._file.store_attachment(image.digest, b64decode(image.data))
            self._file.append(data)
        except OSError as error:
            self.seq -= 1
            raise JournalError(
                f"the session cannot be written to {self._display_path}: {error.strerror or error}"
            ) from error
        self._on_written(record)
        return RecordedEvents(self._apply(entry), self._emit)

    def store_attachment(self, digest: str, content: bytes) -> None:
        """Store the content of a file next to the journal. Raise ``JournalError`` if it cannot be stored."""
        try:
            self._file.store_attachment(digest, content)
        except OSError as error:
            raise JournalError(
                f"a file cannot be stored next to {self._display_path}: {error.strerror or error}"
            ) from error

    @property
    def reads_attachments(self) -> bool:
        """Whether ``read_attachment`` can find attachments. False for a store behind a network."""
        return self.path is not None or isinstance(self._file, MemoryFile)

    def read_attachment(self, digest: str) -> bytes | None:
        """Return the content of an attachment; ``None`` if it cannot be found."""
        if isinstance(self._file, MemoryFile):
            return self._file.attachments.get(digest)
        return None if self.path is None else read_attachment(self.path, digest)

    def record_if_possible(self, record: Record) -> RecordedEvents:
        """Append a record, apply it and return its events. Apply the record even if it cannot be written."""
        try:
            return self.record(record)
        except JournalError:
            return self.apply_unrecorded(record)

    def apply_unrecorded(self, record: Record) -> RecordedEvents:
        """Apply a record without writing it, and return its events. A resumed session does not contain the record."""
        return RecordedEvents(self._apply(Entry(self.seq, time.time(), record)), self._emit)

    def acknowledge(self, action: Action) -> None:
        """Queue ``action`` to run once all records so far are on disk. The action never runs if the disk fails."""
        if self.failure is None:
            self._enqueue(action, self.seq)

    def emit_after_acks(self, action: Action) -> None:
        """Run ``action`` after the acknowledgements queued so far. If none is queued, run it immediately."""
        self._enqueue(action, 0)

    def on_failure(self, action: Callable[[JournalError], None]) -> None:
        """Register a function that is called once if the disk fails."""
        self._failure_callbacks.append(action)

    async def flush(self) -> None:
        """Wait until every action queued so far has run. Return at once if none is queued.

        Raise ``JournalError`` if the disk failed.
        """
        if self._queue:
            done = trio.Event()
            self.emit_after_acks(done.set)
            await done.wait()
        if self.failure is not None:
            raise JournalError(self.failure)

    async def wait_written(self) -> None:
        """Wait until every record is written. Call this before an action with effects outside the session.

        Return at once unless the file is written in the background. Raise ``JournalError`` if the write failed.
        """
        if self._writes_later:
            self.acknowledge(lambda: None)
            await self.flush()

    async def run(self) -> None:
        """Sync the file whenever an acknowledgement is queued, until ``end`` is called."""
        is_last = False
        while self.failure is None and not is_last:
            await self._sync_wanted.wait()
            is_last = self._is_ending  # read before the sync: if ``end`` is called during it, another sync follows
            await self.sync()

    def end(self) -> None:
        """Make ``run`` return after a last sync."""
        self._is_ending = True
        self._sync_wanted.set()

    async def sync(self) -> None:
        """Sync the records appended before the call, unless they are on disk already. Do nothing after a failure."""
        seq = self.seq
        if self.failure is not None or seq <= self._synced_seq:
            return
        try:
            await self._file.sync()
        except OSError as error:
            self._fail(f"the session could not be flushed to disk in {self._display_path}: {error.strerror or error}")
        else:
            self._synced_seq = max(seq, self._synced_seq)
            self._run_ready()

    def _enqueue(self, action: Action, needed: int) -> None:
        self._queue.append((action, needed))
        if needed > self._synced_seq:
            # Run no action now: it could call a listener, which would act while the caller accepts a line.
            self._sync_wanted.set()
        else:
            self._run_ready()

    def _run_ready(self) -> None:
        """Run the actions at the head of the queue whose records are on disk."""
        while self._queue and self._queue[0][1] <= self._synced_seq:
            action, _ = self._queue.popleft()
            action()

    def _fail(self, why: str) -> None:
        """Handle a failed sync: drop the acknowledgements, call the failure callbacks, and run the other actions."""
        self.failure = why
        self._queue = deque(entry for entry in self._queue if entry[1] == 0)
        for action in self._failure_callbacks:
            action(JournalError(why))
        self._run_ready()

    @property
    def _display_path(self) -> str:
        return str(self.path) if self.path else "its journal"
