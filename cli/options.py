"""The options and commands of the command line: their parsers, the help, and errors for unknown words.

``arguments`` checks the values, and options that contradict each other.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, NoReturn

from chain.errors import UserError, nearest
from chain.lines.parse import nearest_word
from chain.version import VERSION

COMMANDS = {
    "acp": ("", "work in an editor, by the Agent Client Protocol; chain\nhelp editors says how one is set up"),
    "check": ("", "check the configuration, and show what is in it"),
    "completion": ("SHELL", "what completes all this in bash, zsh or fish; chain\nhelp completion says where it goes"),
    "demo": ("", "see what an interruption does; needs no key"),
    "explain": ("LINE", "what the chain would make of a line"),
    "help": ("[TOPIC]", "the reference: lines, keys, moments, tools, agents and\nmore"),
    "init": ("[DIR]", "write config.yaml and prompts/, to change them"),
    "replay": ("ID", "compare a session with the prompts of today"),
    "send": ("LINE", "send a line to a chain that runs in another terminal"),
    "sessions": ("[WHAT]", "what is kept: list (the default), show ID, export ID,\ndelete ID"),
    "watch": ("", "see what a chain does that runs in another terminal"),
    "worker": ("", "run the sessions of a Redis that machines share; chain\nhelp machines says how"),
}
"""The commands, each with its argument and its rows in the help. A command is a module of ``cli.subcommands``, with
``run(args)`` and, if it has options of its own, ``add_options(parser)``."""

_LISTED = "".join(
    f"  {f'{name} {argument}':<24}{text.replace(chr(10), chr(10) + ' ' * 26)}\n"
    for name, (argument, text) in COMMANDS.items()
)

HELP = f"""\
Usage:
  chain [QUERY]    a prompt: give it a task, and keep typing while it works
  chain -p QUERY   one run, then the end; what is piped in goes with the query
  chain < lines    the first line is the query, later ones are interruptions
  chain COMMAND    one of these commands

Commands:
{_LISTED}
One run, without a prompt:
  -p, --print             run the query and end: the answer goes to standard
                          output, progress to standard error
  --no-stdin              leave standard input alone; a loop that reads its list
                          from there needs it, or the first run gets the rest:
                          while read -r f; do chain -p "$f" --no-stdin; done
  --stdin                 wait for what is piped in, however long it takes; else
                          the run begins without it if nothing comes for 3 s
  --output-format FORMAT  text: the answer (the default); json: the result as an
                          object; stream-json: each event as an object on a row
  --input-format FORMAT   text (the default) or stream-json: lines as objects

Going on with an earlier session:
  -c, --continue          the latest one of this workspace
  -r, --resume [ID]       this one: the beginning or the end of an ID will do;
                          without one a terminal shows a list to choose from
  --no-session            keep nothing of this session on the disk

Lines that are typed for you:
  --say LINE              a line at a moment: '@iteration 2 todo: add x', or for
                          an agent: '@tool explore @to explore-1 look closer';
                          may be repeated
  --script FILE           a file of such lines

What it works with:
  --model NAME            a model of the configuration; offline needs no key
  --workspace DIR         the folder that the tools work in; by default this one
  --allow TOOL[,TOOL]     calls that need no approval: edit_file,
                          'shell(git status*)'
  --mcp SERVER            starts a server that .mcp.json names; may be repeated
  --max-iterations N      the most model calls in a run
  --config FILE           the configuration; chain help configuration says which
                          it is by default
  --chain NAME            a chain of the configuration
  --state URL             keep sessions in a Redis: redis://HOST/DB

Which running chain chain send and chain watch mean:
  --session ID            the one of this session; by default the only one that
                          runs in this workspace
  --wait                  chain send waits until it is known what became of it
  --new                   chain send begins a session, with --state
  --answers               chain watch answers questions by what is typed, with
                          --state

What chain worker takes on:
  -n, --at-once N         so many sessions at the same time (1)
  --only DIR              those that work in this folder
  --keep AGE              delete sessions in which nothing happened for so long,
                          such as 30d or 12h

What chain sessions export writes:
  --format FORMAT         md (the default), json, or html: a page to look at
  --output FILE           a new file, instead of standard output

