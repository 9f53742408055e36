"""The search behind ``search_files``, for a thread: it gives up where an expression takes too long."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from chain.errors import ToolError
from chain.text.search import SearchBudget
from chain.tools.paths import MAX_WHOLE, open_file

if TYPE_CHECKING:
    from chain.text.search import Pattern

MAX_LINE = 2_000
"""Characters of a line that are looked at: minified files have lines of megabytes."""

MAX_SHOWN = 200
"""Characters of a matching line that are shown."""

FILE_S = 3.0
"""Seconds of processor time for one file; the largest takes half of one. No abandoned search goes on for longer."""


@dataclass
class Findings:
    """What a search has found so far: at most ``most`` rows, and the counts of all."""

    most: int
    rows: list[str] = field(default_factory=list)
    matches: int = 0
    files: int = 0
    skipped: int = 0
    """Files that are binary, not readable or too large."""


def search(pattern: Pattern, root: Path, files: Iterable[tuple[str, tuple[str, ...]]], found: Findings) -> None:
    """Add what is in these files, each its shown path and its real one's parts below ``root``. Raises ``TooSlow``."""
    for shown, parts in files:
        trio.from_thread.check_cancelled()
        raw = _read(root, parts, shown)
        if raw is None or b"\0" in raw:
            found.skipped += 1
            continue
        before, budget = found.matches, SearchBudget(FILE_S)
        for n, line in enumerate(raw.decode("utf-8", "replace").split("\n"), 1):
            match = budget.search(pattern, line, MAX_LINE)
            if match is None:
                continue
            found.matches += 1
            if len(found.rows) < found.most:
                found.rows.append(f"{shown}:{n}: {around(line, match.start())}")
        found.files += found.matches > before


def _read(root: Path, parts: tuple[str, ...], shown: str) -> bytes | None:
    """The content of a regular file that is not too large."""
    try:
        with open_file(root, parts, shown) as file:
            raw = file.read(MAX_WHOLE + 1)
    except (ToolError, OSError):
        return None
    return raw if len(raw) <= MAX_WHOLE else None


def around(line: str, at: int) -> str:
    """The line, or the part of a long one that has the match."""
    line = line.rstrip("\r")
    start = 0 if at < MAX_SHOWN * 3 // 4 else at - MAX_SHOWN // 2
    part = line[start : start + MAX_SHOWN].strip()
    return ("…" if start else "") + part + ("…" if len(line) > start + MAX_SHOWN else "")
