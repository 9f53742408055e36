"""The versions of files that the agents of a session have read, so that no agent overwrites what it has not read."""

from __future__ import annotations

import hashlib
from pathlib import Path

import trio


class Seen:
    """The digest of each file that an agent of this process has read or written, by its real path.

    Digests are recorded only in trio's thread, and only by calls that were not cancelled: an abandoned thread would
    record an old version.

    ``editing`` is held from the check of a file until its new digest is recorded, so that two agents that edit it at
    the same time do not overwrite each other. There is one lock for all files, since an edit takes milliseconds.
    """

    def __init__(self) -> None:
        self.editing = trio.Lock()
        self.digests: dict[Path, str] = {}


def digest(content: bytes) -> str:
    """Return the SHA-256 of a file's content in hexadecimal."""
    return hashlib.sha256(content).hexdigest()
