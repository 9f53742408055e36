"""The rows above the prompt, finished and unfinished, drawn with the prompt in one write.

Rows come from any thread and wait here. The editor's thread draws them while the terminal output is buffered, so that
the rows and the prompt are written at once.

prompt_toolkit never draws a prompt with fewer rows than before, and counts rows by the terminal's previous width. Both
are corrected here: a prompt whose height changes is redrawn, and rows are counted as the terminal has wrapped them.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from prompt_toolkit.application import Application
from prompt_toolkit.data_structures import Point
from prompt_toolkit.formatted_text import ANSI, StyleAndTextTuples, to_formatted_text
from prompt_toolkit.layout.containers import Window
from prompt_toolkit.layout.dimension import to_dimension
from prompt_toolkit.layout.screen import Char

from chain.text.plain import sanitize
from cli.screen import tty
from cli.screen.draft import Draft
from cli.screen.toolkit import HeldOutput, screen_size
from cli.show.text_rows import wrap_text

REDRAWN_ROWS = 500
"""Maximum rows that Ctrl-L draws again: more than a screen has."""

MOMENT_S = 0.3
"""Seconds that a question must be visible before a single key answers it: earlier keys were meant for other text."""

PLAIN_TITLE = "chain"

WITHOUT_TITLE = ("linux", "eterm", "vt1", "vt2")
"""Prefixes of ``$TERM`` for terminals without a title: such a terminal would print a title among the rows."""

SCREEN_MARGIN = 5
"""Rows of the screen that Ctrl-L leaves free for the prompt, the toolbar and an answer."""


class RowOutput:
    """The rows of one terminal, its title, and the question that is on the screen."""

    def __init__(self, output: HeldOutput, draft: Draft) -> None:
        self.tail = ""
        """The unfinished rows above the prompt, as they are drawn."""
        self.is_open = False
        """Whether the prompt is on the screen. If not, rows are written directly."""
        self._output = output
        self._draft = draft
        """The parts of the editor's text. This object also stores the question that is on the screen."""
        self._lock = threading.Lock()
        self._rows: list[str] = []
        self._next_tail = ""
        self._next_question = self._next_keys = ""
        self._keys = ""
        """The keys that answer the question on the screen without Enter."""
        self._asked_at = 0.0
        """The time at which the question on the screen was drawn; infinite while it is being drawn."""
        self._last: deque[str] = deque(maxlen=REDRAWN_ROWS)
        self._is_scheduled = False
        self._app: Application[Any]
        self._window: Window
        """The window that shows the text. ``watch`` sets it and ``_app``, which are created later than this object."""
        self._plain_title = PLAIN_TITLE
        """The title between alerts."""
        self._title = ""
        """The title of the window; empty until it is set."""
        self._height = 0
        """The height of the prompt on the screen, in rows; 0 if it was erased and must be redrawn completely."""

    # ------------------------------------------------------------------------------------------------- in any thread

    def add(self, rows: Sequence[str], tail: str) -> bool:
        """Add finished rows, and replace the unfinished ones. Return whether to schedule a drawing."""
        with self._lock:
            self._rows.extend(rows)
            self._next_tail = tail
            return self._is_to_be_scheduled()

    def ask(self, question: str, keys: str) -> bool:
        """Set the question for text that is begun after the next drawing. Return whether to schedule that drawing."""
        with self._lock:
            if self._next_question == question:
                return False
            self._next_question, self._next_keys = question, keys
            return self._is_to_be_scheduled()

    def close_question(self, question: str) -> None:
        """Record that a question has closed: typed text no longer answers it, even before the next drawing."""
        with self._lock:
            if self._next_question == question:
                self._next_question = ""
        self._draft.question = ""

    @property
    def answer_keys(self) -> str:
        """The keys that answer the question on the screen; empty for the first ``MOMENT_S`` after it was drawn."""
        is_late_enough = time.monotonic() - self._asked_at >= MOMENT_S
        return self._keys if self._draft.question and is_late_enough else ""

    @property
    def has_undrawn_rows(self) -> bool:
        """Whether rows or another change have not been drawn yet."""
        return bool(self._rows) or self._is_scheduled

    @property
    def painted_tail(self) -> StyleAndTextTuples:
        """The unfinished rows for prompt_toolkit, without the bold style of the prompt."""
        tail = to_formatted_text(ANSI(f"{self.tail}\n")) if self.tail else []
        return [(f"nobold {part[0]}", part[1]) for part in tail]

    def drain(self) -> list[str]:
        """Return and remove the undrawn rows, also unfinished ones. Call this method after the prompt was removed."""
        with self._lock:
            rows, self._rows, self._next_tail = [*self._rows, *filter(None, [self._next_tail])], [], ""
        return rows

    def _is_to_be_scheduled(self) -> bool:
        is_due = self.is_open and not self._is_scheduled
        self._is_scheduled = self._is_scheduled or is_due
        return is_due

    # ---------------------------------------------------------------------------------------- in the editor's thread

    def watch(self, app: Application[Any], window: Window) -> None:
        """Correct each drawing of the application from now on. ``window`` is the window that shows the text."""
        self._app, self._window = app, window
        app.before_render += self._before_render
        app.after_render += self._after_render

    def _before_render(self, _: object) -> None:
        self._output.hold()
        renderer = self._app.renderer
        if renderer._last_screen is not None and renderer._last_size != screen_size():
            self._erase()

    def _erase(self) -> None:
        """Erase the prompt, even if the terminal has rewrapped it to a new width and SIGWINCH has not arrived yet."""
        renderer, columns = self._app.renderer, screen_size().columns
        drawn, size = renderer._last_screen, renderer._last_size
        if drawn is not None and size is not None and size.columns != columns and _rewraps_rows(os.environ):
            # A row that is now too long fills several, and the cursor moved with its character.
            cursor = renderer._cursor_pos
            above = sum(-(-max(_filled(drawn.data_buffer[y]), 1) // columns) for y in range(cursor.y))
            renderer._cursor_pos = Point(x=columns, y=above + cursor.x // columns)
        self._output.hide_cursor()
        renderer.erase(leave_alternate_screen=False)
        self._height = 0

    def _after_render(self, _: object) -> None:
        drawn, info = self._app.renderer._last_screen, self._window.render_info
        height = 0 if drawn is None else drawn.height
        # The window is too tall if neither the text nor the menu fills it. A prompt that grew is erased too: otherwise
        # tmux would wrap its previous last row by the old content of that row.
        needed = to_dimension(self._window.height).min
        is_too_tall = info is not None and info.window_height > max(len(info.visible_line_to_row_col), needed)
        try:
            if self._height and height and (is_too_tall or height != self._height):
                self._erase()  # which makes the height unknown
                self._app._redraw()
            self._height = height
        finally:
            self._output.release()

    def alert(self, title: str, *, rings: bool) -> None:
        """Set the window's title; an empty ``title`` restores the plain title. Ring the bell if ``rings``."""
        self._set_title(title or (self._title and self._plain_title))
        if rings:
            self._output.write_raw("\a")
        self._output.flush()

    def name_window(self, title: str) -> None:
        """Set the window's plain title, which ``alert("")`` restores."""
        self._plain_title = title
        self._set_title(title)
        self._output.flush()

    def _set_title(self, shown: str) -> None:
        if shown != self._title and not (self._output.term or "").startswith(WITHOUT_TITLE):
            if not self._title:
                self._output.write_raw(tty.save_title())
            self._title = shown
            self._output.set_title(sanitize(shown))

    def draw(self) -> None:
        """Write the waiting rows and draw the prompt below them, in one write."""
        with self._lock:
            rows, self._rows = self._rows, []
            # Set these only now. A key that is drawn before these rows must not show the unfinished row below them, and
            # must not answer a question that is not on the screen yet.
            self.tail = self._next_tail
            is_asked = self._next_question not in ("", self._draft.question)
            self._draft.question = self._next_question
            if is_asked:
                self._keys, self._asked_at = self._next_keys, math.inf
            self._last.extend(rows)
        app = self._app
        if not app.is_running or app.is_done:
            return
        with self._output.holding():
            if rows:
                self._erase()
                self._output.write_raw("".join(f"{row}\r\n" for row in rows))
            app._redraw()
        if is_asked:
            # Set this after the write, since a slow terminal shows the question only then.
            self._asked_at = time.monotonic()
            asyncio.get_running_loop().call_later(MOMENT_S, app.invalidate)

    def needs_drawing(self) -> bool:
        """Record and return whether another drawing is needed. If not, the next change schedules a drawing."""
        with self._lock:
            is_due = bool(self._rows) or self._next_tail != self.tail or self._next_question != self._draft.question
            self._is_scheduled = is_due
        return is_due

    def clear(self) -> None:
        """Clear the screen, and draw the latest rows that fit. The output of other programs is not drawn again."""
        with self._lock:
            self._rows = [*list(self._last)[-max(screen_size().rows - SCREEN_MARGIN, 0) :], *self._rows]
            self._last.clear()
        with self._output.holding():
            self._erase()
            self._output.cursor_goto(0, 0)
            self._output.erase_down()
            self.draw()

    def suspend(self) -> None:
        """Erase the prompt before another program gets the terminal. Rows wait until ``resume``."""
        with self._output.holding():
            self._erase()

    def resume(self, said: str = "") -> None:
        """Draw the prompt again after another program has exited. Show the text ``said`` above it."""
        with self._lock:
            self._rows += wrap_text(said, screen_size().columns)
        with self._output.holding():
            self._output.write_raw("\r")
            self.draw()

    def resize(self) -> None:
        """Redraw the prompt after a change of the terminal's size, or after another program used the terminal."""
        tty.reapply_settings()
        with self._output.holding():
            self._erase()
            self._app._redraw()


def _filled(row: Mapping[int, Char]) -> int:
    return max((x + max(char.width, 1) for x, char in row.items() if char.char.strip()), default=0)


def _rewraps_rows(environ: Mapping[str, str]) -> bool:
    """Return whether the terminal rewraps its rows when its width changes. A few terminals cut the rows off instead."""
    return "TMUX" in environ or not ("XTERM_VERSION" in environ or "STY" in environ or environ.get("TERM") == "linux")
