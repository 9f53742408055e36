"""A terminal without an editor, for ``TERM=dumb``: rows are written as they are, and a prompt where input is awaited.

Nothing on it can be drawn again, so the prompt stands only while nothing else is to come or a line is being typed; rows
that come then begin below it. For that the keys are read one by one and echoed here. A terminal that does not echo,
such as a shell's buffer in an editor, sends whole lines.
"""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import takewhile
from typing import Literal, TypeAlias

import trio

from chain.concurrency.signal import Signal
from chain.concurrency.threads import Threads
from chain.text.plain import sanitize
from cli.input.stdin import Lines
from cli.screen import tty
from cli.screen.protocol import Listener, Screen, sign
from cli.screen.sequences import KEY
from cli.show.text_rows import cluster_beside, columns
from cli.writing import write_all

_THREADS = Threads("rows")

CLOSING_S = 1.0
"""How long the last rows may take: perhaps nobody reads the terminal."""

REPLY_S = 0.5
"""How long keys wait for a question to be written: perhaps nobody reads the terminal, and Ctrl-C has to work."""

_CHUNK = 65_536

Press: TypeAlias = Literal["changed", "enter", "end", "interrupt", "suspend"]
"""What a key means: the text is another one, perhaps; the line ends; the input ends; Ctrl-C; Ctrl-Z."""

ENTER = ("\r", "\n")
_PRESSES: dict[str, Press] = {**dict.fromkeys(ENTER, "enter"), "\x03": "interrupt", "\x1a": "suspend"}
_ERASE, _ERASE_WORD, _ERASE_ALL, _END = ("\x7f", "\x08"), "\x17", "\x15", "\x04"


@asynccontextmanager
async def open_plain(typed: bytes, *, by_key: bool) -> AsyncIterator[Screen]:
    """A terminal without colours and history, whose lines wait for ``listen``; ``by_key``: it is in raw mode."""
    async with trio.open_nursery() as nursery:
        plain = _Plain(nursery, typed, by_key=by_key)
        nursery.start_soon(plain.write)
        yield plain
        nursery.cancel_scope.cancel()


