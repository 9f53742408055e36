"""``chain send`` and ``chain watch`` with ``--state``: a line to a session that machines share, and what it does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING

import trio

from chain.concurrency.tasks import during
from chain.text.plain import sanitize
from cli.event_rows import row_of
from cli.subcommands.elsewhere import Reach, shown_row, tell_outcome

if TYPE_CHECKING:
    from cli.show.renderer import Renderer

GOES_ON = "Another process goes on with {session}."


def send_remotely(
    reach: Reach, line: str, *, is_new: bool, wait: bool, say: Callable[[str], object]
) -> tuple[int, str]:
    """Send a line, and ``wait`` for what becomes of it; the exit code and a problem. Raises ``UserError``."""

    async def run() -> tuple[int, str]:
        async with reach(say) as session:
            if is_new:
                await session.expect_answerer()  # `chain watch --answers` can only come after this command
            id, known = await session.send(line)
            if is_new:
                say(f"Session {session.id}.")
            if known.state == "queued" and not wait:
                say(f"{id} waits for main in the session {session.id}.")
                return 0, ""
            known = await session.outcome(id) if known.state == "queued" else known
            return tell_outcome({**asdict(known), "id": id}, say)

    return trio.run(run)


def watch_remotely(
    reach: Reach,
    renderer: Renderer | None,
    write: Callable[[str], object],
    *,
    answers: bool,
    say: Callable[[str], object],
) -> None:
    """Show what happens, as JSON without a renderer, until a signal; ``say`` what goes wrong. Raises ``UserError``.

    With ``answers`` each row that is typed answers the question that is open.
    """

    async def run() -> None:
        question = ""
        is_first = True

        async def answer() -> None:
            async with during(session.answer_questions):
                while row := await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
                    if question and row.strip():
                        id, _ = await session.submit(type="answer", question=question, text=row.strip())
                        known = await session.outcome(id)
                        if known.state in ("returned", "refused") and known.reason:
                            say(known.reason)

        async with reach(say) as session, during(answer) if answers else nullcontext():
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
                    write(shown_row(row, renderer))
                is_first = False

    trio.run(run)
