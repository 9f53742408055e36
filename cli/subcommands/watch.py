"""``chain watch``: shows the events of a session of another process, on this machine or in the Redis of ``--state``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from chain.errors import UserError
from chain.text.plain import sanitize
from cli.command_output import fail, renderer
from cli.event_rows import row_of
from cli.subcommands.session_connection import Connect, check_format, connect_to_session
from cli.writing import write_text

if TYPE_CHECKING:
    from cli.door.client import DoorClient
    from cli.show.renderer import Renderer

GOES_ON = "Another process continues session {session}."


def run(args: argparse.Namespace) -> int:
    """Show events until the session ends. Return the exit code. Raise ``UserError`` if no session can be reached."""
    check_format(args, "text", "stream-json")
    shown = renderer(args, fd=1, streams=True) if args.output_format == "text" else None
    write = partial(write_text, 1)
    return connect_to_session(
        args,
        partial(watch, renderer=shown, write=write),
        partial(watch_remotely, renderer=shown, write=write, answers=args.answers),
        needs_state="--answers" if args.answers else "",
    )


def watch(client: DoorClient, renderer: Renderer | None, write: Callable[[str], object]) -> tuple[int, str]:
    """Show events until the chain ends, as JSON if there is no renderer. Return exit code 0 and no error message.

    Raise ``UserError`` if the chain was killed, or if it closed this connection because events were read too slowly.
    """
    with suppress(ConnectionError):  # a lost connection ends the rows below
        client.send(type="watch")
    for row in chain([client.init], client.rows()):
        write(row_of(row) if renderer is None else _shown_row(row, renderer))
    if client.was_killed:
        raise UserError(f"the chain was killed; resume its session with: chain -r {client.session}")
    return 0, ""


def watch_remotely(
    connect: Connect, renderer: Renderer | None, write: Callable[[str], object], *, answers: bool
) -> tuple[int, str]:
    """Show the events of a session until a signal arrives. Without ``renderer``, write them as JSON.

    Return the exit code and an empty reason. With ``answers``, each row of standard input answers the open question.
    Raise ``UserError`` if the session cannot be reached.
    """
    import trio

    from chain.concurrency.nurseries import background_task

    async def run() -> None:
        question = ""
        is_first = True

        async def answer() -> None:
            async with background_task(session.renew_promise):
                while row := await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
                    if question and row.strip():
                        id, _ = await session.submit(type="answer", question=question, text=row.strip())
                        known = await session.outcome(id)
                        if known.state in ("returned", "refused") and known.reason:
                            fail(known.reason)

        async with connect(fail) as session, background_task(answer) if answers else nullcontext():
            async for row in session.events():
                match row:
                    case {"type": "question", "id": str(id)}:
                        question = id
                    case {"type": "answer"}:
                        question = ""
                    case _:
                        pass
                if renderer is None:
                    write(row_of(row))
                elif row.get("type") == "init" and not is_first:
                    write(f"{sanitize(GOES_ON.format(session=session.id))}\n")
                else:
                    write(_shown_row(row, renderer))
                is_first = False

    trio.run(run)
    return 0, ""


def _shown_row(row: Mapping[str, Any], renderer: Renderer) -> str:
    """Return the rows that the renderer shows for an event in JSON; empty for an unknown type of event."""
    from chain import events
    from chain.session import event_json

    event = event_json.from_json(row)
    match event:
        case None:
            return ""  # an event of a newer version
        case events.Init():
            return f"{sanitize(f'Watching {event.session} ({event.model}) in {event.workspace}.')}\n"
        case events.Result():
            before, after = renderer.split_result(event)
            rows = [*before, *after]
        case _:
            rows = renderer.rows(event)
    return "".join(f"{shown}\n" for shown in rows)
