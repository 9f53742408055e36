"""The ``chain`` command: arguments in, an exit code out.

Imports are late, so that the prompt is on the screen before the chain behind it is ready.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from chain.config.allowed_servers import FoundServers, remember_answer, servers_of
from chain.config.load import Settings, remember_trust, require_trust, state_folder
from chain.errors import UserError
from chain.session.exit_codes import INTERRUPTED_CODE, WRONG_USAGE
from chain.text.plain import sanitize
from cli import arguments, options
from cli.ending import even_at_once, exit_on_interrupt
from cli.screen import tty
from cli.terminal import startup
from cli.terminal.invocation import Invocation
from cli.writing import try_to_write, write_text

if TYPE_CHECKING:
    import argparse
    from types import TracebackType

    from chain import Tool
    from cli.arguments import Place
    from cli.show.renderer import Renderer


ROWS_AT_ONCE = 200
"""Rows that are written in one piece: enough for speed, and few of a long session at the same time."""
WIDEST = 100
"""Columns of the reference at most: longer rows are hard to read."""


def run_command() -> None:
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
        return _run(options.parse_arguments(argv), tuple(tools))
    except options.Information as asked:
        return _report(_write(1, f"{asked}\n"))
    except UserError as error:
        if verbose:
            _write(2, traceback.format_exc())
        return _fail(str(error), WRONG_USAGE)
    except KeyboardInterrupt:
        return INTERRUPTED_CODE


def _run(args: argparse.Namespace, tools: tuple[Tool, ...]) -> int:
    command, word = arguments.command_of(args)
    if command == "init":
        from cli.subcommands.init import init

        return _show(args, init(Path(word or ".")))
    if command == "demo":
        from cli.input.stdin import is_piped
        from cli.subcommands import demo

        if os.isatty(0) and os.isatty(1):
            return demo.at_terminal(no_color=args.no_color, ascii=args.ascii)
        return demo.by_itself(_renderer(args, fd=1), has_input=is_piped(0))
    if command == "help":
        return _help(args, word)
    if command == "completion":
        from cli.subcommands.completion import completion

        read = partial(arguments.read_settings, args)
        return _report(_write(1, completion(word or "", state_folder(os.environ), read)))
    if command in ("send", "watch"):
        return _elsewhere(args, command, word or "")
    if command == "sessions":
        return _sessions(args, (word or "").split())
    if command == "acp":
        from cli.acp.host import Opener
        from cli.subcommands.acp import AT_TERMINAL, acp, check_options

        check_options(args)
        if os.isatty(0):
            _write(2, AT_TERMINAL)
        state, address = state_folder(os.environ), arguments.read_state(args)
        traces = _traces(state, by_default=False)
        read = partial(arguments.read_settings, args)
        return acp(Opener(read, state, tools, traces, os.environ, address))
    settings = arguments.read_settings(args)
    if command == "explain":
        from cli.subcommands.explain import explanation_rows

        return _show(args, explanation_rows(settings, word or ""))
    if command == "replay":
        from chain.app import sessions
        from chain.app.replay import recorded, replay

        require_trust(settings)
        store = sessions.open_store(state_folder(os.environ), settings.state)
        found = replay(settings, recorded(store, word or ""), tools=tools)
        return _show(args, found.rows) or int(not found.is_same)
    if command == "worker":
        from cli.subcommands.worker import work

        require_trust(settings)
        if not settings.state:
            raise UserError("chain worker needs the address of a Redis: --state redis://HOST/DB, or CHAIN_STATE")
        limits = arguments.read_limits(args)
        return work(settings, state_folder(os.environ), limits, tools, report=_fail, tells_all=args.verbose)
    if command == "check":
        import trio

        from chain.app import sessions
        from cli.subcommands.check import check, check_servers, check_service

        state = state_folder(os.environ)
        store = sessions.open_store(state, "" if settings.asked else settings.state)
        where = arguments.whole_path(args.workspace)
        servers = partial(trio.run, check_servers, settings, where.resolve(), state, args.mcp)
        rows, is_good = check(settings, store, tools, workspace=where, start_servers=servers)
        if is_good:
            more, is_good = trio.run(check_service, settings)
            rows += more
        return _show(args, rows) or (0 if is_good else WRONG_USAGE)
    return (_interactive if arguments.is_interactive(args) else _headless)(args, word, settings, tools)


def _help(args: argparse.Namespace, topic: str | None) -> int:
    from cli.subcommands.help import index, read_topic

    if topic is None:
        return _show(args, index())
    source = _spelled(args, read_topic(topic))
    color, ascii, width = _looks(args, fd=1)
    if not color:
        return _page(source.splitlines())
    from cli.show.markdown_flow import render

    return _page(render(source, min(width, WIDEST), ascii=ascii))


def _page(rows: Iterable[str]) -> int:
    from cli.pager import show_in_pager

    left = iter(show_in_pager(rows, os.environ))
    while piece := list(islice(left, ROWS_AT_ONCE)):
        if why := try_to_write(1, "".join(f"{row}\n" for row in piece)):
            return _report(why)
    return 0


def _sessions(args: argparse.Namespace, words: Sequence[str]) -> int:
    from chain.app.sessions import open_store
    from cli.subcommands import sessions

    what, id = sessions.read_words(words)
    store = open_store(state_folder(os.environ), arguments.read_state(args))
    color, ascii, width = _looks(args, fd=1)
    if what == "list":
        return _show(args, sessions.list_rows(store, here=Path(args.workspace or "."), width=width, ascii=ascii))
    if what == "delete":
        if sessions.delete_if_sure(store, id, partial(_write, 2)):
            return _show(args, ["Deleted."])
        _write(2, "Nothing was deleted.\n")
        return 1
    faults: list[str] = []
    if what == "show":
        code = _page(sessions.show_rows(store, id, faults.append, color=color, ascii=ascii, width=width))
    else:
        write = partial(try_to_write, 1)
        code = _report(sessions.write_export(store, id, args.format, args.output, write, faults.append))
    _write(2, "".join(f"chain: {fault}\n" for fault in faults))
    return code


def _elsewhere(args: argparse.Namespace, command: str, line: str) -> int:
    """``chain send`` and ``chain watch``: a line to a session that another process runs, or what it does."""
    arguments.check_door(args, command, line)
    address = arguments.read_state(args)
    workspace = Path("/") if args.session else arguments.whole_path(args.workspace)  # a session has its own
    if not address and (args.new or args.answers):
        raise UserError(f"{'--new' if args.new else '--answers'} needs --state; chain help machines says more")
    write = partial(write_text, 1)
    shows_rows = command == "watch" and args.output_format == "text"
    renderer = _renderer(args, fd=1, streams=True) if shows_rows else None
    code, problem = 0, ""
    try:
        if address:
            from chain.app.remote import remote_session
            from cli.subcommands.machines import send_remotely, watch_remotely

            reach = partial(remote_session, address, id=args.session or "", workspace=workspace, is_new=args.new)
            if command == "send":
                code, problem = send_remotely(reach, line, is_new=args.new, wait=args.wait, say=_say)
            else:
                watch_remotely(reach, renderer, write, answers=args.answers, say=_fail)
        else:
            from cli.door.visit import find_chain
            from cli.subcommands.elsewhere import send, watch

            state = state_folder(os.environ)
            with find_chain(state, os.environ, session=args.session or "", workspace=workspace) as visit:
                try:
                    if command == "send":
                        code, problem = send(visit, line, wait=args.wait, say=_say)
                    else:
                        watch(visit, renderer, write)
                except UserError as error:
                    code, problem = 1, str(error)
    except BrokenPipeError:
        return 0  # the reader has closed its end
    except OSError as error:
        return _report(error.strerror or str(error))
    return _fail(problem, code) if problem else code


def _headless(args: argparse.Namespace, query: str | None, settings: Settings, tools: tuple[Tool, ...]) -> int:
    import trio

    from chain.app.open import open_chain
    from chain.app.sessions import open_store
    from chain.app.whereabouts import whereabouts
    from chain.text.wording import instructions_read
    from cli import headless
    from cli.door.server import side_door

    job = arguments.read_job(args, query)
    require_trust(settings)
    state = state_folder(os.environ)
    place = arguments.read_place(args, state, settings.state)
    servers = servers_of(settings, place.workspace, state, args.mcp)
    notes = [*job.notes, str(settings.passed_over or ""), *place.notes, *servers.notes_unattended]
    streams = args.output_format == "text" and tty.is_one_terminal(1, 2)

    store, unused = open_store(state, settings.state), ""

    async def work() -> int:
        nonlocal unused
        async with (
            open_chain(
                settings,
                workspace=place.workspace,
                state=state,
                store=store,
                tools=tools,
                resume=place.resume,
                traces=_traces(state, by_default=False),
                whereabouts=whereabouts,
                instructions=True,
                servers=servers.allowed,
            ) as chain,
            side_door(chain, state, os.environ) as problem,
        ):
            read = chain.state.instructions
            tells_all = args.verbose or args.output_format == "stream-json"
            told = [problem, instructions_read(read.files) if tells_all else "", *read.faults]
            noted = replace(job, notes=tuple(filter(None, [*notes, *told])))
            code = await headless.run_job(chain, noted, _renderer(args, streams=streams))
            unused = chain.session_id if code == WRONG_USAGE and not place.resume else ""
            return code

    # With --stdin the query may be typed here.
    with tty.hidden_typing() if streams and not args.stdin else nullcontext(), even_at_once(tty.restore):
        code = trio.run(work)
    if unused:
        store.delete(unused)
    return code


def _interactive(args: argparse.Namespace, query: str | None, settings: Settings, tools: tuple[Tool, ...]) -> int:
    exit_on_interrupt()
    if query is not None:
        arguments.check_query(query)
    scheduled = arguments.read_scheduled(args)
    state = state_folder(os.environ)
    ascii, typed = args.ascii or not tty.is_utf8(os.environ), b""
    if settings.untrusted:
        settings, typed = _ask_for_trust(args, settings, state, ascii=ascii)
    settings.model()  # an error in it is reported before there is a prompt
    if args.resume == "":
        from cli.terminal.plain_question import ask_which

        args.resume = ask_which(state, settings.state, arguments.whole_path(args.workspace), ascii=ascii)
        if args.resume is None:
            return 0
    place = arguments.read_place(args, state, settings.state)
    traces = _traces(state, by_default=True)
    servers, typed = _ask_for_servers(args, settings, place, state, typed, ascii=ascii)
    invocation = Invocation(settings, place, state, tools, traces, query, scheduled, servers=servers)
    return startup.run_at_terminal(
        lambda: nullcontext(invocation),
        history=state / "history",
        typed=typed,
        no_color=args.no_color,
        ascii=args.ascii,
        updates=not args.verbose,
    )


def _ask_for_trust(args: argparse.Namespace, settings: Settings, state: Path, *, ascii: bool) -> tuple[Settings, bytes]:
    """Ask about a configuration that was found, and remember a yes; returns what holds, and what was typed before."""
    from cli.terminal.plain_question import ask_for_trust, say_declined

    is_trusted, typed = ask_for_trust(settings, ascii=ascii)
    if is_trusted:
        return remember_trust(settings, state), typed
    instead = arguments.read_settings(args, skip_here=True)
    say_declined(settings, instead, ascii=ascii)
    return instead, typed


def _ask_for_servers(
    args: argparse.Namespace, settings: Settings, place: Place, state: Path, typed: bytes, *, ascii: bool
) -> tuple[FoundServers, bytes]:
    """Ask about each server that came with the workspace, and remember the answers; returns those that may start."""
    found = servers_of(settings, place.workspace, state, args.mcp)
    if not found.unasked:
        return found, typed
    from cli.terminal.plain_question import ask_for_server

    for server in found.unasked:
        is_allowed, more = ask_for_server(server, ascii=ascii)
        typed += more
        if is_allowed is not None:
            remember_answer(server, place.workspace, state, is_allowed=is_allowed)
    return servers_of(settings, place.workspace, state, args.mcp), typed


def _traces(state: Path, *, by_default: bool) -> Path | None:
    wanted = os.environ.get("CHAIN_TRACE", "")
    return state / "traces" if (wanted != "0" if wanted else by_default) else None


def _renderer(args: argparse.Namespace, *, fd: int = 2, streams: bool = False) -> Renderer:
    from cli.show.renderer import Renderer

    color, ascii, width = _looks(args, fd)
    return Renderer(color=color, ascii=ascii, width=width, streams=streams)


def _looks(args: argparse.Namespace, fd: int) -> tuple[bool, bool, int]:
    """Whether a descriptor shows colours, whether it shows ASCII only, and how many columns it has."""
    is_tty = os.isatty(fd)
    plain = args.no_color or bool(os.environ.get("NO_COLOR")) or tty.is_dumb(os.environ)
    encoding = (getattr(sys.stderr, "encoding", None) or "ascii").lower().replace("-", "")
    width = (os.get_terminal_size(fd).columns if is_tty else 0) or 100
    return is_tty and not plain, args.ascii or encoding != "utf8", width


def _show(args: argparse.Namespace, rows: Iterable[str]) -> int:
    # A line end inside a value must not begin a new row.
    text = "".join(f"{' '.join(row.splitlines())}\n" for row in rows)
    return _report(_write(1, _spelled(args, text)))


def _spelled(args: argparse.Namespace, text: str) -> str:
    """A text for standard output, with ASCII signs where the user or the terminal wants no others."""
    from cli.show.signs import in_ascii

    _, ascii, _ = _looks(args, fd=1)
    return in_ascii(text) if ascii else text


def _report(why: str) -> int:
    return _fail(f"standard output cannot be written: {why}") if why else 0


def _fail(problem: str, code: int = 1) -> int:
    _write(2, f"chain: {problem}\n")
    return code


def _say(text: str) -> None:
    _write(1, f"{text}\n")


def _write(fd: int, text: str) -> str:
    """Write a text without its control characters, as it may be of an untrusted file; returns why that failed."""
    return try_to_write(fd, sanitize(text))
