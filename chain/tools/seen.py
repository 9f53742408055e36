"""Which files the agents of a session know, and as what: nobody overwrites what nobody has read."""

from __future__ import annotations

import hashlib
from pathlib import Path

import trio


class Seen:
    """The digest of each file that was read or written in this process, by any agent, as it was then.

    Keys are real paths. It is written to in the thread of trio only, by calls that were not given up: a thread that was
    left behind would note what has long been otherwise.

    ``editing`` is held from the look at a file to the note of what was written: two agents that edit the same file at
    the same time both go through, and neither overwrites what the other wrote. One lock for all files, since an edit
    takes milliseconds.
    """

    def __init__(self) -> None:
        self.editing = trio.Lock()
        self._digests: dict[Path, str] = {}

    def note(self, path: Path, digest: str) -> None:
        """A file was read or written, and had this digest."""
        self._digests[path] = digest

    def get(self, path: Path) -> str | None:
        """The digest that a file had when it was last read or written."""
        return self._digests.get(path)


def digest(content: bytes) -> str:
    """The digest of a file's content."""
    return hashlib.sha256(content).hexdigest()
