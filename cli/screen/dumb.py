"""A terminal without an editor, for ``TERM=dumb``: the terminal edits the lines, and rows are written as they are."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

import trio

from chain.threads import Threads
from cli.input.stdin import Lines
from cli.screen import tty
from cli.screen.protocol import Listener
from cli.writing import write_all

_THREADS = Threads("rows")

CLOSING_S = 1.0
"""How long the last rows may take: perhaps nobody reads the terminal."""


@asynccontextmanager
async def open_plain() -> AsyncIterator[Plain]:
    """A terminal whose lines wait until ``listen`` has been called. It has no colours and no history."""
    plain = Plain()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(plain.read)
        nursery.start_soon(plain.write)
        yield plain
        nursery.cancel_scope.cancel()


class Plain:
    """A ``Screen`` of rows. There is no Esc key; Ctrl-C arrives as a signal, and the end of the input exits."""

    def __init__(self) -> None:
        self._lines = Lines(0)
        self._listener: Listener | None = None
        self._listening = trio.Event()
        self._rows: list[str] = []
        self._news = trio.Event()
        self._shown = trio.Event()
        self._is_closed = False
        self._question = self._next_question = ""

    async def read(self) -> None:
        """Give lines to the listener until the input ends."""
        await self._listening.wait()
        assert self._listener is not None
        while (raw := await self._lines.next()) is not None:
            self._listener.accept(raw.text, urgency="next", at=self._question)
        self._listener.leave()

    async def write(self) -> None:
        """Write rows as they come, in a thread, since a write may block."""
        while True:
            await self._news.wait()
            self._news = trio.Event()
            # A question counts from when its rows, which came before it, are written.
            question = self._next_question
            with suppress(OSError):
                await _THREADS.run(partial(write_all, 1, self._drain()), abandon_on_cancel=True)
            self._question = question
            if self._next_question != question:
                self._news.set()
            self._shown.set()

    def _drain(self) -> bytes:
        rows, self._rows = self._rows, []
        return "".join(f"{row}\n" for row in rows).encode(sys.stdout.encoding or "utf-8", errors="replace")

    @property
    def width(self) -> int:
        """Columns of the terminal."""
        return tty.size()[0]

    def listen(self, listener: Listener) -> None:
        """Set the listener for what is typed."""
        self._listener = listener
        self._listening.set()

    def show(self, rows: Sequence[str], tail: str = "") -> None:
        """Write the whole rows; the unfinished one is not shown."""
        self._rows += rows
        if self._is_closed:
            tty.write_briefly(self._drain())
        elif rows:
            self._news.set()

    def ask(self, question: str | None) -> None:
        """The next line answers this question: when it was begun is not known here."""
        self._next_question = question or ""
        self._news.set()

    async def shown(self) -> None:
        """Wait until the rows are written."""
        while self._rows:
            self._shown = trio.Event()
            await self._shown.wait()

    def refresh(self) -> None:
        """Do nothing: there is no toolbar."""

    def resized(self) -> None:
        """Do nothing: nothing depends on the size."""

    def give_back(self, text: str) -> None:
        """Do nothing: there is no editor, and the rows show what came back."""

    def edit(self, text: str) -> None:
        """Show the text, to be typed again: there is no editor."""
        self.show([text])

    async def close(self) -> str:
        """Write what is left, for ``CLOSING_S`` at most. Returns no text: what is being typed is not known here."""
        with trio.move_on_after(CLOSING_S):
            await self.shown()
        self._is_closed = True
        return ""
