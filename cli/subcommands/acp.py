"""``chain acp``: the Agent Client Protocol on standard input and output."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from chain.app import check_state
from chain.config.load import Settings
from chain.errors import UserError
from cli.acp.opening import Opener
from cli.acp.serving import EditorProcess

if TYPE_CHECKING:
    import argparse

    from chain import Tool

AT_TERMINAL = "chain acp speaks with an editor, in JSON; chain help editors says how one is set up. Ctrl-D ends it.\n"


_OF_THE_EDITOR = ("workspace", "continue", "resume", "say", "script", "no_stdin", "stdin")
"""Options for what an editor decides."""


def check_options(args: argparse.Namespace) -> None:
    """Raises ``UserError`` for an option that would mean nothing."""
    for name in _OF_THE_EDITOR:
        if vars(args)[name]:
            raise UserError(f"--{name.replace('_', '-')} is not for chain acp: the editor decides that")


def acp(read_settings: Callable[[Path], Settings], state: Path, tools: Sequence[Tool], traces: Path | None) -> int:
    """Serve an editor until it ends, and return the exit code. Raises ``UserError``."""
    check_state(state)
    stdin, stdout = _take_streams()
    opener = Opener(read_settings, state, tools, traces, os.environ)
    return trio.run(EditorProcess(opener, stdin=stdin, stdout=stdout).run)


def _take_streams() -> tuple[int, int]:
    """Standard input and output for the messages alone: a tool that prints, or reads, must not get into them."""
    stdin, stdout = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return stdin, stdout
