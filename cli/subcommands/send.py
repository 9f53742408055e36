"""``chain send LINE``: a line to a chain that runs in another terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from chain.exit_codes import LINES_LEFT
from cli.door.visit import Visit

SENT = 0
FAILED = 1
"""It was refused, or the chain ended before it said what became of the line."""

_GONE = "the chain ended before it said what became of the line"
_TAKEN = ("delivered", "handled")


def send(visit: Visit, line: str, *, wait: bool, say: Callable[[str], object]) -> tuple[int, str]:
    """Send a line, and ``wait`` for what becomes of it; the exit code and a problem. Raises ``UserError``."""
    try:
        visit.send(type="line", text=line)
    except OSError:
        return FAILED, _GONE
    for row in visit.rows():
        match row:
            case {"type": "notice", "message": str(message)}:
                say(message)
                return SENT, ""  # the answer to what needed no run
            case {"type": "error", "message": str(message)} | {"type": "line_refused", "reason": str(message)}:
                return FAILED, message
            case {"type": "line_queued"} if not wait:
                say(f"{row['id']} waits for {row.get('target_agent', 'main')}.")
                return SENT, ""
            case {"type": "receipt", "state": str(state)}:
                return _settled(state, row, say)
            case _:
                pass
    return FAILED, _GONE


def _settled(state: str, row: Mapping[str, Any], say: Callable[[str], object]) -> tuple[int, str]:
    why = str(row.get("reason") or "")
    if state in _TAKEN:
        say(_taken(state, row, why))
        return SENT, ""
    return LINES_LEFT, f"the line was {state}" + (f": {why}" if why else "")


def _taken(state: str, row: Mapping[str, Any], why: str) -> str:
    if state == "delivered" and row.get("point") == "start":
        return f"{row['id']} has started a run."
    if state == "delivered":
        return f"{row['id']} is in: {row.get('agent', 'main')}, iteration {row.get('iteration', 0)}."
    return why or f"{row['id'] or 'It'} was done."
