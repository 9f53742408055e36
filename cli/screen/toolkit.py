"""Parts for prompt_toolkit: an output, a key parser, a history, a completer and the terminal's size."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.data_structures import Size
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory
from prompt_toolkit.input.ansi_escape_sequences import ANSI_SEQUENCES
from prompt_toolkit.input.vt100_parser import Vt100Parser
from prompt_toolkit.key_binding import KeyPress, KeyPressEvent
from prompt_toolkit.key_binding.bindings.named_commands import register
from prompt_toolkit.keys import Keys
from prompt_toolkit.output.vt100 import Vt100_Output

from cli.screen import tty
from cli.screen.protocol import Choice
from cli.screen.sequences import ESC, KEY, LATE
from cli.show.text_rows import cluster_beside
from cli.writing import write_all

MAX_ENTRIES = 2_000
"""Maximum entries of the history: prompt_toolkit iterates over all of them after each line."""

MAX_ENTRY = 10_000
"""Maximum characters of a stored entry. Pasted files are not useful in the history."""


class HeldOutput(Vt100_Output):
    """A terminal output that can be held: it collects the output of several steps and writes it at once."""

    _held = 0
    _is_to_show_cursor = False

    def hold(self) -> None:
        """Collect output instead of writing it, until there was one call of ``release`` for each call of ``hold``."""
        self._held += 1

    def release(self) -> None:
        """End one ``hold``. Write the collected output if no other ``hold`` is open."""
        self._held -= 1
        if not self._held and self._is_to_show_cursor:
            self._is_to_show_cursor = False
            super().show_cursor()
        self.flush()

    def hide_cursor(self) -> None:
        """Hide the cursor while a drawing is incomplete."""
        self._is_to_show_cursor = False
        super().hide_cursor()

    def show_cursor(self) -> None:
        """Show the cursor; while the output is held, show it at the end of the held output.

        prompt_toolkit calls this also between erasing and drawing.
        """
        if self._held:
            self._is_to_show_cursor = True
        else:
            super().show_cursor()

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Hold the output inside the block."""
        self.hold()
        try:
            yield
        finally:
            self.release()

    def flush(self) -> None:
        """Write the collected output, unless it is held. Avoid ``sys.stdout``: a blocked write would hold its lock."""
        if self._held or not self._buffer:
            return
        data, self._buffer = "".join(self._buffer), []
        # The loss of the terminal is noticed elsewhere: by SIGHUP, or by the end of the input.
        with suppress(OSError):
            write_all(1, data.encode(self.stdout.encoding or "utf-8", errors="replace"))

    def erase_down(self) -> None:
        """Erase the current row and all rows below it.

        Two steps are needed: if a single step erases the whole screen, tmux adds the rows to its scrollback.
        """
        self.write_raw("\x1b[K\x1b7\x1b[B\x1b[J\x1b8")

    def get_rows_below_cursor_position(self) -> int:
        """Return 1, which is enough for a toolbar. To ask the terminal would insert a late reply among the keys."""
        return 1


LONGEST_GAP_S = 1.0
"""Maximum seconds between two reads that contain parts of one escape sequence."""

_PASTE = "\x1b[200~"

_SAME_KEYS: dict[str, Keys] = {
    "\x1b\r": Keys.ControlJ,
    **dict.fromkeys((f"\x1b[{key}" for n in "234" for key in (f"13;{n}u", f"27;{n};13~")), Keys.ControlJ),
    **dict.fromkeys(("\x1b[9;2u", "\x1b[27;2;9~"), Keys.BackTab),
    **dict.fromkeys(("\x1b[13;5u", "\x1b[27;5;13~"), Keys.ControlM),
    **dict.fromkeys(("\x1bb", "\x1b[1;3D"), Keys.ControlLeft),
    **dict.fromkeys(("\x1bf", "\x1b[1;3C"), Keys.ControlRight),
    "\x1bd": Keys.ControlDelete,
    "\x1b\x7f": Keys.ControlW,
}
"""Sequences of keys with Alt or Shift, each with the key that it counts as. Shift-Enter counts as Alt-Enter."""

_SHIFTED = re.compile(r"\x1b\[(?:27;2;(?P<code>\d{1,7})~|(?P<kitty>\d{1,7});2u)")


