"""Where sessions are kept: what a session needs of a store, and the one that is a folder of journals.

Whoever opens a session, lists it or reads it again has a ``Store``, and does not know which one it is.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, TypeAlias

import trio

from chain.agent.questions import Answerer
from chain.errors import SessionError
from chain.events import Origin, Receipt
from chain.journal.beside import delete_beside, kept_beside, sync_folder
from chain.journal.file import DiskFile
from chain.journal.journal import Journal
from chain.journal.lock import lock
from chain.lines.accepted import Accepted
from chain.lines.parse import Urgency
from chain.session import listing
from chain.session.feed import Feed, Listener
from chain.session.intake import Submitted
from chain.session.listing import Summary, find_journal, readable
from chain.session.resume import ReadBack, Resumed, read_back
from chain.threads import Threads, collector_off

_THREADS = Threads("reading sessions")

ROWS_AT_ONCE = 100
"""Rows that are read before the thread finds out that nobody wants them any more: a few milliseconds' work."""


class Reachable(Protocol):
    """What a store that others reach needs of a chain, to bring it their lines and to tell them what happens."""

    @property
    def waiting(self) -> Sequence[Accepted]: ...  # noqa: D102 - as in ``Chain``, like all that follows
    @property
    def receipts(self) -> Sequence[Receipt]: ...  # noqa: D102
    @property
    def resumed(self) -> Resumed | None: ...  # noqa: D102
    @property
    def inbox_size(self) -> int: ...  # noqa: D102
    @property
    def is_closing(self) -> bool: ...  # noqa: D102
    def submit(  # noqa: D102
        self, text: str, *, urgency: Urgency, id: str, local: bool, origin: Origin, to: str
    ) -> Submitted: ...
    def has_room(self, text: str, *, urgency: Urgency, local: bool, to: str) -> bool: ...  # noqa: D102
    def needs_no_room(self, text: str, *, urgency: Urgency, to: str) -> str | None: ...  # noqa: D102
    async def wait_for_change(self) -> None: ...  # noqa: D102
    def stop_accepting(self) -> None: ...  # noqa: D102
    def interrupt(self) -> bool: ...  # noqa: D102
    def drop(self, id: str) -> str: ...  # noqa: D102
    def answering(self) -> Answerer: ...  # noqa: D102
    def answer(self, id: str, text: str, *, origin: Origin) -> Submitted: ...  # noqa: D102
    def feed(self) -> Feed: ...  # noqa: D102
    def listen(self, listener: Listener) -> None: ...  # noqa: D102


