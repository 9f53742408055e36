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
from typing import Any

MAX_FILE = 5 * 1024 * 1024
"""Bytes of a file that is searched; larger ones are data rather than text, and counted as left out."""

MAX_LINE = 2_000
"""Characters of a line that are looked at: minified files have lines of megabytes."""

MAX_SHOWN = 200
"""Characters of a matching line that are shown."""


def search(request: dict[str, Any]) -> dict[str, Any]:
    """Search the files ``[shown path, real path]`` for ``pattern``; all are counted and at most ``rows`` given."""
    try:
        pattern = re.compile(request["pattern"])
    except (re.error, OverflowError, RecursionError) as error:
        return {"error": str(error)}
    rows: list[str] = []
    found = {"matches": 0, "files": 0, "skipped": 0}
    for shown, real in request["files"]:
        raw = _read(real)
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
                rows.append(f"{shown}:{n}: {_around(line, match.start())}")
        found["files"] += found["matches"] > before
    return {"rows": rows, **found}


def _read(path: str) -> bytes | None:
    """The content of a regular file that is not too large; opening never waits, also not for a pipe's other end."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
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


def _around(line: str, at: int) -> str:
    """The line, or the part of a long one that has the match."""
    line = line.rstrip("\r")
    start = 0 if at < MAX_SHOWN * 3 // 4 else at - MAX_SHOWN // 2
    part = line[start : start + MAX_SHOWN].strip()
    return ("…" if start else "") + part + ("…" if len(line) > start + MAX_SHOWN else "")


if __name__ == "__main__":
    json.dump(search(json.load(sys.stdin)), sys.stdout)