What it shows:
  --no-color              no colours
  --ascii                 ASCII characters only
  -v, --verbose           a row for each thing that happens at a prompt, none
                          updated; the sessions that a worker takes; and the
                          traceback of an error
  --version               the version
  -h, --help              this help

Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 3 done, but a line
did not get through, 4 a limit was reached, 130 interrupted, 143 terminated.
"""

_ELSEWHERE = {
    "--add-dir": "--workspace",
    "--allowed-tools": "--allow",
    "--allowedTools": "--allow",
    "--cd": "--workspace",
    "--cwd": "--workspace",
    "--dangerously-skip-permissions": "--allow",
    "--json": "--output-format json",
    "--format": "--output-format",
    "--full-auto": "--allow",
    "--last": "--continue",
    "--list-sessions": "chain sessions",
    "--max-turns": "--max-iterations",
    "--mcp-config": "--mcp",
    "--message": "-p",
    "--no-session-persistence": "--no-session",
    "--non-interactive": "-p",
    "--output": "--output-format",
    "--prompt": "-p",
    "--yes": "--allow",
    "--yolo": "--allow",
    "-C": "--workspace",
    "-V": "--version",
    "-m": "--model",
    "-q": "-p",
    "-y": "--allow",
    "config": "check",
    "doctor": "check",
    "exec": "-p",
    "login": "help models",
    "resume": "-c",
    "run": "-p",
    "version": "--version",
}
"""What to suggest for options and commands of other programs, and for options of other commands here."""

_JOINED = re.compile("-p(?![pvh]*$)")
"""The option ``-p`` with its query joined to it, which other programs accept."""

_OPTION = re.compile(r"-(?!\d*\.?\d+\Z)[^ ]+")
"""A word that argparse parses as an option."""


class Information(Exception):
    """The user asked for a text instead of a run: the help or the version."""


class _Parser(argparse.ArgumentParser):
    """A parser that raises its errors and offers no abbreviations."""

    def __init__(self, prog: str, parents: Sequence[_Parser] = ()) -> None:
        super().__init__(prog, parents=parents, add_help=False, allow_abbrev=False, exit_on_error=False)

    def read(self, argv: Sequence[str], args: argparse.Namespace) -> list[str]:
        """Add the options of this parser to ``args``. Return the rest, in order. Raise ``UserError``."""
        try:
            return self.parse_known_args(argv, args)[1]
        except argparse.ArgumentError as error:
            raise UserError(_mistake(error, self._actions)) from None

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see chain --help")


def one_of(*values: str) -> dict[str, Any]:
    """Return the arguments of an option that has one of a few values."""

    def read(text: str) -> str:
        if text not in values:
            *others, last = values
            raise argparse.ArgumentTypeError(f"cannot be {text!r}; write {', '.join(others)} or {last}")
        return text

    return {"metavar": "FORMAT", "type": read, "choices": values}


def shared_options() -> _Parser:
    """Return a parser of the options that a run and every command have."""
    parser = _Parser(prog="chain")
    add = parser.add_argument
    add("-p", "--print", action="store_true")
    add("--no-stdin", action="store_true")
    add("--stdin", action="store_true")
    add("--output-format", **one_of("text", "json", "stream-json"), default="text")
    add("--input-format", **one_of("text", "stream-json"), default="text")
    add("-c", "--continue", action="store_true")
    add("-r", "--resume", metavar="ID", nargs="?", const="")
    add("--no-session", action="store_true")
    add("--say", action="append", default=[], metavar="LINE")
    add("--script", metavar="FILE")
    add("--model", metavar="NAME")
    add("--workspace", metavar="DIR")
    add("--allow", action="append", default=[], metavar="TOOL[,TOOL]")
    add("--mcp", action="append", default=[], metavar="SERVER")
    add("--max-iterations", metavar="N")
    add("--config", metavar="FILE")
    add("--chain", metavar="NAME")
    add("--state", metavar="URL")
    add("--no-color", action="store_true")
    add("--ascii", action="store_true")
    add("-v", "--verbose", action="store_true")
    add("--version", action="store_true")
    add("-h", "--help", action="store_true")
    return parser


def command_parser(command: str) -> _Parser:
    """Import a command and return the parser of its own options."""
    parser = _Parser(prog=f"chain {command}")
    if add_options := getattr(module_of(command), "add_options", None):
        add_options(parser)
    return parser


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line. Raise ``UserError``, and ``Information`` for ``--help`` and the like.

    ``command`` is the command, which has ``words``, or an empty string for a run, which has a ``query`` or ``None``. An
    option may precede its command, and a query may be any word, so argparse cannot choose among subparsers: the options
    that all share are read first, and the command is the first word of what is left. Only its own module is imported.
    """
    if any(_JOINED.match(word) for word in argv[: argv.index("--") if "--" in argv else None]):
        # argparse would say something of the options that the letters of the query are.
        raise UserError("-p needs a space after it, for example: chain -p 'List the files'")
    args = argparse.Namespace()
    left = shared_options().read(argv, args)
    if args.help or args.version:
        raise Information(HELP if args.help else f"chain {VERSION}")
    args.command = "" if args.print else _take_command(left)
    if not args.command:
        args.query = _query(args, _words(left))
        return args
    args.words = _words(command_parser(args.command).read(left, args))
    if args.words and not COMMANDS[args.command][0]:
        raise UserError(f"chain {args.command} has no arguments; put a query of several words in quotes")
    return args


