"""The search behind ``search_files``, run as a program of its own: one request as JSON in, one answer as JSON out.

Python's ``re`` holds the interpreter's lock while it matches, and some expressions take longer than the universe has
existed for a line of forty characters. In a thread of the chain that would stop everything, keys included; a process
can be killed. It is run by its path with nothing but the standard library, which starts it in about 20 ms.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from collections.abc import Sequence
from typing import Any

if __name__ == "__main__":
    # Run by its path and isolated, it finds the standard library alone; its own package comes after that.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from chain.tools import lifeline

MAX_FILE = 5 * 1024 * 1024
"""Bytes of a file that is searched; larger ones are data rather than text, and counted as left out."""

MAX_LINE = 2_000
"""Characters of a line that are looked at: minified files have lines of megabytes."""

MAX_SHOWN = 200
"""Characters of a matching line that are shown."""

# O_PATH, where it exists, also opens a folder that may be passed through and not listed.
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def search(request: dict[str, Any]) -> dict[str, Any]:
    """Search ``files`` for ``pattern``; all are counted and at most ``rows`` given.

    A file is ``[shown path, parts of its real path below root]``.
    """
    try:
        pattern = re.compile(request["pattern"])
    except (re.error, OverflowError, RecursionError) as error:
        return {"error": str(error)}
    rows: list[str] = []
    found = {"matches": 0, "files": 0, "skipped": 0}
    for shown, parts in request["files"]:
        raw = _read(request["root"], parts)
        if raw is None or b"\0" in raw:
            found["skipped"] += 1
            continue
        before = found["matches"]
        for n, line in enumerate(raw.decode("utf-8", "replace").split("\n"), 1):
            match = pattern.search(line, 0, MAX_LINE)
            if match is None:
                continue
            found["matches"] += 1
            if len(rows) < request["rows"]:
                rows.append(f"{shown}:{n}: {around(line, match.start())}")
        found["files"] += found["matches"] > before
    return {"rows": rows, **found}


def open_below(root: str, parts: Sequence[str], flags: int = 0) -> int:
    """A descriptor, to read from, of what has these parts below a folder; raises ``OSError``.

    No link is followed: the path was resolved before, so a part that is one now was put there since, and may lead out.
    It never waits: a pipe without a writer would otherwise hold a thread for ever.
    """
    *folders, name = parts or (".",)
    here = open_folder(root, folders)
    try:
        return os.open(name, flags | os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
    finally:
        os.close(here)


def open_folder(root: str, parts: Sequence[str]) -> int:
    """A descriptor, to reach further from, of the folder that has these parts below another; raises ``OSError``."""
    here = os.open(root, _FOLDER)
    for part in parts:
        try:
            below = os.open(part, _FOLDER, dir_fd=here)
        finally:
            os.close(here)
        here = below
    return here


def _read(root: str, parts: Sequence[str]) -> bytes | None:
    """The content of a regular file that is not too large."""
    try:
        descriptor = open_below(root, parts)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE:
            return None
        try:
            return file.read(MAX_FILE)
        except OSError:
            return None


def around(line: str, at: int) -> str:
    """The line, or the part of a long one that has the match."""
    line = line.rstrip("\r")
    start = 0 if at < MAX_SHOWN * 3 // 4 else at - MAX_SHOWN // 2
    part = line[start : start + MAX_SHOWN].strip()
    return ("…" if start else "") + part + ("…" if len(line) > start + MAX_SHOWN else "")


if __name__ == "__main__":
    json.dump(search(json.loads(lifeline.received())), sys.stdout)
