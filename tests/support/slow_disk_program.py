"""A Python program on a disk that comes to a stand while there is a pipe named ``disk`` among the gates."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

_sync = os.fdatasync


def _sync_at_the_gate(fd: int) -> None:
    gate = Path(os.environ["GATES"]) / "disk"
    if gate.exists():
        gate.read_bytes()
    _sync(fd)


if __name__ == "__main__":
    os.fdatasync = _sync_at_the_gate  # type: ignore[assignment]
    _, _interpreter, *sys.argv = sys.argv
    runpy.run_path(sys.argv[0], run_name="__main__")
