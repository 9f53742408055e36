"""``chain send LINE``: sends a line to a session of another process, on this machine or in the Redis of ``--state``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from chain.errors import UserError
from chain.events import Point
from chain.session.exit_codes import LINES_LEFT
from cli.command_output import say
from cli.subcommands.session_connection import Connect, check_format, connect_to_session

if TYPE_CHECKING:
    from cli.door.client import DoorClient

_GONE = "the chain ended before the outcome of the line was known"


def run(args: argparse.Namespace) -> int:
    """Send the line. Return the exit code. Raise ``UserError`` if no chain can be reached."""
    line = " ".join(args.words)
    if not line.strip():
        raise UserError("chain send needs a line, for example: chain send 'todo: add check the SKU'")
    if args.new and args.session:
        raise UserError("--new and --session cannot be used together")
    check_format(args, "text")
    return connect_to_session(
        args,
        partial(send, line=line, wait=args.wait, say=say),
        partial(send_remotely, line=line, is_new=args.new, wait=args.wait),
        needs_state="--new" if args.new else "",
    )


def send(client: DoorClient, line: str, *, wait: bool, say: Callable[[str], object]) -> tuple[int, str]:
    """Send a line. With ``wait``, wait for its receipt; otherwise return as soon as the line is queued.

    ``say`` is called with the outcome. Return the exit code, and an error message or an empty text. The code is 1 if
    the line was refused, or if the chain ended before the outcome was known.
    """
    try:
        client.send(type="line", text=line)
    except OSError:
        return 1, _GONE
    for row in client.rows():
        match row:
            case {"type": "notice", "message": str(message)}:
                say(message)
                return 0, ""  # the answer to a line that needed no run
            case {"type": "error", "message": str(message)} | {"type": "line_refused", "reason": str(message)}:
                return 1, message
            case {"type": "line_queued"} if not wait:
                say(f"{row['id']} waits for {row.get('target_agent', 'main')}.")
                return 0, ""
            case {"type": "receipt"}:
                return _report_outcome(row, say)
            case _:
                pass
    return 1, _GONE


def send_remotely(connect: Connect, line: str, *, is_new: bool, wait: bool) -> tuple[int, str]:
    """Send a line to a session in Redis, and return what ``send`` returns. Raise ``UserError`` if that fails.

    With ``is_new``, the session has just been created: promise answers to its questions, and show its id.
    """
    import trio

    async def run() -> tuple[int, str]:
        async with connect(say) as session:
            if is_new:
                await session.promise_answers()  # `chain watch --answers` can only come after this command
            id, known = await session.send(line)
            if is_new:
                say(f"Session {session.id}.")
            if known.state == "queued" and not wait:
                say(f"{id} waits for main in session {session.id}.")
                return 0, ""
            known = await session.outcome(id) if known.state == "queued" else known
            return _report_outcome({**asdict(known), "id": id}, say)

    return trio.run(run)


def _report_outcome(row: Mapping[str, Any], say: Callable[[str], object]) -> tuple[int, str]:
    """Report the outcome of a line from its receipt. Return the exit code and an error message."""
    reason = row.get("reason") or ""
    match row["state"]:
        case "handled":
            say(reason or f"{row['id'] or 'The line'} was carried out.")
        case "delivered" if row.get("point") == Point.START:
            say(f"{row['id']} has started a run.")
        case "delivered":
            say(f"{row['id']} was delivered: {row.get('agent', 'main')}, iteration {row.get('iteration', 0)}.")
        case "refused":
            return 1, reason
        case state:
            return LINES_LEFT, f"the line was {state}" + (f": {reason}" if reason else "")
    return 0, ""
