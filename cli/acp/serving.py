"""The process of ``chain acp``: an editor on standard input and output, people on standard error."""

from __future__ import annotations

from functools import partial

import trio

from chain.text.plain import sanitize
from chain.threads import Threads
from cli.acp.host import GRACE_S
from cli.acp.methods import EditorAgent
from cli.acp.opening import Opener
from cli.acp.outbox import ROOM, Outbox
from cli.acp.wire import MAX_ROW, Wire
from cli.ending import code_of, exit_at_once
from cli.input.stdin import Lines
from cli.signals import LEAVING, received_signals
from cli.writing import write_all

_THREADS = Threads("output")


class EditorProcess:
    """Serves one editor."""

    def __init__(self, opener: Opener, *, stdin: int, stdout: int) -> None:
        self._rows = Outbox(partial(_write, stdout))
        self._notes = Outbox(partial(_write, 2))
        self._agent = EditorAgent(Wire(Lines(stdin, MAX_ROW), self._rows), opener, self._notify)
        self._signal: int | None = None
        self._failure = ""

    async def run(self) -> int:
        """Serve it until the end of its input, or a signal; the exit code."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write_rows)
            nursery.start_soon(self._write_notes)
            await nursery.start(self._watch_signals)
            await self._agent.run()
            with trio.move_on_after(GRACE_S):
                await self._rows.wait_empty()
                await self._notes.wait_empty()
            nursery.cancel_scope.cancel()
        if self._signal is not None:
            return code_of(self._signal)
        return 1 if self._failure else 0

    def _notify(self, note: str) -> None:
        """Tell people something. What nobody reads is left out: it must not grow, and holds nobody up."""
        if len(self._notes) < ROOM:
            self._notes.put(f"chain: {sanitize(note)}\n".encode(errors="replace"))

    async def _write_rows(self) -> None:
        try:
            await self._rows.run()
        except OSError as error:
            # The editor has gone. A pipe that it has closed is its way to say so.
            if not isinstance(error, BrokenPipeError):
                self._failure = f"standard output cannot be written: {error.strerror}"
                self._notify(self._failure)
            self._rows.close()
            self._agent.leave()

    async def _write_notes(self) -> None:
        try:
            await self._notes.run()
        except OSError:
            self._notes.close()

    async def _watch_signals(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with received_signals(*LEAVING) as signals:
            task_status.started()
            async for number in signals:
                if self._signal is not None:
                    # Something does not end. What was acknowledged is on the disk, so nothing is lost.
                    exit_at_once(code_of(number))
                self._signal = number
                self._agent.leave()


async def _write(fd: int, rows: bytes) -> None:
    await _THREADS.run(partial(write_all, fd, rows), abandon_on_cancel=True)
