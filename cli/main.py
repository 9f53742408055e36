"""The ``chain`` command: arguments in, an exit code out.

Little is imported here at once: a prompt is to be on the screen before the chain that answers it is there.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from chain.config.load import Settings, load_settings, remember_trust, require_trust, state_folder
from chain.errors import UserError
from chain.exit_codes import INTERRUPTED_CODE, SIGTERM_CODE, WRONG_USAGE
from chain.lines.parse import MAX_LINE
from chain.version import VERSION
from cli.screen import tty
from cli.show.text import clean
from cli.writing import write_all

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from chain import Tool
    from cli.headless import Job
    from cli.input.moments import Say
    from cli.screen.protocol import Screen
    from cli.show.events import Renderer

COMMANDS = ("check", "init", "demo")

USAGE = """\
chain [QUERY]                     a prompt; without a terminal, lines on standard input are interruptions
chain -p QUERY                    one run; standard input is read only as stream-json
chain < lines                     the first line starts the run
chain check | init [DIR] | demo   look at the configuration, write one, see it work"""


def console() -> None:
    """The entry point of the installed command."""
    _open_standard_streams()
    sys.excepthook = _show_mistake
    sys.exit(main(sys.argv[1:]))


def _show_mistake(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Show the traceback of a mistake of our own; its message may hold what others wrote."""
    _put(2, "".join(traceback.format_exception(kind, error, trace)))


