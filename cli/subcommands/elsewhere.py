"""``chain send LINE`` and ``chain watch``: a line to a chain that runs in another terminal, and what it does."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from chain.config.load import state_folder
from chain.errors import UserError
from chain.session.exit_codes import LINES_LEFT
from chain.text.plain import sanitize
from cli.arguments import read_state, whole_path
from cli.command_output import fail, report
from cli.event_rows import row_of

if TYPE_CHECKING:
    from chain.app.remote import RemoteSession
    from cli.door.visit import Visit
    from cli.show.renderer import Renderer

Reach: TypeAlias = Callable[[Callable[[str], object]], AbstractAsyncContextManager["RemoteSession"]]
"""``remote_session`` for the session that is meant; its argument hears when the server does not answer."""

_GONE = "the chain ended before it said what became of the line"


def visit_session(
    args: argparse.Namespace,
    visited: Callable[[Visit], tuple[int, str]],
    reached: Callable[[Reach], tuple[int, str]],
    *,
    needs_state: str = "",
) -> int:
    """Call ``visited`` with a session on this machine, or ``reached`` with one that machines share.

    Both return an exit code and a problem. ``needs_state`` is an option that only the latter have. Return the exit
    code. Raise ``UserError``.
    """
    address = read_state(args)
    workspace = Path("/") if args.session else whole_path(args.workspace)  # a session has its own
    if needs_state and not address:
        raise UserError(f"{needs_state} needs --state; chain help machines says more")
    try:
        if address:
            from chain.app.remote import remote_session

            is_new = needs_state == "--new"
            reach = partial(remote_session, address, id=args.session or "", workspace=workspace, is_new=is_new)
            code, problem = reached(reach)
        else:
            from cli.door.visit import find_chain

            state = state_folder(os.environ)
            with find_chain(state, os.environ, session=args.session or "", workspace=workspace) as visit:
                try:
                    code, problem = visited(visit)
                except UserError as error:
                    code, problem = 1, str(error)
    except BrokenPipeError:
        return 0  # the reader has closed its end
    except OSError as error:
        return report(error.strerror or str(error))
    return fail(problem, code) if problem else code


def check_format(args: argparse.Namespace, *formats: str) -> None:
    """Raise ``UserError`` if the command does not have the output format."""
    if args.output_format not in formats:
        name = f"chain {args.command} has no --output-format {args.output_format}"
        raise UserError(f"{name}; chain help side-door says what")


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
        case "delivered" if row.get("point") == "start":
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
