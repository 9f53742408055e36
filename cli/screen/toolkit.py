"""What the editor gives to prompt_toolkit: an output, a history, a completer, the terminal's size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.data_structures import Size
from prompt_toolkit.document import Document
from prompt_toolkit.history import History
from prompt_toolkit.output.vt100 import Vt100_Output

from chain.threads import quickly
from cli.screen import line_history, tty
from cli.writing import write_all


class HeldOutput(Vt100_Output):
    """An output that can be held, so that what is written in several steps is one write."""

    _held = 0

    def hold(self) -> None:
        """Collect what is written, until ``release`` was called as often as this."""
        self._held += 1

    def release(self) -> None:
        """Write what was collected, unless somebody else holds it too."""
        self._held -= 1
        self.flush()

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


class WholeTextCompleter(Completer):
    """Completions of the whole text before the cursor, as ``find`` gives them."""

    def __init__(self, find: Callable[[str], Sequence[str]]) -> None:
        self._find = find

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """What could stand for the text."""
        text = document.text_before_cursor
        return [Completion(whole, -len(text)) for whole in self._find(text)]


class FileHistory(History):
    """The history in a file, as the editor asks for it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def load_history_strings(self) -> Iterable[str]:
        """The entries, the newest first."""
        return line_history.read_entries(self._path)

    def store_string(self, string: str) -> None:
        """Append an entry."""
        quickly(lambda: line_history.append(self._path, string))


def screen_size() -> Size:
    """The terminal's size."""
    columns, rows = tty.size()
    return Size(rows=rows, columns=columns)
