"""The ``chain`` command: runs a subcommand, the terminal or one headless run, and returns the exit code.

Slow modules are imported late, so that the prompt appears before they are loaded.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from chain.config.allowed_servers import FoundServers, remember_answer, servers_of
from chain.config.commands import find_commands, trust_commands
from chain.config.load import Settings, remember_trust, require_trust, state_folder
from chain.errors import UserError
from chain.session.exit_codes import INTERRUPTED_CODE, WRONG_USAGE
from cli import arguments, options
from cli.command_output import fail, renderer, report_write_error, write
from cli.ending import at_immediate_exit, exit_on_interrupt
from cli.screen import tty
from cli.terminal import startup
from cli.terminal.invocation import Invocation

if TYPE_CHECKING:
    import argparse
    from types import TracebackType

    from chain import Tool
    from cli.arguments import Place


def run_command() -> None:
    """Run the installed command."""
    _open_standard_streams()
    sys.excepthook = _show_bug
    sys.exit(main(sys.argv[1:]))


def _show_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Show the traceback of a bug without control characters, since its message may contain any text."""
    write(2, "".join(traceback.format_exception(kind, error, trace)))


def _open_standard_streams() -> None:
    """Open the null device for each closed standard stream. Otherwise the next file would get the stream's number."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def main(argv: Sequence[str], *, tools: Iterable[Tool] = ()) -> int:
    """Run the command and return its exit code. ``tools`` are added to the configured ones."""
    verbose = "-v" in argv or "--verbose" in argv
    try:
        args = options.parse_arguments(argv)
        args.tools = tuple(tools)
        if args.command:
            code: int = options.module_of(args.command).run(args)
            return code
        settings = arguments.read_settings(args)
        return (_interactive if arguments.is_interactive(args) else _headless)(args, settings)
    except options.Information as asked:
        return report_write_error(write(1, f"{asked}\n"))
    except UserError as error:
        if verbose:
            write(2, traceback.format_exc())
        return fail(str(error), WRONG_USAGE)
    except KeyboardInterrupt:
        return INTERRUPTED_CODE


def _headless(args: argparse.Namespace, settings: Settings) -> int:
    import trio

    from chain.app.open import open_chain
    from chain.app.session_context import session_context
    from chain.app.sessions import MemoryStore, open_new_store, open_store
    from chain.text.modes import DEFAULT_MODE, mode_sentence
    from chain.text.wording import instructions_sentence
    from cli import headless
    from cli.door.server import side_door

    job = arguments.read_task(args, args.query)
    require_trust(settings)
    state = state_folder(os.environ)
    place = arguments.read_place(args, state, settings.state)
    servers = servers_of(settings, place.workspace, state, args.mcp)
    store, store_note = open_store(state, settings.state), ""
    if not place.resume:
        store, store_note = open_new_store(state, settings.state, is_stored=not args.no_session)
    is_kept = not isinstance(store, MemoryStore)
    job = replace(job, is_kept=is_kept)
    notes = [*job.notes, store_note, str(settings.passed_over or ""), *place.notes, *servers.notes_unattended]
    streams = args.output_format == "text" and tty.is_one_terminal(1, 2)

    async def work() -> tuple[int, str]:
        """Return the exit code, and the id of the session to delete because it was never used; empty for none."""
        async with (
            open_chain(
                settings,
                workspace=place.workspace,
                state=state,
                store=store,
                tools=args.tools,
                resume=place.resume,
                traces=arguments.read_traces(state, by_default=False) if is_kept else None,
                session_context=session_context,
                instructions=True,
                servers=servers.allowed,
                mode=arguments.read_mode(args),
                add_dirs=arguments.read_add_dirs(args),
            ) as chain,
            side_door(chain, state, os.environ) if is_kept else nullcontext("") as problem,
        ):
            read = chain.state.instructions
            tells_all = args.verbose or args.output_format == "stream-json"
            more = [problem, instructions_sentence(read.files) if tells_all else "", *read.faults]
            more += [mode_sentence(chain.mode)] if args.mode or chain.mode != DEFAULT_MODE else []
            noted = replace(job, notes=tuple(filter(None, [*notes, *more])))
            code = await headless.run_headless(chain, noted, renderer(args, streams=streams))
            return code, chain.session_id if code == WRONG_USAGE and not place.resume else ""

    # Echo stays on with --stdin, since the user may type the query.
    with tty.echo_off() if streams and not args.stdin else nullcontext(), at_immediate_exit(tty.restore):
        code, unused = trio.run(work)
    if unused:
        store.delete(unused)
    return code


def _interactive(args: argparse.Namespace, settings: Settings) -> int:
    exit_on_interrupt()
    if args.query is not None:
        arguments.check_query(args.query)
    scheduled = arguments.read_scheduled(args)
    state = state_folder(os.environ)
    ascii, typed = args.ascii or not tty.is_utf8(os.environ), b""
    if settings.untrusted:
        settings, typed = _ask_for_trust(args, settings, state, ascii=ascii)
    settings.model()  # report its errors before the prompt appears
    if args.resume == "":
        from cli.terminal.plain_question import ask_which_session

        args.resume = ask_which_session(state, settings.state, arguments.absolute_path(args.workspace), ascii=ascii)
        if args.resume is None:
            return 0
    place = arguments.read_place(args, state, settings.state)
    traces = arguments.read_traces(state, by_default=True)
    servers, typed = _ask_for_servers(args, settings, place, state, typed, ascii=ascii)
    typed = _ask_for_commands(settings, place, state, typed, ascii=ascii)
    invocation = Invocation(
        settings,
        place,
        state,
        args.tools,
        traces,
        args.query,
        scheduled,
        servers=servers,
        mode=arguments.read_mode(args),
        add_dirs=arguments.read_add_dirs(args),
    )
    return startup.run_at_terminal(
        lambda: nullcontext(_add_store(invocation, is_stored=not args.no_session)),
        history=None if args.no_session else state / "history",
        typed=typed,
        no_color=args.no_color,
        ascii=args.ascii,
        updates_rows=not args.verbose,
    )


def _add_store(invocation: Invocation, *, is_stored: bool) -> Invocation:
    """Return the invocation with the store of its sessions. Raise ``UserError`` if the store cannot be opened.

    If ``is_stored`` is false or the state folder cannot be written, new sessions are stored in memory.
    """
    from chain.app.sessions import MemoryStore, open_new_store, open_store

    place, address = invocation.place, invocation.settings.state
    if place.resume:
        return replace(invocation, store=open_store(invocation.state, address))
    store, note = open_new_store(invocation.state, address, is_stored=is_stored)
    place = replace(place, notes=(*place.notes, *filter(None, [note])))
    is_kept = not isinstance(store, MemoryStore)
    traces = invocation.traces if is_kept else None
    return replace(invocation, place=place, traces=traces, store=store, is_kept=is_kept)


def _ask_for_trust(args: argparse.Namespace, settings: Settings, state: Path, *, ascii: bool) -> tuple[Settings, bytes]:
    """Ask whether to trust the configuration file of the current folder, and store the answer "yes".

    Return the settings to use, which ignore an untrusted file, and the bytes that were typed before the question.
    """
    from cli.terminal.plain_question import ask_for_trust, say_declined

    is_trusted, typed = ask_for_trust(settings, ascii=ascii)
    if is_trusted:
        _remember(lambda: remember_trust(settings, state), ascii=ascii)
        return replace(settings, untrusted_values=()), typed
    instead = arguments.read_settings(args, skip_here=True)
    say_declined(settings, instead, ascii=ascii)
    return instead, typed


def _ask_for_servers(
    args: argparse.Namespace, settings: Settings, place: Place, state: Path, typed: bytes, *, ascii: bool
) -> tuple[FoundServers, bytes]:
    """Ask about each server of the workspace that is neither approved nor denied yet, and store the answers.

    Return the servers, and ``typed`` followed by the bytes that were typed too early to answer one of the questions.
    """
    found = servers_of(settings, place.workspace, state, args.mcp)
    if not found.unasked:
        return found, typed
    from cli.terminal.plain_question import ask_for_server

    for server in found.unasked:
        is_allowed, more = ask_for_server(server, ascii=ascii)
        typed += more
        if is_allowed is not None:
            remember = partial(remember_answer, server, place.workspace, state, is_allowed=is_allowed)
            _remember(remember, ascii=ascii)
    return servers_of(settings, place.workspace, state, args.mcp), typed


def _ask_for_commands(settings: Settings, place: Place, state: Path, typed: bytes, *, ascii: bool) -> bytes:
    """Ask whether to trust the workspace's custom commands, and store the answer "yes".

    Return ``typed`` followed by the bytes that were typed too early to answer the question.
    """
    untrusted = find_commands(settings, place.workspace, state).untrusted_commands
    if not untrusted:
        return typed
    from cli.terminal.plain_question import ask_for_commands

    is_trusted, more = ask_for_commands(untrusted, ascii=ascii)
    if is_trusted:
        _remember(lambda: trust_commands(untrusted, state), ascii=ascii)
    return typed + more


def _remember(remember: Callable[[], object], *, ascii: bool) -> None:
    """Call ``remember``, which stores an answer. If that fails, show the error and continue."""
    from cli.terminal.plain_question import say

    try:
        remember()
    except UserError as error:
        say(str(error), ascii=ascii)
