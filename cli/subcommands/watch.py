"""``chain watch``: what a chain does that runs in another terminal, as it happens."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from chain import event_json, events
from chain.errors import UserError
from chain.text.plain import sanitize
from cli.door.visit import Visit
from cli.show.renderer import Renderer


def watch(visit: Visit, renderer: Renderer | None, write: Callable[[str], object]) -> None:
    """Show what happens, as JSON without a renderer, to the chain's end. Raises ``UserError`` if cut off or killed."""
    with suppress(ConnectionError):  # its end is told by the end of the rows
        visit.send(type="watch")
    for row in itertools.chain([visit.init], visit.rows()):
        write(f"{json.dumps(row)}\n" if renderer is None else _shown(row, renderer))
    if visit.was_killed:
        raise UserError(f"the chain was killed; chain -r {visit.session} goes on with its session")


def _shown(row: Mapping[str, Any], renderer: Renderer) -> str:
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
