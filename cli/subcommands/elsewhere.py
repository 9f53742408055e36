"""``chain send LINE`` and ``chain watch``: a line to a chain that runs in another terminal, and what it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any

from chain.errors import UserError
from chain.events import Point
from chain.session.exit_codes import LINES_LEFT
from chain.text.plain import sanitize
from cli.event_rows import row_of

if TYPE_CHECKING:
    from cli.door.visit import Visit
    from cli.show.renderer import Renderer

_GONE = "the chain ended before it said what became of the line"


def send(visit: Visit, line: str, *, wait: bool, say: Callable[[str], object]) -> tuple[int, str]:
    """Send a line, and ``wait`` for what becomes of it; the exit code and a problem. Raises ``UserError``.

    The code is 1 if it was refused, or if the chain ended before it said what became of it.
    """
    try:
        visit.send(type="line", text=line)
    except OSError:
        return 1, _GONE
    for row in visit.rows():
        match row:
            case {"type": "notice", "message": str(message)}:
                say(message)
                return 0, ""  # the answer to what needed no run
            case {"type": "error", "message": str(message)} | {"type": "line_refused", "reason": str(message)}:
                return 1, message
            case {"type": "line_queued"} if not wait:
                say(f"{row['id']} waits for {row.get('target_agent', 'main')}.")
                return 0, ""
            case {"type": "receipt"}:
                return tell_outcome(row, say)
            case _:
                pass
    return 1, _GONE


def tell_outcome(row: Mapping[str, Any], say: Callable[[str], object]) -> tuple[int, str]:
    """Say what became of a line, as its receipt has it; the exit code and a problem."""
    reason = row.get("reason") or ""
    match row["state"]:
        case "handled":
            say(reason or f"{row['id'] or 'It'} was done.")
        case "delivered" if row.get("point") == Point.START:
            say(f"{row['id']} has started a run.")
        case "delivered":
            say(f"{row['id']} is in: {row.get('agent', 'main')}, iteration {row.get('iteration', 0)}.")
        case "refused":
            return 1, reason
        case state:
            return LINES_LEFT, f"the line was {state}" + (f": {reason}" if reason else "")
    return 0, ""


def watch(visit: Visit, renderer: Renderer | None, write: Callable[[str], object]) -> None:
    """Show what happens, as JSON without a renderer, to the chain's end. Raises ``UserError`` if cut off or killed."""
    with suppress(ConnectionError):  # its end is told by the end of the rows
        visit.send(type="watch")
    for row in chain([visit.init], visit.rows()):
        write(row_of(row) if renderer is None else shown_row(row, renderer))
    if visit.was_killed:
        raise UserError(f"the chain was killed; chain -r {visit.session} goes on with its session")


def shown_row(row: Mapping[str, Any], renderer: Renderer) -> str:
    """The rows of an event, which comes as JSON."""
    from chain import events
    from chain.session import event_json

    event = event_json.from_json(row)
    match event:
        case None:
            return ""  # of a newer version
        case events.Init():
            return f"{sanitize(f'Watching {event.session} ({event.model}) in {event.workspace}.')}\n"
        case events.Result():
            before, after = renderer.ending(event)
            rows = [*before, *after]
        case _:
            rows = renderer.lines(event)
    return "".join(f"{shown}\n" for shown in rows)
