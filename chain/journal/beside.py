"""Files beside a journal, each named by the digest of its content, for what is too large to stand in a record.

Such a file is on the disk, whole, before the record that names it is written. It is never changed, so what is named
twice is kept once.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from chain.regular_file import FLAGS, regular_file

SUFFIX = ".files"

Kept: TypeAlias = Callable[[str], bytes | None]
"""Gives the content that is kept under a digest; ``None`` if it is no longer there."""

MAX_KEPT = 16 * 1024 * 1024
"""Bytes of a file that is read back: more than any that is written."""


def folder_beside(journal: Path) -> Path:
    """The folder of the files beside a journal; it is made when the first is kept."""
    return journal.with_suffix(SUFFIX)


def keep_beside(journal: Path, digest: str, content: bytes) -> None:
    """Bring a file to the disk, unless it is there. Raises ``OSError``."""
    folder = folder_beside(journal)
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / digest
    if path.exists():
        return
    unfinished = folder / f".{digest[:16]}-{secrets.token_hex(4)}"
    try:
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(path)
    except OSError:
        with suppress(OSError):
            unfinished.unlink()
        raise
    sync_folder(folder)
    sync_folder(folder.parent)  # where the folder itself may be new


def kept_beside(journal: Path, digest: str) -> bytes | None:
    """The content of a file; ``None`` if it is no longer there, or is another's."""
    try:
        path = folder_beside(journal) / os.path.basename(digest)
        with regular_file(os.open(path, FLAGS | os.O_NOFOLLOW)) as file:
            content = file.read(MAX_KEPT)
    except (OSError, ValueError):
        return None
    return content if hashlib.sha256(content).hexdigest() == digest else None


def delete_beside(journal: Path) -> None:
    """Remove the files beside a journal, and their folder. Raises ``OSError``."""
    with suppress(FileNotFoundError):
        shutil.rmtree(folder_beside(journal))


def sync_folder(folder: Path) -> None:
    """Bring a new name in a folder to the disk, or that one is gone: a file's content alone would not be found."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
