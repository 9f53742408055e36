"""``chain completion bash|zsh|fish``: a script by which a shell completes commands, options and their values.

The ids of sessions and the names of models change: a script asks for them by ``chain completion ids`` and ``models``.
"""

from __future__ import annotations

import argparse
import os
import shlex

from chain.app.sessions import FileStore, resumable
from chain.config.load import state_folder
from chain.errors import UserError
from cli.arguments import one_word, read_settings, whole_path
from cli.command_output import report, write
from cli.options import COMMANDS, command_parser, shared_options
from cli.subcommands.help import TOPICS
from cli.subcommands.sessions import ACTIONS

SHELLS = ("bash", "zsh", "fish")

_WORDS = {"SHELL": SHELLS, "[TOPIC]": TOPICS, "[WHAT]": ACTIONS}
"""The words that an argument may be."""

_ZSH = """\
autoload -Uz compinit
(( $+functions[compdef] )) || compinit
eval {}
"""
"""The script registers itself only if it is evaluated."""


def run(args: argparse.Namespace) -> int:
    """Write the script for a shell, or the words that one asks for. Return the exit code. Raise ``UserError``."""
    match one_word(args, "SHELL"):
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
    values = {"resume": ids, "session": ids, "ID": ids, "model": models}
    values |= dict.fromkeys(("script", "config", "output"), shtab.FILE)
    values |= dict.fromkeys(("workspace", "only", "[DIR]"), shtab.DIRECTORY)
    shared = shared_options()
    parser = type(shared)(prog="chain", parents=[shared])
    commands = parser.add_subparsers()
    for name, (argument, text) in COMMANDS.items():
        command = commands.add_parser(name, parents=[shared, command_parser(name)], help=text)
        if argument:
            command.add_argument(argument, choices=_WORDS.get(argument))
        if name == "sessions":
            command.add_argument("ID")
        for action in command._actions:
            if action.dest in values:
                action.complete = values[action.dest]  # type: ignore[attr-defined]
    text = shtab.complete(parser, shell)
    return _ZSH.format(shlex.quote(text)) if shell == "zsh" else f"{text}\n"
