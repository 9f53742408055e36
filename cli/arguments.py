"""The command line: what its words and flags mean, and what is wrong with them.

Imports are late for the same reason as in ``main``.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from chain.config.load import Settings, load_settings
from chain.errors import UserError
from chain.lines.parse import MAX_LINE
from chain.version import VERSION

if TYPE_CHECKING:
    from cli.headless import Job
    from cli.input.moments import ScheduledLine

COMMANDS = ("check", "init", "demo")

USAGE = """\
chain [QUERY]                     a prompt; without a terminal, lines on standard input are interruptions
chain -p QUERY                    one run; standard input is read only as stream-json
chain < lines                     the first line starts the run
chain check | init [DIR] | demo   check the configuration, write one, see a demonstration"""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The flags and words of a command line. Raises ``UserError``; ``--help`` and ``--version`` exit."""
    return _parser().parse_args(argv)


def command_of(args: argparse.Namespace) -> tuple[str, str | None]:
    """The subcommand, empty where there is none, and the one word beside it: a query, or the folder of ``init``.

    Raises ``UserError`` for more words than that.
    """
    name, words = (args.words[0], args.words[1:]) if args.words[:1] in [[c] for c in COMMANDS] else ("", args.words)
    if args.print:
        name, words = "", args.words
    if name == "init" and len(words) > 1:
        raise UserError("chain init has one argument, the folder")
    if name in ("check", "demo") and words:
        raise UserError(f"chain {name} has no arguments; put a query of several words in quotes")
    if len(words) > 1:
        raise UserError(f"there are {len(words)} words where one query is expected; put the query in quotes")
    return name, words[0] if words else None


def is_interactive(args: argparse.Namespace) -> bool:
    """Whether input and output are terminals and no flag asks for a run without a prompt."""
    is_text = args.output_format == args.input_format == "text"
    return os.isatty(0) and os.isatty(1) and is_text and not args.print and not args.stdin


def read_settings(args: argparse.Namespace, *, skip_here: bool = False) -> Settings:
    """The configuration, with the flags that override it; ``skip_here`` as in ``load_settings``.

    Raises ``ConfigError``.
    """
    flags = {
        "model": args.model,
        "chain": args.chain,
        "max_iterations": args.max_iterations,
        "allow": args.allow,
    }
    named = Path(args.config) if args.config else None
    return load_settings(config=named, environ=os.environ, cwd=Path.cwd(), flags=flags, skip_here=skip_here)


def check_query(query: str) -> None:
    """Raises ``UserError`` for a query that is empty or too long."""
    if not query.strip():
        raise UserError("the query is empty; write what the chain is to do")
    if len(query) > MAX_LINE:
        raise UserError(f"the query has {len(query):,} characters, and the limit is {MAX_LINE:,}; put it in a file")


def read_job(args: argparse.Namespace, query: str | None) -> Job:
    """What a headless process is asked to do; with ``--stdin`` this reads standard input. Raises ``UserError``."""
    from cli.headless import Job

    is_live = args.input_format == "stream-json"
    if args.print and query is None:
        raise UserError("-p needs a query, for example: chain -p 'List the files'")
    if query is not None:
        check_query(query)
    notes = []
    if args.stdin:
        if is_live or query is None:
            raise UserError("--stdin needs a query and --input-format text: it appends what stdin holds to the query")
        held, is_replaced = _all_of_stdin()
        if is_replaced:
            notes.append("standard input is not UTF-8; its invalid bytes were replaced")
        query = f"{query}\n\n<stdin>\n{held}\n</stdin>"
        check_query(query)
    scheduled = tuple(read_scheduled(args))
    if os.isatty(0) and not args.print and not args.stdin:
        notes.append("lines typed here are not read, because the output is not a terminal; use --say or --script")
    reads_stdin = not (args.print and not is_live) and not args.stdin and not os.isatty(0)
    if query is None and not reads_stdin and not scheduled:
        raise UserError("there is no query; give one, for example: chain -p 'List the files'")
    return Job(query, scheduled, reads_stdin, args.output_format, args.input_format, tuple(notes))


def read_scheduled(args: argparse.Namespace) -> list[ScheduledLine]:
    """The lines of ``--script`` and ``--say`` with their moments. Raises ``UserError``."""
    if not (args.script or args.say):
        return []
    from cli.input.moments import parse_moment, read_script

    scheduled = []
    if args.script:
        path = Path(args.script)
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise UserError(f"cannot be read: {error.strerror}", file=path) from None
        except UnicodeDecodeError:
            raise UserError("is not UTF-8 text; save it as UTF-8", file=path) from None
        scheduled += read_script(text, str(path))
    for text in args.say:
        if not text.strip():
            raise UserError("--say needs a line, for example: --say '@iteration 2 todo: add check the licence'")
        scheduled.append(parse_moment(text, strict=True))
    return scheduled


def _all_of_stdin() -> tuple[str, bool]:
    """The text on standard input, and whether invalid bytes in it were replaced."""
    from cli.input.stdin import TEXT_BYTES

    try:
        with os.fdopen(0, "rb", closefd=False) as stdin:
            raw = stdin.read(TEXT_BYTES)
    except OSError as error:
        raise UserError(f"standard input cannot be read: {error.strerror}") from None
    if len(raw) > MAX_LINE * 4:
        raise UserError(f"standard input holds more than the {MAX_LINE:,} characters that a query may have")
    try:
        return raw.decode("utf-8-sig").rstrip("\n"), False
    except UnicodeDecodeError:
        return raw.decode(errors="replace").rstrip("\n"), True


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see chain --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="chain", usage=USAGE, add_help=True, allow_abbrev=False)
    add = parser.add_argument
    add("words", nargs="*", metavar="QUERY", help="what the chain is to do, or check, init, demo")
    add("-p", "--print", action="store_true", help="one run; standard input is read only as stream-json")
    add("--stdin", action="store_true", help="append what standard input holds to the query")
    add("--say", action="append", default=[], metavar="LINE", help="a line at a moment: '@iteration 2 todo: add x'")
    add("--script", metavar="FILE", help="a file of such lines, one per line")
    formats = "text: the answers; json: the last result as one object; stream-json: every event as a line"
    add("--output-format", choices=["text", "json", "stream-json"], default="text", help=formats)
    add("--input-format", choices=["text", "stream-json"], default="text", help="what standard input holds")
    add("--config", metavar="FILE", help="the configuration; the README says where it is searched for")
    add("--model", metavar="NAME", help="a model of the configuration")
    add("--chain", metavar="NAME", help="a chain of the configuration")
    add("--workspace", metavar="DIR", help="the folder that the tools work in; default: here")
    add(
        "--allow",
        action="append",
        default=[],
        metavar="TOOL[,TOOL]",
        help="calls that need no approval: edit_file, shell(git status*)",
    )
    add("--max-iterations", metavar="N", help="the most model calls in a run")
    add("--no-color", action="store_true", help="no colours; they are used on terminals only")
    add("--ascii", action="store_true", help="ASCII characters only")
    add("-v", "--verbose", action="store_true", help="show the traceback of an error")
    add("--version", action="version", version=f"chain {VERSION}")
    return parser
