"""Run a Python program whose disk hangs while a pipe exists in the folder ``$GATES``.

A pipe named ``disk`` blocks every sync, and one named ``write`` every write to a journal.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

_sync, _write = os.fdatasync, os.write


def _blocking_sync(fd: int) -> None:
    _wait_at("disk")
    _sync(fd)


def _blocking_write(fd: int, data: bytes) -> int:
    if os.readlink(f"/proc/self/fd/{fd}").endswith(".jsonl"):
        _wait_at("write")
    return _write(fd, data)


def _wait_at(name: str) -> None:
    gate = Path(os.environ["GATES"]) / name
    if gate.exists():
        gate.read_bytes()


if __name__ == "__main__":
    os.fdatasync = _blocking_sync  # type: ignore[assignment]
    os.write = _blocking_write  # type: ignore[assignment]
    _, _interpreter, *sys.argv = sys.argv
    runpy.run_path(sys.argv[0], run_name="__main__")
