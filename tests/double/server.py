"""The double in a process of its own: ``python -m double.server --script FILE.json``.

The first line on stdout is the port; the last, when it ends, a report as JSON (meanwhile at ``GET /double/report``).
It ends when its input does, or at SIGTERM; a parent keeps a pipe open and so leaves no orphan behind.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path

import trio

from .rules import Policy
from .script import Setup, setup
from .serving import RulesBroken, serve


def main() -> int:
    """Serve until told to stop; 1 if a rule was broken."""
    parser = argparse.ArgumentParser(prog="python -m double.server", description="A strict Messages API for tests.")
    parser.add_argument("--script", type=Path, required=True, metavar="FILE", help="the steps, as JSON")
    arguments = parser.parse_args()
    return trio.run(_serve, setup(json.loads(arguments.script.read_text(encoding="utf-8"))))


async def _serve(wanted: Setup) -> int:
    status, report = 0, ""
    serving = serve(
        wanted.script, policy=Policy(key=wanted.key), continuity=wanted.continuity, keep=False, lean=wanted.lean
    )
    try:
        async with serving as double:
            _say(double.url.rsplit(":", 1)[1])
            await _until_told()
            report = json.dumps(double.report())
    except RulesBroken:
        status = 1
    _say(report)
    return status


async def _until_told() -> None:
    async def read() -> None:
        async with trio.lowlevel.FdStream(sys.stdin.fileno()) as stream:
            async for _ in stream:
                pass
        nursery.cancel_scope.cancel()

    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            async for _ in signals:
                break
            nursery.cancel_scope.cancel()


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