class _Plain:
    """A ``Screen`` of rows. There is no Esc key, and the end of the input exits."""

    has_keys = False

    def __init__(self, tasks: trio.Nursery, typed: bytes, *, by_key: bool) -> None:
        self._tasks = tasks
        self._by_key = by_key
        self._typed = typed
        self._line = TypedLine()
        self._begun_at = ""
        """The question at which the typed line was begun."""
        self._listener: Listener | None = None
        self._unwritten: list[str] = []
        self._row = ""
        """The unfinished row: a prompt, with what is typed."""
        self._news = Signal()
        self._shown = Signal()
        self._is_writing = False
        self._is_closed = False
        self._question = self._next_question = self._answered = ""

    async def _read(self, listener: Listener) -> None:
        if self._by_key:
            await self._read_keys(listener)
        else:
            lines = Lines(0, begun=self._typed.replace(b"\r", b"\n"))
            while (raw := await lines.next()) is not None:
                self._row = ""
                await listener.ready()  # a line that is not accepted now is nowhere
                listener.accept(raw.text, at=self._question)
                self._news.set()
        listener.leave()

    async def _read_keys(self, listener: Listener) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        data = self._typed
        while True:
            for char in decoder.decode(data):
                if char in ENTER:
                    await listener.ready()  # a line that is not accepted now is nowhere
                self._press(char, listener)
            self._news.set()
            try:
                data = await _THREADS.run(partial(os.read, 0, _CHUNK), abandon_on_cancel=True)
            except OSError:
                return  # the terminal is gone
            if not data:
                return
            if self._next_question != self._question:
                # A user may answer a question before the write that has shown it is known here to have ended.
                with trio.move_on_after(REPLY_S):
                    await self.shown()

    def _press(self, char: str, listener: Listener) -> None:
        was_empty = not self._line.text
        match self._line.press(char):
            case "enter":
                self._show_line()
                self._end_row()
                at = self._question if was_empty else self._begun_at
                if listener.accept(self._line.take(), at=at) == "answered":
                    self._answered = at
            case "end":
                listener.leave()
            case "interrupt":
                if listener.ctrl_c(has_text=not was_empty):
                    self._line.take()
            case "suspend":
                self._end_row()
                tty.write_briefly(self._drain())
                with tty.lent():
                    tty.stop_job()
            case "changed" if was_empty:
                self._begun_at = self._question
            case _:
                pass

    async def write(self) -> None:
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
        row, before = sign(question) + typed, self._row
        same = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(row, before, strict=False))))
        if before[same:] and (same == 0 or columns(before) >= self.width):
            # Another prompt, or a line that has wrapped, out of which no backspace leads.
            self._end_row()
            same, before = 0, ""
        erased = "\b \b" * columns(before[same:])
        self._unwritten.append(erased + row[same:])
        self._row = row

    def _end_row(self) -> None:
        if self._row:
            self._unwritten.append("\n")
            self._row = ""

    @property
    def width(self) -> int:
        return tty.size()[0]

    def listen(self, listener: Listener) -> None:
        self._listener = listener
        if self._by_key:
            tty.take_signal_keys()
        self._tasks.start_soon(self._read, listener)
        self._news.set()

    def show(self, rows: Sequence[str], tail: str = "") -> None:
        # The unfinished rows are not shown.
        if rows:
            self._end_row()
            self._unwritten += [f"{row}\n" for row in rows]
        if self._is_closed:
            tty.write_briefly(self._drain())
        elif rows:
            self._news.set()

    def ask(self, question: str | None, keys: str = "") -> None:
        """The next line that is begun answers this question; where whole lines come, the next line."""
        self._next_question = question or ""
        self._news.set()

    async def shown(self) -> None:
        while self._unwritten or self._is_writing:
            await self._shown.wait()

    def refresh(self) -> None:
        """Show the prompt if input is awaited now: there is no toolbar."""
        self._news.set()

    def alert(self, title: str, *, rings: bool) -> None:
        """Do nothing: such a terminal has no title, and may show what rings elsewhere as a sign."""

    def redraw(self) -> None:
        """Set the terminal as it is needed. Nothing depends on the size."""
        tty.take_back()

    def give_back(self, text: str) -> None:
        """Do nothing: there is no editor, and the rows show what came back."""

    def edit(self, text: str) -> None:
        """Show the text, to be typed again: there is no editor."""
        self.show([text])

    @property
    def typed(self) -> str:
        """What was being typed, as far as it is known."""
        return self._line.text

    async def close(self) -> None:
        """Write what is left, for ``CLOSING_S`` at most."""
        self._end_row()
        self._news.set()
        with trio.move_on_after(CLOSING_S):
            await self.shown()
        self._is_closed = True


class TypedLine:
    """The line that is typed. The keys are those of a terminal that edits lines itself; other controls do nothing."""

    def __init__(self) -> None:
        self.text = ""
        self._sequence = ""
        """What came of an escape sequence, such as that of an arrow key."""

    def press(self, char: str) -> Press:
        """Change the text by one character, and say what it means."""
        if self._swallows(char):
            return "changed"
        if char in _PRESSES:
            return _PRESSES[char]
        if char == _END and not self.text:
            return "end"
        if char in _ERASE:
            self.text = self.text[: cluster_beside(self.text, len(self.text), -1)]
        elif char == _ERASE_WORD:
            self.text = self.text.rstrip()
            self.text = self.text[: self.text.rfind(" ") + 1]
        elif char == _ERASE_ALL:
            self.text = ""
        elif sanitize(char):
            self.text += char
        return "changed"

    def take(self) -> str:
        """The text, which is empty from now on."""
        text, self.text = self.text, ""
        return text

    def _swallows(self, char: str) -> bool:
        """Whether a character belongs to an escape sequence. What follows a bare Esc is a key of its own."""
        text, self._sequence = self._sequence + char, ""
        found = KEY.match(text)
        if found is None:
            self._sequence = text
            return True
        return len(found[0]) == len(text) > 2
