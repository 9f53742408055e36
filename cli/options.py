"""The help of the command line, which also defines its options and commands, and the parser.

A row of ``HELP`` adds an option or a command. A command is a module of ``cli.subcommands`` with ``run(args)``.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, NoReturn

from chain.errors import UserError, nearest_name
from chain.lines.parse import nearest_word
from chain.text.modes import MODES
from chain.version import VERSION

HELP = """\
Usage:
  chain [QUERY]    open a prompt: give it a task, and type while it works
  chain -p QUERY   run once and exit; piped input is appended to the query
  chain < lines    the first line is the query, later ones are interruptions
  chain COMMAND    run one of these commands

Commands:
  acp                     work in an editor that speaks the Agent Client
                          Protocol; see chain help editors
  check                   check the configuration, and show what differs from
                          the defaults
  completion SHELL        print the completion for bash, zsh or fish; see chain
                          help completion
  demo                    try an interruption; needs no key
  explain LINE            show what a line would do
  help [TOPIC]            show the reference: lines, keys, moments, tools,
                          agents and more
  init [DIR]              write config.yaml and prompts/, to change them
  replay ID               compare a session with today's prompts
  send LINE               send a line to a running chain
  sessions [WHAT]         list (the default), show ID, export ID or delete ID
  watch                   watch a running chain
  worker                  run sessions that machines share in a Redis; see chain
                          help machines

One run, without a prompt:
  -p, --print             run the query and exit: the answer goes to standard
                          output, progress to standard error
  --no-stdin              do not read standard input; needed in loops such as
                          while read -r f; do chain -p "$f" --no-stdin; done
  --stdin                 wait for piped input; by default the run starts
                          without it if nothing comes for 3 s
  --output-format FORMAT  text: the answer (the default); json: the result as an
                          object; stream-json: one event a row
  --input-format FORMAT   text (the default) or stream-json: lines as objects

Resume a session:
  -c, --continue          the latest session of this workspace
  -r, --resume [ID]       the session with this ID, or the start or end of one;
                          without an ID, choose from a list at a terminal
  --no-session            store nothing of this session on the disk

Scripted lines:
  --say LINE              a line at a moment: '@iteration 2 todo: add x', or for
                          an agent: '@tool explore @to explore-1 look closer';
                          may be repeated
  --script FILE           a file of such lines

Settings of a run:
  --model NAME            a model of the configuration; offline needs no key
  --workspace DIR         the folder of the tools; by default the current one
  --add-dir DIR           a folder outside the workspace that tools may read,
                          and edit with approval; may be repeated
  --allow TOOL[,TOOL]     calls that need no approval: edit_file,
                          'shell(git status*)'
  --mode MODE             ask (the default), accept-edits (no approval for edits
                          in the workspace) or read-only (no edits, no commands)
  --mcp SERVER            start a server that .mcp.json names; may be repeated
  --max-iterations N      the most model calls in a run
  --config FILE           the configuration; see chain help configuration
  --chain NAME            a chain of the configuration
  --state URL             store sessions in a Redis: redis://HOST/DB

Options of chain send and chain watch:
  --session ID            the session; by default the only one that runs in this
                          workspace
  --wait                  chain send waits until the outcome is known
  --new                   chain send creates a session, with --state
  --answers               chain watch answers questions with what you type, with
                          --state

Options of chain worker:
  -n, --at-once N         run up to N sessions at the same time (1)
  --only DIR              only sessions of this workspace
  --keep AGE              delete sessions that were not used for this long, such
                          as 30d or 12h

Options of chain sessions export:
  --format FORMAT         md (the default), json or html
  --output FILE           a new file, instead of standard output

