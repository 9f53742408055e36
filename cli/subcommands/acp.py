"""``chain acp``: the Agent Client Protocol on standard input and output; standard error is for people."""

from __future__ import annotations

import argparse
import os
from functools import partial

import trio

from chain.app.sessions import MemoryStore, open_new_store
from chain.concurrency.nurseries import background_task
from chain.concurrency.threads import Threads
from chain.config.load import state_folder
from chain.errors import UserError
from chain.text.plain import sanitize
from cli.acp.methods import UPDATES_GRACE_S, EditorAgent
from cli.acp.opener import SessionOpener
from cli.acp.wire import MAX_RPC_ROW, Wire
from cli.arguments import read_mode, read_settings, read_state, read_traces
from cli.command_output import write
from cli.ending import exit_code_of, leaving_at_signal
from cli.input.stdin import Lines
from cli.outbox import ROOM, Outbox
from cli.writing import write_all

AT_TERMINAL = "chain acp speaks JSON with an editor; see chain help editors. Press Ctrl-D to end it.\n"

_EDITOR_DECIDES = ("workspace", "continue", "resume", "say", "script", "no_stdin", "stdin")
"""The options that ``chain acp`` refuses, because the editor decides what they would set."""

_THREADS = Threads("output")


def run(args: argparse.Namespace) -> int:
    """Serve an editor until it closes the input or a signal arrives. Return the exit code."""
    check_options(args)
    if os.isatty(0):
        write(2, AT_TERMINAL)
    state, address = state_folder(os.environ), read_state(args)
    store, note = open_new_store(state, address, is_stored=not args.no_session)
    if note:
        write(2, f"chain: {note}\n")
    is_kept = not isinstance(store, MemoryStore)
    traces = read_traces(state, by_default=False) if is_kept else None
    mode = read_mode(args)
    opener = SessionOpener(partial(read_settings, args), state, args.tools, traces, os.environ, address, mode, is_kept)
    if address:
        store.check()
    # Keep the streams for the protocol's messages: a tool that prints or reads must not use them.
    stdin, stdout = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return trio.run(_EditorProcess(opener, stdin, stdout).run)


def check_options(args: argparse.Namespace) -> None:
    """Raise ``UserError`` for an option that cannot be used with ``chain acp``."""
    for name in _EDITOR_DECIDES:
        if vars(args)[name] not in (None, False, []):
            raise UserError(f"--{name.replace('_', '-')} cannot be used with chain acp: the editor decides that")


class _EditorProcess:
    def __init__(self, opener: SessionOpener, stdin: int, stdout: int) -> None:
        self._rows = Outbox(partial(_write, stdout))
        self._notes = Outbox(partial(_write, 2))
        self._agent = EditorAgent(Wire(Lines(stdin, MAX_RPC_ROW).next, self._rows), opener, self._notify)
        self._signal: int | None = None
        self._has_failed = False

    async def run(self) -> int:
        """Serve the editor until the end of its input, or a signal. Return the exit code."""
        async with (
            leaving_at_signal(self._leave),
            background_task(self._write_rows),
            background_task(self._write_notes),
        ):
            await self._agent.run()
            with trio.move_on_after(UPDATES_GRACE_S):
                await self._rows.wait_empty()
                await self._notes.wait_empty()
        return int(self._has_failed) if self._signal is None else exit_code_of(self._signal)

    def _notify(self, note: str) -> None:
        """Queue a note for standard error without blocking. Drop the note if too many are queued."""
        if len(self._notes) < ROOM:
            self._notes.put(f"chain: {sanitize(note)}\n".encode(errors="replace"))

    async def _write_rows(self) -> None:
        try:
            await self._rows.run()
        except OSError as error:
            # The editor has gone. A closed pipe is not a failure: editors end a session in this way.
            if not isinstance(error, BrokenPipeError):
                self._has_failed = True
                self._notify(f"standard output cannot be written: {error.strerror}")
            self._rows.close()
            self._agent.leave()

    async def _write_notes(self) -> None:
        try:
            await self._notes.run()
        except OSError:
            self._notes.close()

    def _leave(self, number: int) -> None:
        self._signal = number
        self._agent.leave()


async def _write(fd: int, rows: bytes) -> None:
    await _THREADS.run(partial(write_all, fd, rows), abandon_on_cancel=True)
