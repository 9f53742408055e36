"""The versions of files that agents have read, so that no agent overwrites a version that it did not read."""

from __future__ import annotations

import hashlib
from pathlib import Path

import trio


class KnownFileVersions:
    """The digests of the file versions that agents of this process last read or wrote, by the files' real paths.

    Digests are recorded only in trio's thread, and only by calls that were not cancelled. Otherwise the abandoned
    thread of a cancelled call could replace a newer digest by an older one.

    ``edit_lock`` is a lock for all files. An edit holds it from the check of its file until the new digest is recorded,
    so that two agents cannot overwrite each other's edits.
    """

    def __init__(self) -> None:
        self.edit_lock = trio.Lock()
        self.digests: dict[Path, str] = {}


def digest(content: bytes) -> str:
    """Return the SHA-256 of a file's content in hexadecimal."""
    return hashlib.sha256(content).hexdigest()
