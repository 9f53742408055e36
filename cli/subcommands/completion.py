"""``chain completion bash|zsh|fish``: a script by which a shell completes commands, options and their values.

The ids of sessions and the names of models change: a script asks for them by ``chain completion ids`` and ``models``.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence

from chain import Tool
from chain.app.sessions import FileStore, resumable
from chain.config.load import state_folder
from chain.errors import UserError
from cli.arguments import read_settings, whole_path
from cli.command_output import report, write
from cli.options import all_parsers, walk
from cli.subcommands.help import TOPICS

SHELLS = ("bash", "zsh", "fish")

_ZSH = """\
autoload -Uz compinit
(( $+functions[compdef] )) || compinit
eval {}
"""
"""The script registers itself only if it is evaluated."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the shell."""
    parser.add_argument("shell", nargs="?", metavar="SHELL")


def run(args: argparse.Namespace, tools: Sequence[Tool]) -> int:
    """Write the script for a shell, or the words that one asks for. Return the exit code. Raise ``UserError``."""
    match args.shell:
        case None:
            raise UserError("chain completion needs a shell: bash, zsh or fish")
        case "ids":
            store = FileStore(state_folder(os.environ))
            text = "".join(f"{each.id}\n" for each in resumable(store, whole_path(None)))
        case "models":
            text = "".join(f"{name}\n" for name in read_settings(args).model_names)
        case shell if shell in SHELLS:
            text = script(shell)
        case other:
            raise UserError(f"there is no completion for {other!r:.60}; write chain completion {' or '.join(SHELLS)}")
    return report(write(1, text))


def script(shell: str) -> str:
    """Return the script for a shell."""
    import shtab

    ids, models = (shtab.cmd(f"chain completion {what} 2>/dev/null") for what in ("ids", "models"))
    values = {
        **dict.fromkeys(("resume", "session", "id"), ids),
        "model": models,
        **dict.fromkeys(("script", "config", "output"), shtab.FILE),
        **dict.fromkeys(("workspace", "only", "folder"), shtab.DIRECTORY),
    }
    parser = all_parsers()
    for action in walk(parser):
        if action.dest in values:
            action.complete = values[action.dest]  # type: ignore[attr-defined]
        elif action.dest in ("topic", "shell"):
            action.choices = TOPICS if action.dest == "topic" else SHELLS
    text = shtab.complete(parser, shell)
    return _ZSH.format(shlex.quote(text)) if shell == "zsh" else f"{text}\n"
