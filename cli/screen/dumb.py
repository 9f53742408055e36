"""A terminal without an editor, for ``TERM=dumb``: rows as they come, and a prompt when input is awaited.

The terminal edits and echoes the typed line, and sends it at Enter. Rows that come meanwhile are written after the
typed characters. Ctrl-C and Ctrl-Z are signals.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

import trio

from chain.concurrency.threads import Threads
from chain.concurrency.wakeup import Wakeup
from chain.text.plain import sanitize
from cli.input.stdin import Lines
from cli.screen import tty
from cli.screen.protocol import Listener, Screen, prompt_sign
from cli.writing import write_all

_THREADS = Threads("rows")

LAST_ROWS_S = 1.0
"""Seconds to wait until the last rows are written: the terminal may not be read."""


@asynccontextmanager
async def open_plain(typed: bytes) -> AsyncIterator[Screen]:
    """Yield a terminal without colours and history. Typed lines and the early bytes ``typed`` wait for ``listen``."""
    async with trio.open_nursery() as nursery:
        plain = _Plain(nursery, typed)
        nursery.start_soon(plain.write)
        yield plain
        nursery.cancel_scope.cancel()


class _Plain:
    """A ``Screen`` that only writes rows. It has no Esc key. The end of the input exits the program."""

    has_keys = False
    text = ""
    """Always empty, since the program does not receive a line before Enter."""

    def __init__(self, tasks: trio.Nursery, typed: bytes) -> None:
        self._tasks = tasks
        self._typed = typed
        self._lines: Lines
        """Set by ``listen``."""
        self._listener: Listener | None = None
        self._unwritten: list[str] = []
        self._prompt = ""
        """The prompt in the last row; empty if the last row is no prompt."""
        self._wakeup = Wakeup()
        self._shown = Wakeup()
        self._is_writing = False
        self._is_closed = False
        self._question = self._next_question = self._answered = ""
        """The question whose rows are written, the latest question, and the latest answered one."""

    async def _read(self, listener: Listener) -> None:
        while (line := await self._lines.next()) is not None:
            self._prompt = ""
            await listener.wait_ready()  # a line that is not accepted now is lost
            if self._next_question != self._question:
                # The user may answer a question before the write that shows it returns here.
                await self.wait_shown()
            question_id = self._if_open(self._question)
            if listener.accept(sanitize(line.text), question_id=question_id) == "answered":
                self._answered = question_id
            self._wakeup.set()
        if os.isatty(0):
            listener.leave()
        else:
            listener.hang_up()

    async def write(self) -> None:
        """Write rows and prompts until cancelled."""
        while True:
            await self._wakeup.wait()
            # A question can be answered once its rows are written.
            question = self._next_question
            self._add_prompt()
            self._is_writing = True
            with suppress(OSError):
                await _THREADS.run(partial(write_all, 1, self._drain()), abandon_on_cancel=True)
            self._is_writing = False
            self._question = question
            self._shown.set()

    def _drain(self) -> bytes:
        text, self._unwritten = "".join(self._unwritten), []
        return text.encode(sys.stdout.encoding or "utf-8", errors="replace")

    def _add_prompt(self) -> None:
        """Add a prompt if the program waits for input, unless the last row is that prompt already."""
        question = self._if_open(self._next_question)
        is_awaited = self._listener is not None and (bool(question) or self._listener.awaits_input)
        prompt = prompt_sign(question)
        if is_awaited and not self._is_closed and prompt != self._prompt:
            self._end_row()
            self._unwritten.append(prompt)
            self._prompt = prompt

    def _if_open(self, question: str) -> str:
        return "" if question == self._answered else question

    def _end_row(self) -> None:
        if self._prompt:
            self._unwritten.append("\n")
            self._prompt = ""

    @property
    def width(self) -> int:
        return tty.size()[0]

    def listen(self, listener: Listener) -> None:
        self._listener = listener
        typed = (self._typed + b"".join(iter(tty.read_typed_ahead, b""))).replace(b"\r", b"\n")
        # A blank line would send lines of a resumed session before the user has seen them.
        begun = b"".join(line for line in typed.splitlines(keepends=True) if line.strip())
        self._lines = Lines(0, read_before=begun)
        self._tasks.start_soon(self._read, listener)
        self._wakeup.set()

    def show(self, rows: Sequence[str], tail: str = "") -> None:
        """Show finished rows. Ignore ``tail``, the unfinished rows."""
        if rows:
            self._end_row()
            self._unwritten += [f"{row}\n" for row in rows]
        if self._is_closed:
            tty.write_briefly(self._drain())
        elif rows:
            self._wakeup.set()

    def ask(self, question: str | None, keys: str = "") -> None:
        """Let the next line answer ``question`` once the rows that show it are written; ``None`` for no question."""
        self._next_question = question or ""
        self._wakeup.set()

    async def wait_shown(self) -> None:
        while self._unwritten or self._is_writing:
            await self._shown.wait()

    def refresh(self) -> None:
        """Show the prompt if the program waits for input. There is no toolbar to redraw."""
        self._wakeup.set()

    def alert(self, title: str, *, rings: bool) -> None:
        """Do nothing: such a terminal has no title, and may show the bell character as text."""

    def name_window(self, title: str) -> None:
        """Do nothing: such a terminal has no title."""

    has_clipboard = False

    def copy(self, text: str) -> None:
        """Do nothing: only an escape sequence sets the clipboard, and this terminal gets none."""

    def redraw(self) -> None:
        """Do nothing: no row depends on the size."""

    def give_back(self, text: str) -> None:
        """Do nothing: there is no editor, and the rows already show the returned line."""

    def insert(self, text: str) -> None:
        self.edit(text)

    def edit(self, text: str) -> None:
        """Show the text for the user to retype, since there is no editor."""
        self.show([text])

    def discard_text(self) -> None:
        """Do nothing: the terminal itself discards the line."""

    async def close(self) -> None:
        """Write the remaining rows, for at most ``LAST_ROWS_S``."""
        self._end_row()
        self._wakeup.set()
        with trio.move_on_after(LAST_ROWS_S):
            await self.wait_shown()
        self._is_closed = True
