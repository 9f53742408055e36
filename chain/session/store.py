"""Stores of sessions: the interface of a store, and a store that is a folder of journals."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Protocol

import trio

from chain.concurrency.threads import Threads, without_collector
from chain.errors import SessionError
from chain.journal.attachments import delete_attachments, read_attachment, sync_folder
from chain.journal.file import DiskFile
from chain.journal.journal import Journal
from chain.journal.lock import lock
from chain.session import listing
from chain.session.listing import Summary, convert_read_errors, find_journal
from chain.session.resume import LoadedSession, load_journal
from chain.session.state import State

_THREADS = Threads("reading sessions")

ROWS_PER_CHECK = 100
"""The number of rows that are read between two checks for cancellation: a few milliseconds of work."""


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A session that is open for writing. If it was resumed, ``loaded`` is the result of reading its journal."""

    journal: Journal
    state: State
    loaded: LoadedSession | None = None


class Store(Protocol):
    """The interface of a store of sessions.

    Methods accept a part of an id: its beginning, or its ending of at least four characters. Methods that are not
    ``async`` block on a disk or a network. All methods raise ``SessionError`` if the store cannot be used, or if an id
    matches no session or more than one.
    """

    def check(self) -> None:
        """Raise ``SessionError`` if sessions cannot be stored here."""

    def open_new(self, workspace: Path) -> AbstractAsyncContextManager[OpenSession]:
        """Create a session for a workspace and hold its write lock for the duration of the block."""

    def resume(self, id: str) -> AbstractAsyncContextManager[OpenSession]:
        """Open an existing session and hold its write lock for the duration of the block.

        Raise ``SessionError`` also if another process has it open.
        """

    def summaries(self, *, latest: int | None = None, workspace: Path | None = None) -> list[Summary]:
        """Return the summaries of sessions, the most recently changed first.

        With ``workspace``, return only sessions that were last opened in it. ``latest`` is the maximum number.
        """

    def find(self, id: str) -> Summary:
        """Return the summary of a session."""

    def whole_id(self, id: str) -> str:
        """Return the full id of the session that a part of an id identifies."""

    def rows(self, id: str) -> AbstractContextManager[Iterable[bytes]]:
        """Open a session's journal for the duration of the block, to iterate over its rows."""

    def attachment(self, id: str, digest: str) -> bytes | None:
        """Return the content of an attachment; ``None`` if it was deleted."""

    def delete(self, id: str) -> None:
        """Delete a session. Raise ``SessionError`` also if another process has it open."""


