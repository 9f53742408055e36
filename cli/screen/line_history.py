"""The history of what was typed, in a file that only its user may read. A file that cannot be used is ignored.

The format is that of prompt_toolkit's own history file. Its reader and writer are not used: the reader reads the whole
file at the start, however long it is, and the writer raises when the disk is full.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

MAX_READ = 256 * 1024
"""Bytes that are read from the end of the file: some thousand lines, in a few milliseconds."""

MAX_ENTRY = 10_000
"""Characters of the longest entry that is stored; nobody searches the history for a pasted file."""


def read_entries(path: Path) -> list[str]:
    """The latest entries, the newest first."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - MAX_READ))
            # What comes before the first mark may be half an entry.
            entries = file.read().decode(errors="replace").split("\n# ")[1:]
    except OSError:
        return []
    rows = [[row[1:] for row in entry.split("\n") if row.startswith("+")] for entry in entries]
    return ["\n".join(found) for found in reversed(rows) if found]


def append(path: Path, entry: str) -> None:
    """Append an entry, unless it is too long or the file cannot be written."""
    if len(entry) > MAX_ENTRY:
        return
    rows = "".join(f"+{row}\n" for row in entry.split("\n"))
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, f"\n# {time.strftime('%Y-%m-%d %H:%M:%S')}\n{rows}".encode(errors="replace"))
        finally:
            os.close(file)
