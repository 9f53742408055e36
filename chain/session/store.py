"""Where sessions are kept: the folder of their journals, and a journal with a new id."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chain.errors import SessionError
from chain.session.journal import DiskFile, Journal


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
        _sync_folder(folder)
    except OSError as error:
        raise SessionError(
            f"a session cannot be kept here: {error.strerror}; make the folder writable or set XDG_STATE_HOME",
            file=path,
        ) from None
    try:
        yield Journal(file, id=path.stem, path=path)
    finally:
        file.close()


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
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    """Bring a new file's name to the disk: its content alone would be safe and not to be found."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
