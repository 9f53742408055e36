"""The options of the command line: how they are read, what is wrong with them, and the help."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from chain.errors import UserError, nearest
from chain.version import VERSION

USAGE = """\
chain [QUERY]    a prompt: give it a task, and keep typing while it works
chain -p QUERY   one run, then the end; what is piped in goes with the query
chain < lines    the first line is the query, later ones are interruptions
chain COMMAND    acp, check, completion SHELL, demo, explain LINE,
                 help [TOPIC], init [DIR], replay ID, send LINE, sessions,
                 watch or worker"""

_INDENTED = USAGE.replace("\n", "\n  ")

HELP = f"""\
Usage:
  {_INDENTED}

Commands:
  acp                     work in an editor, by the Agent Client Protocol; chain
                          help editors says how one is set up
  check                   check the configuration, and show what is in it
  completion SHELL        what completes all this in bash, zsh or fish; chain
                          help completion says where it goes
  demo                    see what an interruption does; needs no key
  explain LINE            what the chain would make of a line
  help [TOPIC]            the reference: lines, keys, moments, tools, agents and
                          more
  init [DIR]              write config.yaml and prompts/, to change them
  replay ID               compare a session with the prompts of today
  send LINE               send a line to a chain that runs in another terminal
  sessions [WHAT]         what is kept: list (the default), show ID, export ID,
                          delete ID
  watch                   see what a chain does that runs in another terminal
  worker                  run the sessions of a Redis that machines share; chain
                          help machines says how

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
    "--full-auto": "--allow",
    "--last": "--continue",
    "--list-sessions": "chain sessions",
    "--max-turns": "--max-iterations",
    "--mcp-config": "--mcp",
    "--message": "-p",
    "--non-interactive": "-p",
    "--prompt": "-p",
    "--yes": "--allow",
    "--yolo": "--allow",
    "-C": "--workspace",
    "-V": "--version",
    "-m": "--model",
    "-q": "-p",
    "-y": "--allow",
}
"""Names that other programs have for an option, where the nearest by its letters would be a wrong one."""


_JOINED = re.compile("-p(?![pvh]*$)")
"""The option ``-p`` with its query joined to it, which other programs take."""


class Information(Exception):
    """The user asked for a text instead of a run: the help or the version."""


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The flags and words of a command line. Raises ``UserError``, and ``Information`` for ``--help`` and the like."""
    parser, actions = _parser()
    if any(_JOINED.match(word) for word in argv[: argv.index("--") if "--" in argv else None]):
        # argparse would say something of the options that the letters of the query are.
        raise UserError("-p needs a space after it, for example: chain -p 'List the files'")
    try:
        args, left = parser.parse_known_args(argv)
    except argparse.ArgumentError as error:
        raise UserError(_mistake(error, actions)) from None
    # What argparse leaves over is an option that there is not, or a word behind an option that stands behind a word.
    while left and left[0] != "--":
        word = left.pop(0)
        if word.startswith("-") and word != "-":
            raise UserError(_unknown(word.partition("=")[0], actions))
        args.words.append(word)
    args.words += left[1:]
    return args


def _unknown(name: str, actions: Iterable[argparse.Action]) -> str:
    names = [name for action in actions for name in action.option_strings if name.startswith("--")]
    near = _ELSEWHERE.get(name) or _nearest(name, names)
    if near:
        return f"there is no option {name}: did you mean {near}?"
    return f"there is no option {name}; chain --help lists them, and a query that begins with - goes after --"


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


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see chain --help")


class _Inform(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, *, const: str) -> None:
        super().__init__(option_strings, dest, nargs=0, const=const)

    def __call__(self, *_: object) -> NoReturn:
        raise Information(self.const)


def _one_of(*values: str) -> dict[str, Any]:
    """The arguments of an option that has one of a few values."""

    def read(text: str) -> str:
        if text not in values:
            *others, last = values
            raise argparse.ArgumentTypeError(f"cannot be {text!r}; write {', '.join(others)} or {last}")
        return text

    return {"metavar": "FORMAT", "type": read, "choices": values}


def all_options() -> list[argparse.Action]:
    """Every option of the command line, as argparse has it."""
    return _parser()[1]


def _parser() -> tuple[argparse.ArgumentParser, list[argparse.Action]]:
    parser = _Parser(prog="chain", add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("words", nargs="*")
    add = parser.add_argument
    return parser, [
        add("-p", "--print", action="store_true"),
        add("--no-stdin", action="store_true"),
        add("--stdin", action="store_true"),
        add("--output-format", **_one_of("text", "json", "stream-json"), default="text"),
        add("--input-format", **_one_of("text", "stream-json"), default="text"),
        add("-c", "--continue", action="store_true"),
        add("-r", "--resume", metavar="ID", nargs="?", const=""),
        add("--session", metavar="ID"),
        add("--wait", action="store_true"),
        add("--new", action="store_true"),
        add("--answers", action="store_true"),
        add("-n", "--at-once", metavar="N"),
        add("--only", metavar="DIR"),
        add("--keep", metavar="AGE"),
        add("--say", action="append", default=[], metavar="LINE"),
        add("--script", metavar="FILE"),
        add("--model", metavar="NAME"),
        add("--workspace", metavar="DIR"),
        add("--allow", action="append", default=[], metavar="TOOL[,TOOL]"),
        add("--mcp", action="append", default=[], metavar="SERVER"),
        add("--max-iterations", metavar="N"),
        add("--config", metavar="FILE"),
        add("--chain", metavar="NAME"),
        add("--state", metavar="URL"),
        add("--format", **_one_of("md", "json", "html")),
        add("--output", metavar="FILE"),
        add("--no-color", action="store_true"),
        add("--ascii", action="store_true"),
        add("-v", "--verbose", action="store_true"),
        add("--version", action=_Inform, const=f"chain {VERSION}"),
        add("-h", "--help", action=_Inform, const=HELP),
    ]