def _open_standard_streams() -> None:
    """Put the null device where a standard stream is closed, or the next file opened would take its number."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def main(argv: Sequence[str], *, tools: Iterable[Tool] = ()) -> int:
    """Run the command and return its exit code; ``tools`` are added to the configured ones."""
    verbose = "-v" in argv or "--verbose" in argv
    try:
        return _run(_parser().parse_args(argv), tuple(tools))
    except UserError as error:
        if verbose:
            _put(2, traceback.format_exc())
        return _fail(str(error))
    except KeyboardInterrupt:
        return INTERRUPTED_CODE


def _run(args: argparse.Namespace, tools: tuple[Tool, ...]) -> int:
    command, words = (args.words[0], args.words[1:]) if args.words[:1] in [[c] for c in COMMANDS] else ("", args.words)
    if args.print:
        command, words = "", args.words
    if command == "init" and len(words) > 1:
        raise UserError("chain init takes one folder")
    if command in ("check", "demo") and words:
        raise UserError(f"chain {command} takes nothing more; a query of several words needs quotes")
    if len(words) > 1:
        raise UserError(f"there are {len(words)} words where one query is expected; put the query in quotes")
    word = words[0] if words else None
    if command == "init":
        from cli.subcommands.init import init

        return _show(init(Path(word or ".")))
    if command == "demo":
        from cli.subcommands.demo import demo

        return demo(_renderer(args, fd=1))
    settings = _settings(args)
    if command == "check":
        import trio

        from cli.subcommands.check import check, check_service

        rows, is_good = check(settings, state_folder(os.environ))
        if is_good:
            more, is_good = trio.run(check_service, settings)
            rows += more
        return _show(rows) or (0 if is_good else WRONG_USAGE)
    return (_interactive if _is_interactive(args) else _headless)(args, word, settings, tools)


def _headless(args: argparse.Namespace, query: str | None, settings: Settings, tools: tuple[Tool, ...]) -> int:
    import trio

    from chain.app import open_chain
    from cli import headless

    job = _job(args, query)
    require_trust(settings)
    state = state_folder(os.environ)
    traces = _traces(state, by_default=False)

    async def work() -> int:
        async with open_chain(
            settings, workspace=Path(args.workspace or "."), state=state, tools=tools, traces=traces
        ) as chain:
            return await headless.run(chain, job, _renderer(args))

    return trio.run(work)


def _is_interactive(args: argparse.Namespace) -> bool:
    speaks = args.output_format == args.input_format == "text"
    return os.isatty(0) and os.isatty(1) and speaks and not args.print and not args.stdin


def _interactive(args: argparse.Namespace, query: str | None, settings: Settings, tools: tuple[Tool, ...]) -> int:
    if query is not None:
        _check_query(query)
    says = _says(args)
    state = state_folder(os.environ)
    if settings.untrusted:
        settings = _ask_for_trust(settings, state)
    settings.model()  # what is wrong with it is said before there is a prompt
    ascii = args.ascii or not tty.is_utf8(os.environ)
    if ascii and not args.ascii:
        sys.stdout.reconfigure(encoding="ascii", errors="replace")  # type: ignore[union-attr]
    is_dumb = tty.is_dumb(os.environ)
    color = not (args.no_color or is_dumb or os.environ.get("NO_COLOR"))
    # From here on an end has to leave the terminal as it was.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _leave_at_once)
    typed = b"" if is_dumb else tty.hush()

    import trio

    from cli.signals import LEAVING, received

    async def work() -> int:
        with received(*LEAVING, signal.SIGWINCH) as signals:
            async with _screen(None if is_dumb else state / "history", typed, color=color) as screen:
                # The prompt is up: what is imported from now on, nobody waits for.
                from cli.interactive import serve

                try:
                    return await serve(
                        screen,
                        signals,
                        settings,
                        workspace=Path(args.workspace or "."),
                        state=state,
                        tools=tools,
                        traces=_traces(state, by_default=True),
                        query=query,
                        says=says,
                        color=color,
                        ascii=ascii,
                    )
                except UserError as error:
                    problem = error  # not raised in here, where it would become one of a group
        raise problem

    try:
        return trio.run(work)
    except BaseExceptionGroup as group:
        # A mistake of our own, each nursery that it came through being a group around it.
        raise _alone(group) from None
    finally:
        tty.restore()


def _alone(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one exception in groups of one, or the group of several."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _leave_at_once(number: int, frame: object) -> NoReturn:
    # Nothing is there yet that has to be ended in order, and an exception would strike anywhere, also inside trio.
    tty.restore()
    os._exit(SIGTERM_CODE)


def _screen(history: Path | None, typed: bytes, *, color: bool) -> AbstractAsyncContextManager[Screen]:
    """The terminal with an editor, or without a place for its history one that has none."""
    if history is None:
        from cli.screen.dumb import open_plain

        return open_plain()
    from cli.screen.editor import open_terminal

    return open_terminal(color=color, history=history, typed=typed.decode(errors="replace"))


def _ask_for_trust(settings: Settings, state: Path) -> Settings:
    """Ask whether a configuration that was merely found may do what it wants; remembered by its content."""
    keys = ", ".join(settings.untrusted)
    _put(1, f"{settings.file} was found here and sets {keys}.\nIt could send your key away. Trust it? [y/N] ")
    try:
        answer = input()
    except EOFError:
        answer = ""
    if answer.strip().casefold() in ("y", "yes"):
        return remember_trust(settings, state)
    require_trust(settings)
    return settings


def _traces(state: Path, *, by_default: bool) -> Path | None:
    wanted = os.environ.get("CHAIN_TRACE", "")
    is_on = by_default if not wanted else wanted != "0"
    return state / "traces" if is_on else None


def _check_query(query: str) -> None:
    if not query.strip():
        raise UserError("the query is empty; write what the chain is to do")
    if len(query) > MAX_LINE:
        raise UserError(f"the query has {len(query):,} characters, and the limit is {MAX_LINE:,}; put it in a file")


def _job(args: argparse.Namespace, query: str | None) -> Job:
    from cli.headless import Job

    is_live = args.input_format == "stream-json"
    if args.print and query is None:
        raise UserError("-p needs a query, for example: chain -p 'List the files'")
    if query is not None:
        _check_query(query)
    notes = []
    if args.stdin:
        if is_live or query is None:
            raise UserError("--stdin needs a query and --input-format text: it appends what stdin holds to the query")
        held, is_replaced = _all_of_stdin()
        if is_replaced:
            notes.append("standard input is not UTF-8; the bytes that are not were replaced")
        query = f"{query}\n\n<stdin>\n{held}\n</stdin>"
        _check_query(query)
    says = tuple(_says(args))
    if os.isatty(0) and not args.print and not args.stdin:
        notes.append("lines that you type here are not read, since the answer goes elsewhere: use --say or --script")
    reads_stdin = not (args.print and not is_live) and not args.stdin and not os.isatty(0)
    if query is None and not reads_stdin and not says:
        raise UserError("there is no query; give one, for example: chain -p 'List the files'")
    return Job(query, says, reads_stdin, args.output_format, args.input_format, tuple(notes))


def _says(args: argparse.Namespace) -> list[Say]:
    if not (args.script or args.say):
        return []
    from cli.input.moments import parse_moment, read_script

    says = []
    if args.script:
        path = Path(args.script)
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise UserError(f"cannot be read: {error.strerror}", file=path) from None
        except UnicodeDecodeError:
            raise UserError("is not UTF-8 text; save it as UTF-8", file=path) from None
        says += read_script(text, str(path))
    for text in args.say:
        if not text.strip():
            raise UserError("--say needs a line, for example: --say '@iteration 2 todo: add check the licence'")
        says.append(parse_moment(text, strict=True))
    return says


def _all_of_stdin() -> tuple[str, bool]:
    """The text on standard input, and whether bytes of it had to be replaced."""
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


def _settings(args: argparse.Namespace) -> Settings:
    flags = {
        "model": args.model,
        "chain": args.chain,
        "max_iterations": args.max_iterations,
        "allow": [name for names in args.allow for name in names.split(",") if name],
    }
    named = Path(args.config) if args.config else None
    return load_settings(config=named, environ=os.environ, cwd=Path.cwd(), flags=flags)


def _renderer(args: argparse.Namespace, *, fd: int = 2) -> Renderer:
    from cli.show.events import Renderer

    is_tty = os.isatty(fd)
    plain = args.no_color or bool(os.environ.get("NO_COLOR")) or tty.is_dumb(os.environ)
    encoding = (getattr(sys.stderr, "encoding", None) or "ascii").lower().replace("-", "")
    width = 100
    if is_tty:
        width = os.get_terminal_size(fd).columns or width
    return Renderer(color=is_tty and not plain, ascii=args.ascii or encoding != "utf8", width=width)


def _show(rows: Iterable[str]) -> int:
    # A value with a line end must not begin a row of its own.
    why = _put(1, "".join(f"{' '.join(row.splitlines())}\n" for row in rows))
    if why:
        _put(2, f"chain: standard output cannot be written: {why}\n")
    return 1 if why else 0


def _fail(message: str) -> int:
    _put(2, f"chain: {message}\n")
    return WRONG_USAGE


def _put(fd: int, text: str) -> str:
    """Write what may hold anything, such as values of a file that nobody trusted yet; returns why that failed."""
    try:
        write_all(fd, clean(text).encode(errors="replace"))
    except BrokenPipeError:
        return ""  # nobody reads any more
    except OSError as error:
        return error.strerror or str(error)
    return ""


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
    add("--script", metavar="FILE", help="many of them, one a line")
    formats = "text: the answers; json: the last result as one object; stream-json: every event as a line"
    add("--output-format", choices=["text", "json", "stream-json"], default="text", help=formats)
    add("--input-format", choices=["text", "stream-json"], default="text", help="what standard input holds")
    add("--config", metavar="FILE", help="the configuration; see the README for where it is looked for")
    add("--model", metavar="NAME", help="a model of the configuration")
    add("--chain", metavar="NAME", help="a chain of the configuration")
    add("--workspace", metavar="DIR", help="the folder that the tools work in; default: here")
    add("--allow", action="append", default=[], metavar="TOOL[,TOOL]", help="tools that need no approval")
    add("--max-iterations", metavar="N", help="model calls in a run at most")
    add("--no-color", action="store_true", help="no colours; they are used on terminals only")
    add("--ascii", action="store_true", help="no signs beyond ASCII")
    add("-v", "--verbose", action="store_true", help="show the traceback of an error")
    add("--version", action="version", version=f"chain {VERSION}")
    return parser


if __name__ == "__main__":
    console()
