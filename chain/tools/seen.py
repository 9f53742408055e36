"""Which files the agents of a session know, and as what: nobody overwrites what nobody has read."""

from __future__ import annotations

import hashlib
from pathlib import Path

import trio


class Seen:
    """``digests``, by real path: that of each file which any agent of this process read or wrote, as it was then.

    They are noted in the thread of trio only, by calls that were not given up: a thread that was left behind would note
    what has long been otherwise.

    ``editing`` is held from the look at a file to the note of what was written, so that of two agents that edit it at
    the same time neither overwrites what the other wrote. One lock for all files: an edit takes milliseconds.
    """

    def __init__(self) -> None:
        self.editing = trio.Lock()
        self.digests: dict[Path, str] = {}


def digest(content: bytes) -> str:
    """The digest of a file's content."""
    return hashlib.sha256(content).hexdigest()
