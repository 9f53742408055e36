"""``chain completion bash|zsh|fish``: a script by which a shell completes commands, options and their values.

The ids of sessions and the names of models change: a script asks for them by ``chain completion ids`` and ``models``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

from chain.app import sessions
from chain.config.load import Settings
from chain.errors import UserError
from cli.arguments import COMMANDS, whole_path
from cli.options import all_options
from cli.subcommands.help import TOPICS
from cli.subcommands.sessions import WORDS

SHELLS = ("bash", "zsh", "fish")

_ASKED = {"ID": "ids", "NAME": "models"}
"""Values that a script asks for, by what they are called."""
_AFTER = {
    "help": tuple(TOPICS),
    "sessions": WORDS,
    "completion": SHELLS,
}
"""The words that may follow a command."""
_BEFORE_ID = ("replay", "show", "export", "delete")

_BASH = """\
_chain() {{
    local typed="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" words=""
    case "$before" in
{cases}
    *)
        if [[ "$typed" == -* ]]; then words="{options}"
        elif [[ "$COMP_CWORD" == 1 ]]; then words="{commands}"
        fi ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$typed"))
}}
complete -o default -F _chain chain
"""
_ZSH = """\
autoload -Uz compinit bashcompinit
(( $+functions[compdef] )) || compinit
bashcompinit
"""


def completion(word: str, state: Path, settings: Callable[[], Settings]) -> str:
    """The script for a shell, or the words that one asks for, one a row. Raises ``UserError`` for another shell."""
    match word:
        case "bash":
            return _bash()
        case "zsh":
            return _ZSH + _bash()
        case "fish":
            return "".join(f"complete -c chain {rule}\n" for rule in _fish())
        case "ids":
            return "".join(f"{each.id}\n" for each in sessions.resumable(sessions.FileStore(state), whole_path(None)))
        case "models":
            return "".join(f"{name}\n" for name in settings().model_names)
        case _:
            raise UserError(f"there is no completion for {word!r:.60}; write chain completion {' or '.join(SHELLS)}")


def _bash() -> str:
    cases = [
        *((option.option_strings, words) for option in all_options() if (words := _words_of(option))),
        *(((command,), " ".join(words)) for command, words in _AFTER.items()),
        (_BEFORE_ID, _asking("ids")),
    ]
    return _BASH.format(
        cases="\n".join(f'    {"|".join(names)}) words="{words}" ;;' for names, words in cases),
        options=" ".join(name for option in all_options() for name in option.option_strings),
        commands=" ".join(COMMANDS),
    )


def _fish() -> Iterator[str]:
    yield f"-n __fish_use_subcommand -a '{' '.join(COMMANDS)}'"
    for command, words in _AFTER.items():
        yield f"-n '__fish_seen_subcommand_from {command}' -a '{' '.join(words)}'"
    yield f"-n '__fish_seen_subcommand_from {' '.join(_BEFORE_ID)}' -a '{_asking('ids')}'"
    for option in all_options():
        names = option.option_strings
        rule = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in names)
        if offered := _words_of(option):
            rule += f" -x -a '{offered}'"
        elif option.nargs != 0:
            rule += " -r"
        yield rule


def _words_of(option: argparse.Action) -> str:
    """The values of an option, as a shell expands them; empty if they are not known."""
    if option.choices:
        return " ".join(option.choices)
    asked = "" if option.option_strings == ["--chain"] else _ASKED.get(str(option.metavar), "")
    return _asking(asked) if asked else ""


def _asking(what: str) -> str:
    return f"$(chain completion {what} 2>/dev/null)"
