"""What the editor gives to prompt_toolkit: an output, a history, a completer, the terminal's size."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.data_structures import Size
from prompt_toolkit.document import Document
from prompt_toolkit.history import History
from prompt_toolkit.input.vt100_parser import Vt100Parser
from prompt_toolkit.key_binding import KeyPress
from prompt_toolkit.keys import Keys
from prompt_toolkit.output.vt100 import Vt100_Output

from chain.threads import quickly
from cli.screen import tty
from cli.writing import write_all

MAX_READ = 256 * 1024
"""Bytes that are read from the end of the history: some thousand lines, in a few milliseconds."""

MAX_ENTRY = 10_000
"""Characters of the longest entry that is stored; nobody searches the history for a pasted file."""


class HeldOutput(Vt100_Output):
    """An output that can be held, so that what is written in several steps is one write."""

    _held = 0
    _is_to_show_cursor = False

    def hold(self) -> None:
        """Collect what is written, until ``release`` was called as often as this."""
        self._held += 1

    def release(self) -> None:
        """Write what was collected, unless somebody else holds it too."""
        self._held -= 1
        if not self._held and self._is_to_show_cursor:
            self._is_to_show_cursor = False
            super().show_cursor()
        self.flush()

    def hide_cursor(self) -> None:
        """Hide the cursor: what a terminal has read of a drawing meanwhile is not all of it."""
        self._is_to_show_cursor = False
        super().hide_cursor()

    def show_cursor(self) -> None:
        """Show the cursor, at the end of what is held: prompt_toolkit would also do so between erasing and drawing."""
        if self._held:
            self._is_to_show_cursor = True
        else:
            super().show_cursor()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold what is written inside the block."""
        self.hold()
        try:
            yield
        finally:
            self.release()

    def flush(self) -> None:
        """Write what was collected, but not by ``sys.stdout``: while nobody reads, that would hold a lock."""
        if self._held or not self._buffer:
            return
        data, self._buffer = "".join(self._buffer), []
        # The loss of the terminal is noticed elsewhere: by SIGHUP, or by the end of the input.
        with suppress(OSError):
            write_all(1, data.encode(self.stdout.encoding or "utf-8", errors="replace"))

    def erase_down(self) -> None:
        """Erase this row and those below it, in two steps: tmux would keep what one step erases at its top."""
        self.write_raw("\x1b[K\x1b7\x1b[B\x1b[J\x1b8")

    def get_rows_below_cursor_position(self) -> int:
        """One, enough for a toolbar. The terminal is not asked: its answer would come late, among the keys."""
        return 1


_MODIFIED = re.compile(r"\x1b\[(?:27;(?P<how>\d+);(?P<code>\d+)~|(?P<kitty>\d+);(?P<mods>\d+)u)")


def read_modified_keys(parser: Vt100Parser) -> None:
    """Let a parser ignore keys with modifiers that nobody knows: it would take them for Esc, which stops a run.

    Shift with a key that is a sign is that sign.
    """
    find, feed = parser._get_match, parser.feed_key_callback

    def get_match(prefix: str) -> Keys | tuple[Keys, ...] | None:
        return find(prefix) or (Keys.Ignore if _MODIFIED.fullmatch(prefix) else None)

    def feed_key(press: KeyPress) -> None:
        found = _MODIFIED.fullmatch(press.data) if press.key == Keys.Ignore else None
        if found is not None and (found["how"] or found["mods"]) == "2":
            code = int(found["code"] or found["kitty"])
            sign = chr(code) if code < 0x110000 else ""
            press = KeyPress(sign, sign) if sign.isprintable() and sign else press
        feed(press)

    parser._get_match = get_match  # type: ignore[method-assign]
    parser.feed_key_callback = feed_key


class WholeTextCompleter(Completer):
    """Completions of the whole text before the cursor, as ``find`` gives them."""

    def __init__(self, find: Callable[[str], Sequence[str]]) -> None:
        self._find = find

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """What could stand for the text."""
        text = document.text_before_cursor
        return [Completion(whole, -len(text)) for whole in self._find(text)]


class FileHistory(History):
    """The history in a file that only its user may read. A file that cannot be used is ignored.

    The format is that of prompt_toolkit's own history. Its reader and writer are not used: the reader reads the whole
    file at the start, however long it is, and the writer raises when the disk is full.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def load_history_strings(self) -> Iterable[str]:
        """The latest entries, the newest first."""
        try:
            with self._path.open("rb") as file:
                file.seek(max(0, self._path.stat().st_size - MAX_READ))
                # What comes before the first mark may be half an entry.
                entries = file.read().decode(errors="replace").split("\n# ")[1:]
        except OSError:
            return []
        rows = [[row[1:] for row in entry.split("\n") if row.startswith("+")] for entry in entries]
        return ["\n".join(found) for found in reversed(rows) if found]

    def store_string(self, string: str) -> None:
        """Append an entry, unless it is too long or the file cannot be written."""
        if len(string) <= MAX_ENTRY:
            quickly(lambda: self._append(string))

    def _append(self, entry: str) -> None:
        rows = "".join(f"+{row}\n" for row in entry.split("\n"))
        with suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(self._path, "ab", buffering=0, opener=partial(os.open, mode=0o600)) as file:
                file.write(f"\n# {time.strftime('%Y-%m-%d %H:%M:%S')}\n{rows}".encode(errors="replace"))


def screen_size() -> Size:
    """The terminal's size."""
    columns, rows = tty.size()
    return Size(rows=rows, columns=columns)
