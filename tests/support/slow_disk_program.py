"""A Python program on a disk that comes to a stand while there is a pipe among the gates.

One named ``disk`` holds up all that is brought to the disk, one named ``write`` every write to a journal.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

_sync, _write = os.fdatasync, os.write


def _sync_at_the_gate(fd: int) -> None:
    _stand_at("disk")
    _sync(fd)


def _write_at_the_gate(fd: int, data: bytes) -> int:
    if os.readlink(f"/proc/self/fd/{fd}").endswith(".jsonl"):
        _stand_at("write")
    return _write(fd, data)


def _stand_at(name: str) -> None:
    gate = Path(os.environ["GATES"]) / name
    if gate.exists():
        gate.read_bytes()


if __name__ == "__main__":
    os.fdatasync = _sync_at_the_gate  # type: ignore[assignment]
    os.write = _write_at_the_gate  # type: ignore[assignment]
    _, _interpreter, *sys.argv = sys.argv
    runpy.run_path(sys.argv[0], run_name="__main__")
