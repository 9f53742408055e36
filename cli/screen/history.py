"""What was typed, kept in a file that nobody else reads. Where the file cannot be used, nothing is kept.

The format is that of prompt_toolkit's own history file. Its reader is not used: it reads the whole file at the start,
however long that has become, and its writer raises when the disk is full.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

MAX_READ = 256 * 1024
"""Bytes that are read: some thousand lines, in no time."""

MAX_ENTRY = 10_000
"""Characters of an entry that is kept; a pasted file is not what anybody searches for."""


def read(path: Path) -> list[str]:
    """The latest entries, the newest first."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - MAX_READ))
            # What the cut may have left of an entry comes before the first mark.
            entries = file.read().decode(errors="replace").split("\n# ")[1:]
    except OSError:
        return []
    rows = [[row[1:] for row in entry.split("\n") if row.startswith("+")] for entry in entries]
    return ["\n".join(found) for found in reversed(rows) if found]


def append(path: Path, entry: str) -> None:
    """Keep an entry."""
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
