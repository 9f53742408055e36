"""Shows a prompt before the slow imports, and restores the terminal whenever the program ends."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from chain.session.exit_codes import INTERRUPTED_CODE, SIGTERM_CODE
from cli.screen import tty
from cli.terminal.invocation import Prepare, TerminalStyle


def run_at_terminal(
    prepare: Prepare,
    *,
    history: Path | None,
    typed: bytes = b"",
    no_color: bool,
    ascii: bool,
    updates_rows: bool = True,
) -> int:
    """Show a prompt, call ``prepare``, serve the user, and return the exit code. Errors of ``prepare`` are passed on.

    ``typed`` contains the keys pressed before the call. ``updates_rows``: shown rows may be updated in place.
    """
    is_ascii = ascii or not tty.is_utf8(os.environ)
    if is_ascii and not ascii:
        sys.stdout.reconfigure(encoding="ascii", errors="replace")  # type: ignore[union-attr]
    is_dumb = tty.is_dumb(os.environ)
    style = TerminalStyle(
        color=not (no_color or is_dumb or os.environ.get("NO_COLOR")), ascii=is_ascii, updates_rows=updates_rows
    )
    # From here on every exit must restore the terminal.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _exit_on_signal)
    if not is_dumb:
        typed += tty.enter_raw_mode()

    import trio

    from chain.concurrency.nurseries import unwrap_group
    from cli.ending import LEAVING, received_signals

    async def work() -> int:
        with received_signals(*LEAVING, signal.SIGWINCH, signal.SIGCONT) as signals:
            if is_dumb:  # it edits lines itself
                from cli.screen.dumb import open_plain

                opening = open_plain(typed)
            else:
                from cli.screen.editor import open_terminal

                opening = open_terminal(color=style.color, history=history, typed=typed.decode(errors="replace"))
            async with opening as screen:
                from cli.terminal.program import serve

                with prepare() as invocation:
                    code = await serve(screen, signals, style, invocation)
        return code

    try:
        return trio.run(work)
    except BaseExceptionGroup as group:
        # Each nursery wrapped the ``UserError``, or the bug, in a group.
        raise unwrap_group(group) from None
    finally:
        tty.restore()


def _exit_on_signal(number: int, frame: object) -> NoReturn:
    # Exit without cleanup: an exception could be raised anywhere, also inside trio.
    tty.restore()
    os._exit(INTERRUPTED_CODE if number == signal.SIGINT else SIGTERM_CODE)
