"""A terminal without an editor, for ``TERM=dumb``: lines come as the terminal edits them, rows go out as they are."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import trio

from cli.keyboard import Listener
from cli.stdin import Lines

WIDTH = 80


@asynccontextmanager
async def open_plain() -> AsyncIterator[Plain]:
    """A terminal whose lines wait until ``listen`` has been called. It has no colours and no history."""
    plain = Plain()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(plain.run)
        yield plain
        nursery.cancel_scope.cancel()


class Plain:
    """A ``Screen`` of rows. Esc is no key here; Ctrl-C comes as a signal, and the end of the input leaves."""

    def __init__(self) -> None:
        self._lines = Lines(0)
        self._listener: Listener | None = None
        self._listening = trio.Event()
        self._said = ""

    async def run(self) -> None:
        """Read lines until the input ends."""
        await self._listening.wait()
        assert self._listener is not None
        while (raw := await self._lines.next()) is not None:
            if not self._listener.accept(raw.text, urgent=False):
                self.give_back(raw.text)
        self._listener.leave()

    @property
    def width(self) -> int:
        """Columns of the terminal."""
        try:
            return os.get_terminal_size(1).columns or WIDTH
        except OSError:
            return WIDTH

    def listen(self, listener: Listener) -> None:
        """Say who reads what is typed."""
        self._listener = listener
        self._listening.set()

    def show(self, rows: Sequence[str], tail: str = "") -> None:
        """Write the rows; the unfinished one waits until it is whole."""
        if rows:
            with suppress(OSError):
                sys.stdout.write("".join(f"{row}\n" for row in rows))
                sys.stdout.flush()

    async def shown(self) -> None:
        """Nothing waits here."""
        await trio.lowlevel.checkpoint()

    def refresh(self) -> None:
        """There is no toolbar."""

    def resized(self) -> None:
        """Nothing depends on it."""

    def give_back(self, text: str) -> None:
        """There is no editor: say that the text is the user's again."""
        self.show([f"Not taken: {row}" for row in text.split("\n")])

    async def close(self) -> str:
        """Nothing is to be undone."""
        await trio.lowlevel.checkpoint()
        return ""
