"""``chain completion bash|zsh|fish``: writes a script with which a shell completes commands, options and their values.

The ids of sessions and the names of models change, so the script itself runs ``chain completion ids`` and
``chain completion models`` to list them.
"""

from __future__ import annotations

import argparse
import os
import shlex

from chain.app.sessions import FileStore, resumable_sessions
from chain.config.load import state_folder
from chain.errors import UserError
from cli.arguments import absolute_path, one_word, read_settings
from cli.command_output import report_write_error, write
from cli.options import CHOICES, COMMANDS, parser_of
from cli.subcommands.help import TOPICS
from cli.subcommands.sessions import ACTIONS

SHELLS = ("bash", "zsh", "fish")

_WORDS = {"SHELL": SHELLS, "[TOPIC]": TOPICS, "[WHAT]": ACTIONS}
"""The possible words of an argument, by the name of the argument in the help."""

_ZSH = """\
autoload -Uz compinit
(( $+functions[compdef] )) || compinit
eval {}
"""
"""The wrapper of the zsh script. Without ``eval``, the script would not register the completion."""

_BASH = """
# bash splits --option=value into three words; this makes two of them.
_chain() {
  local words=() at=0 n
  for n in "${!COMP_WORDS[@]}"; do
    if [[ ${COMP_WORDS[n]} != "=" ]]; then
      words+=("${COMP_WORDS[n]}")
    elif (( n == COMP_CWORD )); then
      words+=("")
    fi
    (( n == COMP_CWORD )) && at=$(( ${#words[@]} - 1 ))
  done
  local COMP_WORDS=("${words[@]}") COMP_CWORD=$at
  _shtab_chain
}
complete -o bashdefault -F _chain chain
"""


def run(args: argparse.Namespace) -> int:
    """Write a shell's script, or the words that the script asks for. Return the exit code, or raise ``UserError``."""
    match one_word(args, "SHELL"):
        case None:
            raise UserError("chain completion needs a shell: bash, zsh or fish")
        case "ids":
            store = FileStore(state_folder(os.environ))
            text = "".join(f"{each.id}\n" for each in resumable_sessions(store, absolute_path(None)))
        case "models":
            text = "".join(f"{name}\n" for name in read_settings(args).model_names)
        case shell if shell in SHELLS:
            text = script(shell)
        case other:
            raise UserError(f"there is no completion for {other!r:.60}; write chain completion {' or '.join(SHELLS)}")
    return report_write_error(write(1, text))


def script(shell: str) -> str:
    """Return the script for a shell."""
    import shtab

    ids, models = (shtab.cmd(f"chain completion {what} 2>/dev/null") for what in ("ids", "models"))
    values = {"ID": ids, "FILE": shtab.FILE, "DIR": shtab.DIRECTORY, "[DIR]": shtab.DIRECTORY}
    parser = argparse.ArgumentParser("chain", parents=[parser_of("")], add_help=False)
    commands = parser.add_subparsers()
    parsers = [parser]
    for name, (argument, text) in COMMANDS.items():
        command = commands.add_parser(name, parents=[parser_of(name)], add_help=False, help=text)
        if argument:
            command.add_argument(argument, choices=_WORDS.get(argument))
        if name == "sessions":
            command.add_argument("ID")
        parsers.append(command)
    for action in (action for each in parsers for action in each._actions):
        action.choices = action.choices or CHOICES.get(action.dest)
        if found := models if action.dest == "model" else values.get(str(action.metavar or action.dest)):
            action.complete = found  # type: ignore[attr-defined]
    text = shtab.complete(parser, shell)
    return _ZSH.format(shlex.quote(text)) if shell == "zsh" else f"{text}\n{_BASH if shell == 'bash' else ''}"
