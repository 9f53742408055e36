"""A terminal without an editor, for ``TERM=dumb``: rows are written as they are, and a prompt where input is awaited.

Nothing on it can be drawn again, so the prompt stands only while nothing else is to come or a line is being typed; rows
that come then begin below it. For that the keys are read one by one and echoed here. A terminal that does not echo,
such as a shell's buffer in an editor, sends whole lines.
"""

from __future__ import annotations

import codecs
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

import trio

from chain.signal import Signal
from chain.threads import Threads
from cli.input.splitter import TEXT_BYTES
from cli.input.stdin import Lines
from cli.screen import tty
from cli.screen.protocol import Listener
from cli.screen.typed import ENTER, TypedLine
from cli.show.text import columns
from cli.writing import write_all

_THREADS = Threads("rows")

CLOSING_S = 1.0
"""How long the last rows may take: perhaps nobody reads the terminal."""

REPLY_S = 0.5
"""How long keys wait for a question to be written: perhaps nobody reads the terminal, and Ctrl-C has to work."""

PROMPT = "> "

_CHUNK = 65_536


@asynccontextmanager
async def open_plain(typed: bytes = b"", *, by_key: bool = False) -> AsyncIterator[Plain]:
    """A terminal without colours and history, whose lines wait for ``listen``; ``by_key``: it is in raw mode."""
    plain = Plain(typed, by_key=by_key)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(plain.read)
        nursery.start_soon(plain.write)
        yield plain
        nursery.cancel_scope.cancel()


class Plain:
    """A ``Screen`` of rows. There is no Esc key, and the end of the input exits."""

    has_keys = False

    def __init__(self, typed: bytes = b"", *, by_key: bool = False) -> None:
        self._by_key = by_key
        self._typed = typed
        self._line = TypedLine()
        self._begun_at = ""
        """The question at which the typed line was begun."""
        self._listener: Listener | None = None
        self._listening = trio.Event()
        self._unwritten: list[str] = []
        self._row = ""
        """The unfinished row: a prompt, with what is typed."""
        self._news = Signal()
        self._shown = Signal()
        self._is_writing = False
        self._is_closed = False
        self._question = self._next_question = self._answered = ""

    async def read(self) -> None:
        """Give lines to the listener until the input ends."""
        await self._listening.wait()
        assert self._listener is not None
        if self._by_key:
            await self._read_keys()
        else:
            lines = Lines(0, TEXT_BYTES, begun=self._typed.replace(b"\r", b"\n"))
            while (raw := await lines.next()) is not None:
                self._row = ""
                await self._listener.ready()  # a line that is not accepted now is nowhere
                self._listener.accept(raw.text, urgency="next", at=self._question)
                self._news.set()
        self._listener.leave()

    async def _read_keys(self) -> None:
        assert self._listener is not None
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        data = self._typed
        while True:
            for char in decoder.decode(data):
                if char in ENTER:
                    await self._listener.ready()  # a line that is not accepted now is nowhere
                self._press(char)
            self._news.set()
            try:
                data = await _THREADS.run(partial(os.read, 0, _CHUNK), abandon_on_cancel=True)
            except OSError:
                return  # the terminal is gone
            if not data:
                return
            if self._next_question != self._question:
                # Its reader may reply to a question before the end of the write that has shown it is known here.
                with trio.move_on_after(REPLY_S):
                    await self.shown()

    def _press(self, char: str) -> None:
        assert self._listener is not None
        was_empty = not self._line.text
        match self._line.press(char):
            case "enter":
                self._show_line()
                self._end_row()
                at = self._question if was_empty else self._begun_at
                if self._listener.accept(self._line.take(), urgency="next", at=at) == "answered":
                    self._answered = at
            case "end":
                self._listener.leave()
            case "interrupt":
                if self._listener.ctrl_c(has_text=not was_empty):
                    self._line.take()
            case "suspend":
                self._suspend()
            case "changed" if was_empty:
                self._begun_at = self._question
            case _:
                pass

    async def write(self) -> None:
        """Write rows as they come, in a thread, since a write may block."""
        while True:
            await self._news.wait()
            # A question counts from when its rows, which came before it, are written.
            question = self._next_question
            self._show_line()
            self._is_writing = True
            with suppress(OSError):
                await _THREADS.run(partial(write_all, 1, self._drain()), abandon_on_cancel=True)
            self._is_writing = False
            self._question = question
            if self._next_question != question:
                self._news.set()
            self._shown.set()

    def _drain(self) -> bytes:
        text, self._unwritten = "".join(self._unwritten), []
        return text.encode(sys.stdout.encoding or "utf-8", errors="replace")

    def _show_line(self) -> None:
        typed = self._line.text.replace("\t", " ")
        open_question = "" if self._next_question == self._answered else self._next_question
        question = self._begun_at if typed else open_question
        is_awaited = self._listener is not None and (bool(question) or self._listener.awaits_input)
        if self._is_closed or not (typed or is_awaited):
            return
        row, before = (f"{question}? " if question else PROMPT) + typed, self._row
        same = next((n for n, (new, old) in enumerate(zip(row, before, strict=False)) if new != old), None)
        same = min(len(row), len(before)) if same is None else same
        if before[same:] and (same == 0 or columns(before) >= self.width):
            # Another prompt, or a line that has wrapped, out of which no backspace leads.
            self._end_row()
            same, before = 0, ""
        erased = "\b \b" * columns(before[same:])
        self._unwritten.append(erased + row[same:])
        self._row = row

    def _end_row(self) -> None:
        """End the unfinished row, so that others begin below it."""
        if self._row:
            self._unwritten.append("\n")
            self._row = ""

    def _suspend(self) -> None:
        self._end_row()
        tty.write_briefly(self._drain())
        with tty.restored():
            # Sent to this thread, which therefore stops at this line until the program continues.
            signal.pthread_kill(threading.get_ident(), signal.SIGTSTP)

    @property
    def width(self) -> int:
        """Columns of the terminal."""
        return tty.size()[0]

    def listen(self, listener: Listener) -> None:
        """Set the listener for what is typed."""
        self._listener = listener
        if self._by_key:
            tty.take_signal_keys()
        self._listening.set()
        self._news.set()

    def show(self, rows: Sequence[str], tail: str = "") -> None:
        """Write the whole rows; the unfinished one is not shown."""
        if rows:
            self._end_row()
            self._unwritten += [f"{row}\n" for row in rows]
        if self._is_closed:
            tty.write_briefly(self._drain())
        elif rows:
            self._news.set()

    def ask(self, question: str | None) -> None:
        """The next line that is begun answers this question; where whole lines come, the next line."""
        self._next_question = question or ""
        self._news.set()

    async def shown(self) -> None:
        """Wait until the rows are written."""
        while self._unwritten or self._is_writing:
            await self._shown.wait()

    def refresh(self) -> None:
        """Show the prompt if input is awaited now: there is no toolbar."""
        self._news.set()

    def resized(self) -> None:
        """Do nothing: nothing depends on the size."""

    def give_back(self, text: str) -> None:
        """Do nothing: there is no editor, and the rows show what came back."""

    def edit(self, text: str) -> None:
        """Show the text, to be typed again: there is no editor."""
        self.show([text])

    async def close(self) -> str:
        """Write what is left, for ``CLOSING_S`` at most. Returns what was being typed, as far as it is known."""
        self._end_row()
        self._news.set()
        with trio.move_on_after(CLOSING_S):
            await self.shown()
        self._is_closed = True
        return self._line.text
