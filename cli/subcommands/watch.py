"""``chain watch``: what a chain does that runs in another terminal, as it happens."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from chain import event_json, events
from cli.door.client import Door, enter
from cli.show.events import Renderer


def watch(path: Path, renderer: Renderer | None, write: Callable[[str], object]) -> None:
    """Show what happens until the chain ends; without a renderer as rows of JSON.

    Raises ``UserError`` when nobody is there any more, and what ``write`` raises.
    """
    with enter(path) as door:
        door.send(type="watch")
        for row in _with_first(door):
            write(f"{json.dumps(row)}\n" if renderer is None else _shown(row, renderer))


def _with_first(door: Door) -> Iterator[Mapping[str, Any]]:
    yield door.init
    yield from door.rows()


def _shown(row: Mapping[str, Any], renderer: Renderer) -> str:
    event = event_json.from_json(row)
    match event:
        case None:
            return ""  # of a newer version
        case events.Init():
            return f"Watching {event.session} ({event.model}) in {event.workspace}.\n"
        case events.Result():
            before, after = renderer.ending(event)
            rows = [*before, *after]
        case _:
            rows = renderer.lines(event)
    return "".join(f"{shown}\n" for shown in rows)
