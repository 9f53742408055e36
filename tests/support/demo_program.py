"""The demonstration with the rules in a file. Each tool waits at its gate, unless ``--no-gates``."""

from __future__ import annotations

import itertools
import os
import sys
from contextlib import suppress
from pathlib import Path

import trio

from cli.subcommands.demo import serve_prompt

_calls = itertools.count(1)


async def at_a_gate() -> None:
    """Wait for a write to the pipe with the number of this call."""
    path = Path(os.environ["GATES"]) / f"tool-{next(_calls)}"
    with suppress(FileExistsError):
        os.mkfifo(path)
    await trio.to_thread.run_sync(path.read_text, abandon_on_cancel=True)


if __name__ == "__main__":
    waits = "--no-gates" not in sys.argv
    pause = at_a_gate if waits else trio.lowlevel.checkpoint
    sys.exit(serve_prompt(pause=pause, rules=Path(sys.argv[1]), ascii="--ascii" in sys.argv))
