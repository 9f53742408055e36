"""The program as a process of its own, with the layer under it: ``-m crash.separate COUNTS REQUESTS KILL ARGS``."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from . import layer
from .point import Kill

layer.install()

from .program import begin  # noqa: E402 - it imports the program

if __name__ == "__main__":
    counts, requests, kill = sys.argv[1:4]
    sys.argv[1:] = sys.argv[4:]
    begin(Path(counts), Path(requests), Kill.from_json(kill) if kill else None)
    runpy.run_module("cli", run_name="__main__", alter_sys=True)