class FileStore:
    """A store for one machine: a folder of journals in the ``state`` folder, created when it is needed."""

    def __init__(self, state: Path) -> None:
        self._folder = state / "sessions"

    def check(self) -> None:
        """Create the folder if it is missing, and write a temporary file in it. Raise ``SessionError`` if this fails.

        Permissions alone would not show that the disk is full.
        """
        self._make_folder()
        try:
            with TemporaryFile(dir=self._folder, buffering=0) as probe:
                probe.write(b"\n")
        except OSError as error:
            raise self._unusable(error) from None

    def _make_folder(self) -> None:
        """Create the folder if it is missing, readable only by the user. Raise ``SessionError`` if this fails."""
        try:
            _make_folder(self._folder)
            if self._folder.stat().st_mode & 0o077:
                self._folder.chmod(0o700)
        except OSError as error:
            raise self._unusable(error) from None

    def _unusable(self, error: OSError) -> SessionError:
        why = f"sessions cannot be stored here: {error.strerror}; make the folder writable or set XDG_STATE_HOME"
        return SessionError(why, file=self._folder)

    @asynccontextmanager
    async def open_new(self, workspace: Path) -> AsyncIterator[OpenSession]:
        """Create a session for a workspace and hold its write lock for the duration of the block."""
        self._make_folder()
        path = self._folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}.jsonl"
        try:
            file = DiskFile(path, is_new=True)
        except OSError as error:
            raise self._unusable(error) from None
        with _open_journal(path, file) as opened:
            yield opened

    @asynccontextmanager
    async def resume(self, id: str) -> AsyncIterator[OpenSession]:
        """Open an existing session. A worker thread reads the journal, since reading a long journal takes seconds."""
        self._make_folder()
        path, file, loaded = await _THREADS.run(partial(_open_and_read, self._folder, id))
        with _open_journal(path, file, loaded) as opened:
            yield opened

    def summaries(self, *, latest: int | None = None, workspace: Path | None = None) -> list[Summary]:
        """Return the summaries of sessions. Files that are not journals are skipped."""
        return listing.list_summaries(self._folder, latest=latest, workspace=workspace)

    def find(self, id: str) -> Summary:
        """Return the summary of a session."""
        path = find_journal(self._folder, id)
        with convert_read_errors(path):
            return listing.summary_at(path)

    def whole_id(self, id: str) -> str:
        """Return the full id of the session that a part of an id identifies."""
        return find_journal(self._folder, id).stem

    @contextmanager
    def rows(self, id: str) -> Iterator[Iterable[bytes]]:
        """Open a session's journal for the duration of the block, to iterate over its rows."""
        path = find_journal(self._folder, id)
        with convert_read_errors(path), path.open("rb") as rows:
            yield rows

    def attachment(self, id: str, digest: str) -> bytes | None:
        """Return the content of an attachment; ``None`` if it was deleted."""
        return read_attachment(find_journal(self._folder, id), digest)

    def delete(self, id: str) -> None:
        """Delete a session."""
        path = find_journal(self._folder, id)
        try:
            with path.open("rb") as file:
                # Locked until the file is deleted, so that no process opens the session meanwhile.
                lock(file.fileno())
                delete_attachments(path)
                listing.summary_path(path).unlink(missing_ok=True)
                path.unlink()
            sync_folder(self._folder)
        except BlockingIOError:
            raise SessionError(f"the session {path.stem} is open in another process; end that first") from None
        except OSError as error:
            raise SessionError(f"cannot be deleted: {error.strerror or error}", file=path) from None


@contextmanager
def _open_journal(path: Path, file: DiskFile, loaded: LoadedSession | None = None) -> Iterator[OpenSession]:
    """Yield the open session of a journal file. After the block, save its summary and close the file."""
    state, seq = (State(), 0) if loaded is None else (loaded.state, loaded.seq)
    journal = Journal(file, id=path.stem, path=path, seq=seq)
    journal.connect(state.apply, emit=lambda event: None)
    try:
        yield OpenSession(journal, state, loaded)
    finally:
        if state.session is not None:
            listing.save_summary(path, state, file.size)
        file.close()


def _open_and_read(folder: Path, id: str) -> tuple[Path, DiskFile, LoadedSession]:
    """Lock and read the journal of a session. Raise ``SessionError`` if it is open elsewhere or unreadable."""
    path = find_journal(folder, id)
    try:
        # Locked first, so that no record is written after the read.
        file = DiskFile(path)
    except BlockingIOError:
        why = f"the session {path.stem} is open in another process"
        raise SessionError(f"{why}; chain watch shows it, and chain send sends it lines") from None
    except OSError as error:
        raise SessionError(f"cannot be opened: {error.strerror}; chain sessions show reads it", file=path) from None
    try:
        with convert_read_errors(path), path.open("rb") as rows, without_collector():
            return path, file, load_journal(_until_cancelled(rows), partial(read_attachment, path))
    except BaseException as error:
        file.close()
        if isinstance(error, SessionError):
            raise SessionError(error.message, file=path) from None
        raise


def _until_cancelled(rows: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the rows, and raise ``trio.Cancelled`` if the task that waits for this worker thread is cancelled.

    Must be called in a worker thread of trio.
    """
    for number, row in enumerate(rows):
        if number % ROWS_PER_CHECK == 0:
            trio.from_thread.check_cancelled()
        yield row


def _make_folder(folder: Path) -> None:
    """Create a folder and its missing parents, and fsync each parent."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)  # another process may have created it meanwhile
    sync_folder(folder.parent)
