"""Shows a long text at a terminal through the user's pager, as git does: ``$PAGER``, or ``less`` if there is one."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING

from cli.screen import tty
from cli.show.text import clean, columns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LESS = "FRX"
"""Of less, unless ``$LESS`` says otherwise: end at once if all fits, obey colours, leave the text on the screen."""


def page(rows: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Show rows through a pager, and wait for its end. Whether that was done: the caller writes them if not.

    Not where input or output is no terminal, where all rows fit on the screen, or where there is no pager.
    """
    if not (os.isatty(0) and os.isatty(1)) or tty.is_dumb(environ):
        return False
    size = os.get_terminal_size(1)
    # As the terminal wraps them.
    needed = sum(1 + max(0, columns(clean(row)) - 1) // max(1, size.columns) for row in rows)
    command = _command(environ)
    if needed < size.lines or not command:
        return False
    # Ctrl-C is for the pager, which may take it as "stop searching". A handler of ours is not handed on to it.
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        subprocess.run(
            command,
            input="".join(f"{row}\n" for row in rows).encode(errors="replace"),
            env={"LESS": _LESS, **environ},
            check=False,
        )
    except OSError:
        return False
    finally:
        signal.signal(signal.SIGINT, before)
    return True


def _command(environ: Mapping[str, str]) -> list[str]:
    """The pager with its arguments; none if there is none, or ``cat``, which is no pager."""
    try:
        words = shlex.split(environ.get("PAGER", "less"))
    except ValueError:
        return []
    return words if words and words[0] != "cat" and shutil.which(words[0], path=environ.get("PATH")) else []
