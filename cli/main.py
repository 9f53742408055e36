"""The ``chain`` command: arguments in, an exit code out.

Imports are late, so that the prompt is on the screen before the chain behind it is ready.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from chain.config.load import Settings, remember_trust, require_trust, state_folder
from chain.errors import UserError
from chain.exit_codes import INTERRUPTED_CODE, SIGTERM_CODE, WRONG_USAGE
from cli import arguments
from cli.screen import tty
from cli.show.text import clean
from cli.writing import write_all

if TYPE_CHECKING:
    import argparse
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from chain import Tool
    from cli.screen.protocol import Screen
    from cli.show.events import Renderer


def console() -> None:
    """The entry point of the installed command."""
    _open_standard_streams()
    sys.excepthook = _show_bug
    sys.exit(main(sys.argv[1:]))


def _show_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Show the traceback of a bug of ours, without control characters: its message may contain text of others."""
    _write(2, "".join(traceback.format_exception(kind, error, trace)))


def _open_standard_streams() -> None:
    """Open the null device for each standard stream that is closed, or the next file opened would get its number."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def main(argv: Sequence[str], *, tools: Iterable[Tool] = ()) -> int:
    """Run the command and return its exit code; ``tools`` are added to the configured ones."""
    verbose = "-v" in argv or "--verbose" in argv
    try:
        return _run(arguments.parse(argv), tuple(tools))
    except UserError as error:
        if verbose:
            _write(2, traceback.format_exc())
        return _fail(str(error))
    except KeyboardInterrupt:
        return INTERRUPTED_CODE


def _run(args: argparse.Namespace, tools: tuple[Tool, ...]) -> int:
    command, word = arguments.command_of(args)
    if command == "init":
        from cli.subcommands.init import init

        return _show(init(Path(word or ".")))
    if command == "demo":
        from cli.subcommands.demo import demo

        return demo(_renderer(args, fd=1))
    settings = arguments.read_settings(args)
    if command == "check":
        import trio

        from cli.subcommands.check import check, check_service

        rows, is_good = check(settings, state_folder(os.environ), tools)
        if is_good:
            more, is_good = trio.run(check_service, settings)
            rows += more
        return _show(rows) or (0 if is_good else WRONG_USAGE)
    return (_interactive if arguments.is_interactive(args) else _headless)(args, word, settings, tools)


def _headless(args: argparse.Namespace, query: str | None, settings: Settings, tools: tuple[Tool, ...]) -> int:
    import trio

    from chain.app import open_chain
    from cli import headless

    job = arguments.read_job(args, query)
    require_trust(settings)
    if settings.passed_over is not None:
        job = replace(job, notes=(*job.notes, str(settings.passed_over)))
    state = state_folder(os.environ)
    traces = _traces(state, by_default=False)

    async def work() -> int:
        async with open_chain(
            settings, workspace=Path(args.workspace or "."), state=state, tools=tools, traces=traces
        ) as chain:
            return await headless.run(chain, job, _renderer(args))

    return trio.run(work)


def _interactive(args: argparse.Namespace, query: str | None, settings: Settings, tools: tuple[Tool, ...]) -> int:
    if query is not None:
        arguments.check_query(query)
    scheduled = arguments.read_scheduled(args)
    state = state_folder(os.environ)
    typed = b""
    if settings.untrusted:
        settings, typed = _ask_for_trust(args, settings, state)
    settings.model()  # an error in it is reported before there is a prompt
    ascii = args.ascii or not tty.is_utf8(os.environ)
    if ascii and not args.ascii:
        sys.stdout.reconfigure(encoding="ascii", errors="replace")  # type: ignore[union-attr]
    is_dumb = tty.is_dumb(os.environ)
    color = not (args.no_color or is_dumb or os.environ.get("NO_COLOR"))
    # From here on every exit has to restore the terminal.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _exit_on_signal)
    by_key = not is_dumb or tty.echoes()
    if by_key:
        typed += tty.enter_raw_mode(is_dumb=is_dumb)

    import trio

    from cli.signals import LEAVING, received

    async def work() -> int:
        with received(*LEAVING, signal.SIGWINCH) as signals:
            async with _screen(None if is_dumb else state / "history", typed, color=color, by_key=by_key) as screen:
                # The prompt is on the screen: nobody waits for what is imported from here on.
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
                        scheduled=scheduled,
                        color=color,
                        ascii=ascii,
                    )
                except UserError as error:
                    problem = error  # raised outside the nurseries, which would wrap it in a group
        raise problem

    try:
        return trio.run(work)
    except BaseExceptionGroup as group:
        # A bug of ours, wrapped in a group by each nursery that it came through.
        raise _unwrapped(group) from None
    finally:
        tty.restore()


def _unwrapped(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The exception inside groups of one, or the group of several."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _exit_on_signal(number: int, frame: object) -> NoReturn:
    # Nothing has to be shut down in order yet, and an exception could be raised anywhere, also inside trio.
    tty.restore()
    os._exit(SIGTERM_CODE)


def _screen(history: Path | None, typed: bytes, *, color: bool, by_key: bool) -> AbstractAsyncContextManager[Screen]:
    """The terminal with an editor; without a path for the history, a terminal of rows."""
    if history is None:
        from cli.screen.dumb import open_plain

        return open_plain(typed, by_key=by_key)
    from cli.screen.editor import open_terminal

    return open_terminal(color=color, history=history, typed=typed.decode(errors="replace"))


def _ask_for_trust(args: argparse.Namespace, settings: Settings, state: Path) -> tuple[Settings, bytes]:
    """Ask whether to trust a configuration that was merely found; the answer is remembered for its content.

    Returns the configuration that holds, and what was typed before the question was there.
    """
    from cli import trust

    ascii = args.ascii or not tty.is_utf8(os.environ)
    is_trusted, typed = trust.ask(settings, ascii=ascii)
    if is_trusted:
        return remember_trust(settings, state), typed
    instead = arguments.read_settings(args, skip_here=True)
    trust.say_declined(settings, instead, ascii=ascii)
    return instead, typed


def _traces(state: Path, *, by_default: bool) -> Path | None:
    wanted = os.environ.get("CHAIN_TRACE", "")
    is_on = by_default if not wanted else wanted != "0"
    return state / "traces" if is_on else None


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
    # A line end inside a value must not begin a new row.
    why = _write(1, "".join(f"{' '.join(row.splitlines())}\n" for row in rows))
    if why:
        _write(2, f"chain: standard output cannot be written: {why}\n")
    return 1 if why else 0


def _fail(message: str) -> int:
    _write(2, f"chain: {message}\n")
    return WRONG_USAGE


def _write(fd: int, text: str) -> str:
    """Write a text without its control characters, as it may be of an untrusted file; returns why that failed."""
    try:
        write_all(fd, clean(text).encode(errors="replace"))
    except BrokenPipeError:
        return ""  # the reader has closed its end
    except OSError as error:
        return error.strerror or str(error)
    return ""


if __name__ == "__main__":
    console()