Serve: TypeAlias = Callable[[Reachable], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A session that is open for its only writer: its journal, and what that says if it is an old one.

    ``serve`` brings the chain what others send through the store, and tells them what happens, until it is cancelled;
    ``None`` for a store through which nobody sends.
    """

    journal: Journal
    read: ReadBack | None = None
    serve: Serve | None = None


class Store(Protocol):
    """Where sessions are kept.

    An id is the whole one, its beginning, or its end where that is no accident. What is not ``async`` may take as long
    as a disk or a network does. All raise ``SessionError`` where the store cannot be used, and for an id that means no
    session, or several.
    """

    def check(self) -> None:
        """Whether sessions can be kept here."""

    def begin(self, workspace: Path) -> AbstractAsyncContextManager[OpenSession]:
        """A new session that works in a folder. Whoever has one open is its only writer, until the block is left."""

    def resume(self, id: str) -> AbstractAsyncContextManager[OpenSession]:
        """An old one, to go on with. Raises ``SessionError`` also where somebody has it open."""

    def summaries(self, *, latest: int | None = None, workspace: Path | None = None) -> list[Summary]:
        """The sessions, the one that changed last first; of this workspace only, and at most the ``latest``."""

    def find(self, id: str) -> Summary:
        """One of them."""

    def whole_id(self, id: str) -> str:
        """The id of one in full."""

    def rows(self, id: str) -> AbstractContextManager[Iterable[bytes]]:
        """The rows of its journal."""

    def kept(self, id: str, digest: str) -> bytes | None:
        """The content of a file beside its journal; ``None`` if it is no longer there."""

    def delete(self, id: str) -> None:
        """Remove it for good. Raises ``SessionError`` also where somebody has it open."""


class FileStore:
    """Sessions in files, for one machine: a folder of journals below the ``state`` folder, made when it is needed."""

    def __init__(self, state: Path) -> None:
        self._folder = state / "sessions"

    def check(self) -> None:
        """Make the folder, if there is none, with access for nobody else."""
        try:
            _make_folder(self._folder)
            if self._folder.stat().st_mode & 0o077:
                self._folder.chmod(0o700)
        except OSError as error:
            raise SessionError(
                f"sessions cannot be kept here: {error.strerror}; make it writable or set XDG_STATE_HOME",
                file=self._folder,
            ) from None

    @asynccontextmanager
    async def begin(self, workspace: Path) -> AsyncIterator[OpenSession]:
        """A new session."""
        self.check()
        path = self._new_path()
        try:
            try:
                file = DiskFile(path, is_new=True)
            except FileExistsError:  # a clock that was set back, a copied machine
                path = self._new_path()
                file = DiskFile(path, is_new=True)
            try:
                sync_folder(self._folder)
            except OSError:
                file.close()
                raise
        except OSError as error:
            raise SessionError(
                f"a session cannot be kept here: {error.strerror}; make the folder writable or set XDG_STATE_HOME",
                file=path,
            ) from None
        try:
            yield OpenSession(Journal(file, id=path.stem, path=path))
        finally:
            file.close()

    def _new_path(self) -> Path:
        return self._folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}.jsonl"

    @asynccontextmanager
    async def resume(self, id: str) -> AsyncIterator[OpenSession]:
        """An old one. It is read in a worker thread, since a long one takes seconds."""
        self.check()
        path, file, read = await _THREADS.run(partial(_open_and_read, self._folder, id))
        try:
            yield OpenSession(Journal(file, id=path.stem, path=path, seq=read.seq), read)
        finally:
            file.close()

    def summaries(self, *, latest: int | None = None, workspace: Path | None = None) -> list[Summary]:
        """The sessions. What is torn, foreign or of another version is left out."""
        return listing.summaries(self._folder, latest=latest, workspace=workspace)

    def find(self, id: str) -> Summary:
        """One of them."""
        path = find_journal(self._folder, id)
        with readable(path):
            return listing.summary(path)

    def whole_id(self, id: str) -> str:
        """The id of one in full."""
        return find_journal(self._folder, id).stem

    @contextmanager
    def rows(self, id: str) -> Iterator[Iterable[bytes]]:
        """The rows of its journal."""
        path = find_journal(self._folder, id)
        with readable(path), path.open("rb") as rows:
            yield rows

    def kept(self, id: str, digest: str) -> bytes | None:
        """The content of a file beside its journal."""
        return kept_beside(find_journal(self._folder, id), digest)

    def delete(self, id: str) -> None:
        """Remove it for good."""
        path = find_journal(self._folder, id)
        try:
            with path.open("rb") as file:
                # Held until the name is gone, so that nobody opens the session meanwhile.
                lock(file.fileno())
                delete_beside(path)
                path.unlink()
            sync_folder(self._folder)
        except BlockingIOError:
            raise SessionError(f"the session {path.stem} is open in another process; end that first") from None
        except OSError as error:
            raise SessionError(f"cannot be deleted: {error.strerror or error}", file=path) from None


def _open_and_read(folder: Path, id: str) -> tuple[Path, DiskFile, ReadBack]:
    path = find_journal(folder, id)
    try:
        # Locked first, so that nobody writes what is then not read.
        file = DiskFile(path)
    except BlockingIOError:
        why = f"the session {path.stem} is open in another process"
        raise SessionError(f"{why}; chain watch shows it, and chain send sends it lines") from None
    except OSError as error:
        raise SessionError(f"cannot be opened: {error.strerror}; chain sessions show reads it", file=path) from None
    try:
        with readable(path), path.open("rb") as rows, collector_off():
            return path, file, read_back(_while_wanted(rows), partial(kept_beside, path))
    except BaseException as error:
        file.close()
        if isinstance(error, SessionError):
            raise SessionError(error.message, file=path) from None
        raise


def _while_wanted(rows: Iterable[bytes]) -> Iterator[bytes]:
    """The rows, until whoever waits for the thread is cancelled."""
    for number, row in enumerate(rows):
        if number % ROWS_AT_ONCE == 0:
            trio.from_thread.check_cancelled()
        yield row


def _make_folder(folder: Path) -> None:
    """Make a folder and those above it, and bring their names to the disk; those that are there stay as they are."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)  # another process may have been quicker
    sync_folder(folder.parent)
