"""``chain send`` and ``chain watch`` with ``--state``: a line to a session that machines share, and what it does."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from chain.app.remote import remote_session
from chain.exit_codes import LINES_LEFT
from chain.tasks import during
from chain.text.plain import sanitize
from cli.subcommands.elsewhere import shown_row, taken

if TYPE_CHECKING:
    from chain.app.remote import RemoteSession
    from cli.show.renderer import Renderer

GOES_ON = "Another process goes on with {session}."


@dataclass(frozen=True, slots=True)
class Meant:
    """The session that is meant: where it is kept, and its id, or else the latest of a workspace, or a new one."""

    address: str
    session: str
    workspace: Path
    is_new: bool = False


def send_remotely(meant: Meant, line: str, *, wait: bool, say: Callable[[str], object]) -> tuple[int, str]:
    """Send a line, and ``wait`` for what becomes of it; the exit code and a problem. Raises ``UserError``."""

    async def run() -> tuple[int, str]:
        async with _reached(meant, say) as session:
            id, known = await session.send(line)
            if meant.is_new:
                say(f"Session {session.id}.")
            if known.state == "queued" and not wait:
                say(f"{id} waits for main.")
                return 0, ""
            known = await session.outcome(id) if known.state == "queued" else known
            match known.state:
                case "refused":
                    return 1, known.reason
                case "delivered" | "handled":
                    row = {"id": id, "agent": known.agent, "iteration": known.iteration}
                    say(taken(known.state, {**row, "point": known.point, "reason": known.reason}))
                    return 0, ""
                case _:
                    return LINES_LEFT, f"the line was {known.state}" + (f": {known.reason}" if known.reason else "")

    return trio.run(run)


def watch_remotely(meant: Meant, renderer: Renderer | None, write: Callable[[str], object], *, answers: bool) -> None:
    """Show what happens, as JSON without a renderer, until a signal. Raises ``UserError``.

    With ``answers`` each row that is typed answers the question that is open.
    """

    async def run() -> None:
        async with _reached(meant, lambda what: write(f"chain: {sanitize(what)}\n")) as session:
            question = [""]

            async def answer() -> None:
                async with during(session.answer_questions):
                    while row := await trio.to_thread.run_sync(_typed, abandon_on_cancel=True):
                        if question[0] and row.strip():
                            id, _ = await session.submit(type="answer", question=question[0], text=row.strip())
                            known = await session.outcome(id)
                            if known.state in ("returned", "refused") and known.reason:
                                write(f"chain: {sanitize(known.reason)}\n")

            async with during(answer if answers else _nothing):
                is_first = True
                async for row in session.events():
                    match row:
                        case {"type": "question", "id": str(id)}:
                            question[0] = id
                        case {"type": "answer"}:
                            question[0] = ""
                        case _:
                            pass
                    if renderer is None:
                        write(f"{json.dumps(row)}\n")
                    elif row.get("type") == "init" and not is_first:
                        write(f"{sanitize(GOES_ON.format(session=session.id))}\n")
                    else:
                        write(shown_row(row, renderer))
                    is_first = False

    trio.run(run)


def _reached(meant: Meant, say: Callable[[str], object]) -> AbstractAsyncContextManager[RemoteSession]:
    return remote_session(meant.address, id=meant.session, workspace=meant.workspace, is_new=meant.is_new, say=say)


def _typed() -> str:
    return sys.stdin.readline()


async def _nothing() -> None:
    pass
