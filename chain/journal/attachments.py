"""Attachments: content that is too large for a record, in files next to a journal. Each file is named by its digest.

An attachment is on disk before the record that names it is written. The content of an attachment never changes.
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

ReadAttachment: TypeAlias = Callable[[str], bytes | None]
"""A function that takes a digest and returns the content of the attachment; ``None`` if it was deleted."""

MAX_ATTACHMENT = 16 * 1024 * 1024
"""The maximum number of bytes that are read of an attachment. Every attachment is smaller."""


def attachments_folder(journal: Path) -> Path:
    """Return the folder of a journal's attachments. The folder exists once an attachment has been stored."""
    return journal.with_suffix(".files")


def store_attachment(journal: Path, digest: str, content: bytes) -> None:
    """Write an attachment next to a journal and fsync it. Do nothing if it exists. Raise ``OSError`` if this fails."""
    folder = attachments_folder(journal)
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / digest
    if path.exists():
        return
    write_atomically(path, content, sync=True)
    sync_folder(folder)
    sync_folder(folder.parent)  # the folder itself may be new


def write_atomically(path: Path, content: bytes, *, sync: bool) -> None:
    """Write or replace a file that only its owner can read. With ``sync``, fsync the content.

    If this fails, raise ``OSError`` and leave an existing file unchanged.
    """
    unfinished = path.with_name(f".{path.name[:16]}-{secrets.token_hex(4)}")
    try:
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(content)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        unfinished.rename(path)
    except OSError:
        with suppress(OSError):
            unfinished.unlink()
        raise


def read_attachment(journal: Path, digest: str) -> bytes | None:
    """Return the content of an attachment; ``None`` if it was deleted or does not match its digest."""
    try:
        path = attachments_folder(journal) / os.path.basename(digest)
        with regular_file(os.open(path, FLAGS | os.O_NOFOLLOW)) as file:
            content = file.read(MAX_ATTACHMENT)
    except (OSError, ValueError):
        return None
    return content if hashlib.sha256(content).hexdigest() == digest else None


def delete_attachments(journal: Path) -> None:
    """Delete the attachments of a journal. Raise ``OSError`` if they cannot be deleted."""
    with suppress(FileNotFoundError):
        shutil.rmtree(attachments_folder(journal))


def sync_folder(folder: Path) -> None:
    """Fsync a directory, so that a created or removed entry survives a crash."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