def _take_command(left: list[str]) -> str:
    """Remove the command from the rest of a command line. Return it, or an empty string if there is none.

    The command is the first word of the rest, or follows options of its own.
    """
    is_first = bool(left) and (left[0] in COMMANDS or _OPTION.fullmatch(left[0]) is not None)
    name = next((word for word in left if is_first and word in COMMANDS), "")
    if name:
        left.remove(name)
    return name


def _words(left: Sequence[str]) -> list[str]:
    """Return the words that a parser left over. Raise ``UserError`` if one of them is an option."""
    words = list(left)
    end = words.index("--") if "--" in words else len(words)
    for word in words[:end]:
        if _OPTION.fullmatch(word):
            raise UserError(_unknown(word.partition("=")[0]))
    return words[:end] + words[end + 1 :]


def resumes(args: argparse.Namespace) -> bool:
    """Return whether a session is resumed. Its waiting lines can start a run, so no query is needed."""
    return vars(args)["continue"] or args.resume is not None


def _query(args: argparse.Namespace, words: Sequence[str]) -> str | None:
    """Return the query of a run. Raise ``UserError`` if it was probably meant to be a command."""
    near = ""
    if words and not args.print:
        near = nearest_word(words[0], COMMANDS)
        if not resumes(args):  # to a session that goes on "run" says more
            near = _ELSEWHERE.get(words[0].casefold(), near)
    if len(words) > 1:
        hint = f", or did you mean chain {near}?" if near else ""
        raise UserError(f"there are {len(words)} words where one query is expected; put the query in quotes{hint}")
    if near:
        [word] = words
        raise UserError(f"there is no command {word}: did you mean chain {near}? To run it as a query: chain -p {word}")
    return words[0] if words else None


def _unknown(name: str) -> str:
    """Return the error for an option that is unknown, or that only another command has."""
    commands = [command_parser(each) for each in COMMANDS]
    near = _ELSEWHERE.get(name)
    if owners := [each.prog for each in commands if name in each._option_string_actions]:
        return f"{name} is for {' and '.join(owners)}" + (f"; a run has {near}" if near else "")
    parsers = [shared_options(), *commands]
    names = [name for each in parsers for name in each._option_string_actions if name.startswith("--")]
    near = near or _nearest(name, names)
    if near:
        return f"there is no option {name}: did you mean {near}?"
    return f"there is no option {name}; chain --help lists them, and a query that begins with - goes after --"


def module_of(command: str) -> ModuleType:
    """Import the module of a command."""
    return import_module(f"cli.subcommands.{command}")


def _nearest(name: str, names: Sequence[str]) -> str:
    if name.startswith("--"):
        if begun := next((each for each in names if each.startswith(name)), ""):
            return begun
        near = nearest(name[2:], [each[2:] for each in names])  # the dashes, which all have, make none likely
        return f"--{near}" if near else ""
    # With one dash it may as well be text, so it has to be nearer.
    return nearest(f"-{name}", names, 0.8)


def _mistake(error: argparse.ArgumentError, actions: Iterable[argparse.Action]) -> str:
    name = error.argument_name
    action = next((each for each in actions if "/".join(each.option_strings) == name), None)
    if action is None:
        return f"{error}; see chain --help"
    if isinstance(error.__context__, argparse.ArgumentTypeError):
        return f"{name} {error.message}"
    if action.nargs == 0:
        return f"{name} takes no value; chain --help says what it does"
    return f"{name} needs a value: {name} {action.metavar}"