Output:
  --no-color              no colours
  --ascii                 ASCII characters only
  -v, --verbose           a row for each event, none updated; all values that
                          chain check finds; the sessions that a worker runs;
                          the traceback of an error
  --version               show the version
  -h, --help              show this help

Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 3 done, but a line
was not delivered, 4 a limit was reached, 130 interrupted, 143 terminated.
"""

_COMMAND_OPTIONS = {
    "send": ("session", "wait", "new"),
    "watch": ("session", "answers"),
    "worker": ("at_once", "only", "keep"),
    "sessions export": ("format", "output"),
}
"""For some commands, options that no other command has. All other options are valid for runs and for every command."""

CHOICES = {
    "output_format": ("text", "json", "stream-json"),
    "input_format": ("text", "stream-json"),
    "format": ("md", "json", "html"),
    "mode": tuple(mode.replace(" ", "-") for mode in MODES),
}
"""The allowed values of the options that have a fixed set of values."""

_OTHER_NAMES = {
    "--workspace": "--cd --cwd -C",
    "--allow": "--allowed-tools --allowedTools --dangerously-skip-permissions --full-auto --yes --yolo -y",
    "--output-format json": "--json",
    "--output-format": "--format --output",
    "--continue": "--last",
    "chain sessions": "--list-sessions",
    "--max-iterations": "--max-turns",
    "--mcp": "--mcp-config",
    "-p": "--message --non-interactive --prompt -q exec run",
    "--version": "-V version",
    "--model": "-m --modle -modle",  # --mode is nearer, and rarer
    "--mode": "--permission-mode",
    "--no-session": "--no-session-persistence",
    "check": "config doctor",
    "help models": "login",
    "-c": "resume",
}
"""For each option or command, other names that users may try. An error message suggests the right name."""

_FOREIGN_NAMES = {other: ours for ours, others in _OTHER_NAMES.items() for other in others.split()}

_JOINED_QUERY = re.compile("-p(?![pvhc]*$)")
"""A word such as ``-pQUERY``, which other programs accept."""

_OPTION = re.compile(r"-(?!\d*\.?\d+\Z)[^ ]+")
"""A word that argparse parses as an option."""


class Information(Exception):
    """Raised if the user asked for the help or the version. ``str()`` gives the text to show."""


class _Parser(argparse.ArgumentParser):
    """A parser that raises ``UserError`` instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see chain --help")


def _entries() -> Mapping[str, str]:
    """Return the options and commands as the help shows them (``-n, --at-once N``), each with its description."""
    found, shown = dict[str, str](), ""
    for row in HELP.partition("Commands:\n")[2].splitlines():
        if row.startswith("  "):
            shown = row[:26].strip() or shown
            found[shown] = f"{found.get(shown, '')} {row[26:]}".lstrip()
    return found


COMMANDS = {shown.split()[0]: (shown.partition(" ")[2], text) for shown, text in _entries().items() if shown[0] != "-"}
"""The commands by name, each with its arguments and its description, as the help shows them."""


def parser_of(command: str | None = None) -> argparse.ArgumentParser:
    """Return a parser of the options of ``command``; of a run if it is empty, or all options if it is ``None``."""
    parser = _Parser(prog="chain", add_help=False, allow_abbrev=False, exit_on_error=False)
    for shown in _entries():
        *short, long = shown.split(", ")
        name, _, value = long.partition(" ")
        if shown[0] == "-" and (command is None or _has_option(command, name[2:].replace("-", "_"))):
            more: dict[str, Any] = {"metavar": value} if value else {"action": "store_true"}
            if name in ("--say", "--allow", "--mcp", "--add-dir"):
                more |= {"action": "append", "default": []}
            elif name in ("--output-format", "--input-format"):
                more |= {"default": "text"}
            elif value[:1] == "[":  # an optional value
                more |= {"nargs": "?", "const": "", "metavar": value.strip("[]")}
            parser.add_argument(*short, name, **more)
    return parser


def _owners(dest: str) -> list[str]:
    """Return the commands that an option is restricted to. The list is empty if every command has the option."""
    return [command for command, options in _COMMAND_OPTIONS.items() if dest in options]