class KeyParser(Vt100Parser):
    """A parser of terminal input into keys. Sequences whose key is not in ``bound`` are dropped.

    prompt_toolkit's own parser reads an unknown sequence, such as a reply of the terminal, as Esc and text.
    """

    def __init__(self, press: Callable[[KeyPress], None], bound: Container[str]) -> None:
        super().__init__(press)
        self._bound = bound
        self._begun, self._was_pressed = "", False
        """The start of a sequence whose rest may arrive late, and whether its Esc was already reported as a key."""
        self._fed_at = 0.0

    def feed(self, data: str) -> None:
        """Parse the next input. In a paste, prompt_toolkit's parser reads it, and passes the rest to this method."""
        if self._in_bracketed_paste:
            return super().feed(data)
        before, self._fed_at = self._fed_at, time.monotonic()
        if self._fed_at - before > LONGEST_GAP_S:
            self._begun = ""  # it was Alt with a key, not the start of a sequence
        data = data if self._was_pressed and not LATE.fullmatch(data) else self._begun + data
        self._was_pressed, at = False, 0
        while found := KEY.match(data, at):
            at = found.end()
            if found[0] == _PASTE:
                self._begun = ""
                self._call_handler(Keys.BracketedPaste, _PASTE)
                return super().feed(data[at:])
            self._press(found[0])
        self._begun = data[at:]
        return None

    def flush(self) -> None:
        """Report a pending Esc as a key. prompt_toolkit calls this when no input has followed for a moment."""
        if not self._was_pressed and not self._begun.strip(ESC):
            for _ in self._begun:
                self._press(ESC)
            self._was_pressed = bool(self._begun)

    def _press(self, data: str) -> None:
        key: object = _SAME_KEYS.get(data) or ANSI_SEQUENCES.get(data, data)
        if key == data and (found := _SHIFTED.fullmatch(data)):
            code = int(found["code"] or found["kitty"])
            key = data = chr(code) if code < 0x110000 and chr(code).isprintable() else data
        if isinstance(key, str) and (len(data) == 1 or key in self._bound):
            self.feed_key_callback(KeyPress(key, data))


def edit_by_clusters() -> None:
    """Make prompt_toolkit's commands for single characters move and delete by grapheme clusters."""

    def edit(event: KeyPressEvent, by: int, *, deletes: bool) -> None:
        buffer = event.current_buffer
        at = buffer.cursor_position
        there = cluster_beside(buffer.text, at, by)
        if deletes:
            (buffer.delete if by > 0 else buffer.delete_before_cursor)(abs(there - at))
            if buffer.complete_while_typing():  # prompt_toolkit opens the menu only after an insertion
                buffer.start_completion(complete_event=CompleteEvent(text_inserted=True))
        elif at != there and buffer.text[min(at, there)] != "\n":
            buffer.cursor_position = there

    for name, by in (("backward-char", -1), ("forward-char", 1)):
        register(name)(partial(edit, by=by, deletes=False))
    for name, by in (("backward-delete-char", -1), ("delete-char", 1)):
        register(name)(partial(edit, by=by, deletes=True))


class WholeTextCompleter(Completer):
    """A completer of the whole text before the cursor.

    The completer calls ``menu`` while the user types. At Tab, if ``menu`` returns nothing, it calls ``complete``.
    """

    def __init__(self, menu: Callable[[str], Sequence[Choice]], complete: Callable[[str], Sequence[str]]) -> None:
        self._menu = menu
        self._complete = complete

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Return the completions of the text before the cursor."""
        text = document.text_before_cursor
        choices = self._menu(text)
        if not choices and not complete_event.text_inserted:
            choices = [Choice(whole, whole) for whole in self._complete(text)]
        return [Completion(whole, -len(text), label, about) for whole, label, about in choices]


class SafeHistory(FileHistory):
    """The history of typed lines, in a file that only its user may read. A file that cannot be used is ignored."""

    def load_history_strings(self) -> Iterable[str]:
        """Return the latest entries, the newest first."""
        try:
            return islice(super().load_history_strings(), MAX_ENTRIES)
        except OSError:
            return ()

    def store_string(self, string: str) -> None:
        """Append an entry, unless it is too long or the file cannot be written."""
        path = Path(os.fsdecode(self.filename))
        if len(string) <= MAX_ENTRY:
            with suppress(OSError):
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                path.touch(mode=0o600)
                super().store_string(string)


def screen_size() -> Size:
    """Return the terminal's size."""
    columns, rows = tty.size()
    return Size(rows=rows, columns=columns)
