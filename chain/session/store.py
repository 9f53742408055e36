"""Where sessions are kept: the folder of their journals, and a journal with a new id."""

from __future__ import annotations

import gc
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import trio

from chain.errors import SessionError
from chain.journal.file import DiskFile
from chain.journal.journal import Journal
from chain.session.listing import find_journal, sync_folder
from chain.session.resume import ReadBack, read_back
from chain.threads import Threads

_THREADS = Threads("reading sessions")

ROWS_AT_ONCE = 100
"""Rows that are read before the thread finds out that nobody wants them any more: a few milliseconds' work."""


def sessions_folder(state: Path) -> Path:
    """The folder of the journals below the state folder, made with access for nobody else. Raises ``SessionError``."""
    folder = state / "sessions"
    try:
        _make_folder(folder)
        if folder.stat().st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as error:
        raise SessionError(
            f"sessions cannot be kept here: {error.strerror}; make it writable or set XDG_STATE_HOME", file=folder
        ) from None
    return folder


@contextmanager
def new_journal(folder: Path) -> Iterator[Journal]:
    """A journal with a new id in ``folder``. Raises ``SessionError``."""
    path = _new_path(folder)
    try:
        try:
            file = DiskFile(path, is_new=True)
        except FileExistsError:  # a clock that was set back, a copied machine
            path = _new_path(folder)
            file = DiskFile(path, is_new=True)
        sync_folder(folder)
    except OSError as error:
        raise SessionError(
            f"a session cannot be kept here: {error.strerror}; make the folder writable or set XDG_STATE_HOME",
            file=path,
        ) from None
    try:
        yield Journal(file, id=path.stem, path=path)
    finally:
        file.close()


@asynccontextmanager
async def old_journal(folder: Path, id: str) -> AsyncIterator[tuple[Journal, ReadBack]]:
    """The journal of the session whose id begins or ends so, to be gone on with, and what it says.

    It is read in a worker thread, since a long one takes seconds. Raises ``SessionError``: for no or several such
    sessions, for one that another process has open, and for one that cannot be read.
    """
    path, file, read = await _THREADS.run(partial(_open_and_read, folder, id))
    try:
        yield Journal(file, id=path.stem, path=path, seq=read.seq), read
    finally:
        file.close()


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
        with path.open("rb") as rows, _not_collected():
            return path, file, read_back(_while_wanted(rows), path)
    except BaseException as error:
        file.close()
        if isinstance(error, OSError):
            raise SessionError(f"cannot be read: {error.strerror}", file=path) from None
        if isinstance(error, SessionError):
            raise SessionError(error.message, file=path) from None
        raise


@contextmanager
def _not_collected() -> Iterator[None]:
    """Keep the garbage collector from what is made inside the block: nearly all of it stays, and none is in a circle.

    It stops every thread while it looks through that: 0.2 s for a session of 10,000 iterations, more than once.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if was_on:
            gc.enable()


def _while_wanted(rows: Iterable[bytes]) -> Iterator[bytes]:
    """The rows, until whoever waits for the thread is cancelled."""
    for number, row in enumerate(rows):
        if number % ROWS_AT_ONCE == 0:
            trio.from_thread.check_cancelled()
        yield row


def _new_path(folder: Path) -> Path:
    return folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}.jsonl"


def _make_folder(folder: Path) -> None:
    """Make a folder and those above it, and bring their names to the disk; those that are there stay as they are."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        if not folder.is_dir():
            raise
        # Another process was quicker.
    sync_folder(folder.parent)