def _has_option(command: str, dest: str) -> bool:
    owners = _owners(dest)
    return not owners or command in [owner.split()[0] for owner in owners]


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line. Raise ``UserError``, or ``Information`` for ``--help`` and ``--version``.

    The result has an attribute for each option, and ``command``. For a command, this is its name, and ``words`` are its
    arguments. For a run, ``command`` is empty, and ``query`` is the query or ``None``.
    """
    # Subparsers would not work, because an option may precede its command, and a query may be any word.
    if any(_JOINED_QUERY.match(word) for word in argv[: argv.index("--") if "--" in argv else None]):
        # argparse would report the letters of the query as options.
        raise UserError("-p needs a space after it, for example: chain -p 'List the files'")
    parser = parser_of()
    try:
        args, left = parser.parse_known_args(argv)
    except argparse.ArgumentError as error:
        raise UserError(_parse_error(error, parser)) from None
    if args.help or args.version:
        raise Information(HELP if args.help else f"chain {VERSION}")
    args.mode = args.mode and args.mode.replace(" ", "-")
    words = _remaining_words(left, parser)
    args.command = words.pop(0) if words and words[0] in COMMANDS and not args.print else ""
    _check_values(args, parser)
    if args.command:
        if args.mode and args.command != "acp":
            raise UserError(f"--mode is for a run at a prompt, with -p or in an editor, not for chain {args.command}")
        args.words = words
        if words and not COMMANDS[args.command][0]:
            raise UserError(f"chain {args.command} has no arguments; put a query of several words in quotes")
    else:
        args.query = _query(args, words)
    return args


def _remaining_words(left: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """Return the words that the parser did not parse as options, without ``--``.

    Raise ``UserError`` if a word before ``--`` is an unknown option.
    """
    words = list(left)
    end = words.index("--") if "--" in words else len(words)
    for word in words[:end]:
        if _OPTION.fullmatch(word):
            raise UserError(_unknown_option(word.partition("=")[0], parser._option_string_actions))
    return words[:end] + words[end + 1 :]


def _check_values(args: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Raise ``UserError`` if an option belongs only to other commands, or if its value is not one of its choices."""
    for action in parser._actions:
        name, value = "/".join(action.option_strings), vars(args)[action.dest]
        if value in (None, False):
            continue
        if not _has_option(args.command, action.dest):
            shown = " and ".join(f"chain {owner}" for owner in _owners(action.dest))
            raise UserError(
                f"{name} is for {shown}" + (f"; a run has {_FOREIGN_NAMES[name]}" if name in _FOREIGN_NAMES else "")
            )
        choices = CHOICES.get(action.dest)
        if choices and value not in choices:
            raise UserError(f"{name} cannot be {value!r}; write {', '.join(choices[:-1])} or {choices[-1]}")


def resumes(args: argparse.Namespace) -> bool:
    """Return whether a session is resumed. Its waiting lines can start a run, so no query is needed."""
    return vars(args)["continue"] or args.resume is not None


def _query(args: argparse.Namespace, words: Sequence[str]) -> str | None:
    """Return the query of a run, or ``None`` if there is none.

    Raise ``UserError`` if there are several words, or if the word was probably meant to be a command.
    """
    near = ""
    if words and not args.print:
        near = nearest_word(words[0], COMMANDS)
        if not resumes(args):  # for a resumed session "run" is a likely query
            near = _FOREIGN_NAMES.get(words[0].casefold(), near)
    if len(words) > 1:
        hint = f", or did you mean chain {near}?" if near else ""
        raise UserError(f"there are {len(words)} words where one query is expected; put the query in quotes{hint}")
    if near:
        [word] = words
        raise UserError(f"there is no command {word}: did you mean chain {near}? To run it as a query: chain -p {word}")
    return words[0] if words else None


def _unknown_option(name: str, names: Iterable[str]) -> str:
    long = [each for each in names if each.startswith("--")]
    completed = next((each for each in long if each.startswith(name)), "")
    near = _FOREIGN_NAMES.get(name) or completed or nearest_name(f"--{name.lstrip('-')}", long, 0.75)
    if near:
        return f"there is no option {name}: did you mean {near}?"
    return f"there is no option {name}; chain --help lists them, and a query that begins with - goes after --"


def module_of(command: str) -> ModuleType:
    """Import and return the module of a command."""
    return import_module(f"cli.subcommands.{command}")


def _parse_error(error: argparse.ArgumentError, parser: argparse.ArgumentParser) -> str:
    name = error.argument_name
    action = next((each for each in parser._actions if "/".join(each.option_strings) == name), None)
    if action is None:
        return f"{error}; see chain --help"
    if action.nargs == 0:
        return f"{name} takes no value; see chain --help"
    return f"{name} needs a value: {name} {action.metavar}"
