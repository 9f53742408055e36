"""The double in its own process: ``python -m double.server --script FILE.json``.

    {"lean": false, "repeat": false, "steps": [
        {"type": "say", "blocks": [{"type": "tool_use", "name": "echo", "input": {}}], "times": 99},
        {"type": "say", "blocks": [{"type": "text", "text": "done"}]}]}

``lean`` and ``repeat`` are optional. With ``repeat`` the steps are repeated after the last one.

The first line of the output is the port, and the last one, after the end of the input, is a report as JSON. The process
ends with its parent, which holds the other end of the pipe.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import trio

from .serving import Double, RulesBroken, Script, serve
from .steps import from_json


def main() -> int:
    """Serve until the input ends; return 1 if a rule was broken."""
    parser = argparse.ArgumentParser(prog="python -m double.server", description="A strict Messages API for tests.")
    parser.add_argument("--script", type=Path, required=True, metavar="FILE", help="the steps, as JSON")
    arguments = parser.parse_args()
    return trio.run(_serve, json.loads(arguments.script.read_text(encoding="utf-8")))


async def _serve(wanted: dict[str, Any]) -> int:
    steps = from_json(wanted.pop("steps"))
    script: Script = (lambda _, n: steps[n % len(steps)]) if wanted.pop("repeat", False) else steps
    status = 0
    try:
        async with serve(script, keep=False, **wanted) as double:
            _say(double.url.rsplit(":", 1)[1])
            async with trio.lowlevel.FdStream(sys.stdin.fileno()) as stream:
                async for _ in stream:
                    pass
    except RulesBroken:
        status = 1
    _say(json.dumps(_report(double)))
    return status


def _report(double: Double) -> dict[str, Any]:
    return {
        "complaints": [c for r in double.requests for c in r.complaints],
        "cache_read": sum(a.cache_read for a in double.accounts),
        "repeatable": sum(a.repeatable for a in double.accounts),
    }


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
