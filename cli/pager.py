"""Shows a long text at a terminal through the user's pager, as git does: ``$PAGER``, or ``less`` if installed."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import chain

from chain.text.plain import sanitize
from cli.screen import tty
from cli.screen.external import pager_command
from cli.show.text_rows import columns

_LESS = "FRX"
"""Options of less, unless ``$LESS`` is set: exit if all fits, show colours, leave the text on the screen."""


def show_in_pager(rows: Iterable[str], environ: Mapping[str, str]) -> Iterable[str]:
    """Show rows in a pager, wait until it exits, and return no rows.

    If the rows fit on the screen, or if there is no pager, return all rows instead: the caller then writes them.
    """
    if not (os.isatty(0) and os.isatty(1)) or tty.is_dumb(environ):
        return rows
    rows, first, needed = iter(rows), list[str](), 0
    size = os.get_terminal_size(1)
    command = pager_command(environ)
    while needed < size.lines and (row := next(rows, None)) is not None:
        first.append(row)
        # The terminal wraps a long row into several.
        needed += 1 + max(0, columns(sanitize(row)) - 1) // max(1, size.columns)
    all_rows = chain(first, rows)
    if needed < size.lines or not command:
        return all_rows
    # Ctrl-C is for the pager, where it may cancel a search. The pager does not inherit this handler.
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        try:
            pager = subprocess.Popen(command, stdin=subprocess.PIPE, env={"LESS": _LESS, **environ})
        except OSError:
            return all_rows
        assert pager.stdin is not None
        with pager, suppress(BrokenPipeError), pager.stdin as file:  # the user may quit before the end
            file.writelines(f"{row}\n".encode(errors="replace") for row in all_rows)
    finally:
        signal.signal(signal.SIGINT, before)
    return ()
