"""The prompt: a line editor that stays usable while rows scroll by above it.

prompt_toolkit runs in a thread of its own, and trio in the main thread. With a single thread the chain would block
whenever the terminal is not read, and keys would echo late. A key binding calls into trio's thread and returns at once.
Rows to show wait in a ``RowOutput``, which the editor's thread draws.

One application runs for the whole program. With a new one for each prompt, lines typed quickly between two prompts
would be joined into one. Rows are not printed by ``run_in_terminal`` or ``patch_stdout``, which lose keys and flicker.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import trio
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input.vt100 import Vt100Input
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.layout import Dimension
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.shortcuts import PromptSession
from prompt_toolkit.styles import Style

from chain.concurrency.threads import Threads
from chain.concurrency.wakeup import Wakeup
from cli.screen import tty
from cli.screen.draft import Draft
from cli.screen.keyboard import Keyboard
from cli.screen.protocol import Choice, Listener, Screen
from cli.screen.row_output import WITHOUT_TITLE, RowOutput
from cli.screen.sequences import copy_sequence
from cli.screen.shown_text import ShownText
from cli.screen.toolkit import HeldOutput, KeyParser, SafeHistory, WholeTextCompleter, screen_size
from cli.show.text_rows import row_count

_THREADS = Threads("editor")

FRAME_S = 0.033
"""Seconds between two drawings of rows: thirty drawings a second look smooth, and leave time for keys."""

ESCAPE_S = 0.05
"""Seconds to wait after Esc, which may be the start of another key's sequence."""

EDITOR_CLOSE_S = 1.0
"""Seconds to wait until the editor has ended: it cannot end while nobody reads the terminal."""

MENU_ROWS = 8
"""Maximum rows of the menu of completions."""

_STYLE = Style(
    [
        ("prompt", "bold"),
        ("bottom-toolbar", "noreverse dim"),
        ("nearly-full", "nodim ansiyellow"),
    ]
)


@asynccontextmanager
async def open_terminal(*, color: bool, history: Path | None, typed: str) -> AsyncIterator[Screen]:
    """Show a prompt and yield its screen. Typed lines and the early keys ``typed`` wait until ``listen`` is called."""
    terminal = _Terminal(color=color, history=history, typed=typed)
    async with trio.open_nursery() as nursery:
        await nursery.start(terminal.run)
        try:
            yield terminal
        finally:
            await terminal.close()
            nursery.cancel_scope.cancel()


class _Terminal:
    """A ``Screen`` with an editor."""

    has_keys = True

    def __init__(self, *, color: bool, history: Path | None, typed: str) -> None:
        self._typed = typed
        self._draft = Draft()
        self._is_closing = False
        self._shown = Wakeup()
        self._ended = trio.Event()
        self._output = HeldOutput(sys.stdout, screen_size, term=os.environ.get("TERM"), enable_cpr=False)
        self._row_output = RowOutput(self._output, self._draft)
        self._keyboard = Keyboard(self._draft, self._row_output)
        keys = self._keyboard.bindings()
        bound = {binding.keys[0] for binding in keys.bindings if len(binding.keys) == 1}
        self._input = Vt100Input(sys.stdin)
        self._input.vt100_parser = KeyParser(self._input.vt100_parser.feed_key_callback, bound)
        self._session: PromptSession[None] = PromptSession(
            message=self._message,
            multiline=True,
            wrap_lines=True,
            bottom_toolbar=self._toolbar,
            style=_STYLE,
            color_depth=None if color else ColorDepth.DEPTH_1_BIT,
            history=InMemoryHistory() if history is None else SafeHistory(history),
            search_ignore_case=True,
            completer=WholeTextCompleter(self._menu, self._completions),
            complete_while_typing=Condition(self._has_menu),
            key_bindings=keys,
            input_processors=[ShownText(self._keyboard.pastes)],
            prompt_continuation=lambda width, number, is_soft: " " * width,
            erase_when_done=True,
            input=self._input,
            output=self._output,
        )
        self._buffer = self._session.default_buffer
        self._session.layout.current_window.height = self._height
        self._app = app = self._session.app
        app.ttimeoutlen, app._default_bindings = ESCAPE_S, KeyBindings()
        app.terminal_size_polling_interval = None
        self._row_output.watch(app, self._session.layout.current_window)
        self._keyboard.attach(app, self._buffer)
        self._buffer.on_text_changed += lambda _: self._row_output.alert("", rings=False)

    # ------------------------------------------------------------------------------------------- in trio's thread

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Show the prompt until ``close``. Report to ``task_status`` when the prompt is on the screen."""
        self._keyboard.token = trio.lowlevel.current_trio_token()
        self._started = task_status.started
        try:
            await _THREADS.run(self._run_editor, abandon_on_cancel=True)
        finally:
            self._row_output.is_open = False
            self._ended.set()
            self._shown.set()

    @property
    def width(self) -> int:
        return self._output.get_size().columns

    def listen(self, listener: Listener) -> None:
        self._keyboard.listener = listener
        self._keyboard.is_ready.set()
        self.refresh()

    def show(self, rows: Sequence[str], tail: str = "") -> None:
        self._schedule(self._row_output.add(rows, tail))

    def ask(self, question: str | None, keys: str = "") -> None:
        self._schedule(self._row_output.ask(question or "", keys))

    def _schedule(self, is_due: bool) -> None:
        if not self._row_output.is_open:
            self._write_left()
        elif is_due:
            self._in_editor(self._draw_and_pause)

    async def wait_shown(self) -> None:
        while self._row_output.is_open and self._row_output.has_undrawn_rows:
            await self._shown.wait()

    def refresh(self) -> None:
        self._in_editor(self._app.invalidate)

    def alert(self, title: str, *, rings: bool) -> None:
        self._in_editor(lambda: self._row_output.alert(title, rings=rings))

    def name_window(self, title: str) -> None:
        self._in_editor(lambda: self._row_output.name_window(title))

    @property
    def has_clipboard(self) -> bool:
        return not (self._output.term or "").startswith(WITHOUT_TITLE)  # they would show the sequence as text

    def copy(self, text: str) -> None:
        def write() -> None:
            self._output.write_raw(copy_sequence(text))
            self._output.flush()

        self._in_editor(write)

    def redraw(self) -> None:
        # The editor's thread receives no signals.
        self._in_editor(self._row_output.resize)

    def give_back(self, text: str) -> None:
        self._in_editor(lambda: self._keyboard.put_above(text))

    def insert(self, text: str) -> None:
        self._in_editor(lambda: self._keyboard.insert(text))

    def edit(self, text: str) -> None:
        self._in_editor(lambda: self._keyboard.edit_or_put_above(text))

    @property
    def text(self) -> str:
        return self._keyboard.text

    def discard_text(self) -> None:
        self._in_editor(self._keyboard.discard)

    async def close(self) -> None:
        was_closed, self._is_closing = self._is_closing, True
        self._keyboard.external.end()
        self._keyboard.is_ready.set()
        self._in_editor(self._exit)
        # Restore the terminal whatever ended the program.
        with trio.move_on_after(EDITOR_CLOSE_S, shield=True):
            await self._ended.wait()
        self._row_output.is_open = False
        tty.restore()
        self._write_left()
        if not was_closed:
            self._keyboard.remember_typed()

    def _write_left(self) -> None:
        if rows := self._row_output.drain():
            text = "".join(f"{row}\n" for row in rows)
            tty.write_briefly(text.encode(sys.stdout.encoding or "utf-8", errors="replace"))

    def _in_editor(self, action: Callable[[], object]) -> None:
        loop = self._app.loop
        if loop is not None:
            with suppress(RuntimeError):  # it has just been closed
                loop.call_soon_threadsafe(action)

    # ---------------------------------------------------------------------------------------- in the editor's thread

    def _run_editor(self) -> None:
        def on_start() -> None:
            asyncio.get_running_loop().set_exception_handler(self._end_with_error)

        def on_first_render(_: object) -> None:
            app.after_render -= on_first_render
            self._row_output.is_open = True
            tty.save_settings()
            tty.ask_for_modified_keys(os.environ)
            self._call_in_trio(self._started)
            asyncio.get_running_loop().call_soon(self._press_keys)

        app = self._app
        app.after_render += on_first_render
        with suppress(EOFError):  # the terminal is gone
            app.run(pre_run=on_start, set_exception_handler=False, handle_sigint=False)
        if not self._is_closing:
            self._call_in_trio(self._hang_up)

    def _press_keys(self) -> None:
        self._input.vt100_parser.feed(self._typed)
        self._app.key_processor.feed_multiple(self._input.flush_keys())
        self._app.key_processor.process_keys()

    def _end_with_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """End the application because a callback has raised an exception. ``run`` raises that exception."""
        error = context.get("exception")
        if error is not None and not self._app.is_done:
            self._app.exit(exception=error)

    def _exit(self) -> None:
        if self._app.is_running and not self._app.is_done:
            self._row_output.draw()
            self._app.exit()

    def _hang_up(self) -> None:
        if self._keyboard.listener is not None:
            self._keyboard.listener.hang_up()

    def _call_in_trio(self, action: Callable[[], object]) -> None:
        with suppress(trio.RunFinishedError):
            assert self._keyboard.token is not None
            self._keyboard.token.run_sync_soon(action)

    def _draw_and_pause(self) -> None:
        """Draw the waiting rows, then pause for ``FRAME_S``."""
        self._row_output.draw()
        asyncio.get_running_loop().call_later(FRAME_S, self._draw_again_if_due)

    def _draw_again_if_due(self) -> None:
        if self._row_output.needs_drawing():
            self._draw_and_pause()
        else:
            self._call_in_trio(self._shown.set)

    def _message(self) -> StyleAndTextTuples:
        return [*self._row_output.painted_tail, ("class:prompt", self._keyboard.sign)]

    def _toolbar(self) -> StyleAndTextTuples:
        listener = self._keyboard.listener
        if listener is None:
            return [("", "starting")]
        *others, typed = self._draft.lines(self._buffer.text)
        typed, question_id = self._keyboard.pastes.whole(typed), self._draft.question_id
        parts = listener.toolbar(self.width, typed, question_id, len(others), self._row_output.answer_keys)
        return [(f"class:{style}" if style else "", text) for style, text in parts]

    def _height(self) -> Dimension:
        """Return the height of the text and the completion menu. A pasted file must not fill the screen."""
        state, most = self._buffer.complete_state, max(screen_size().rows // 2, 1)
        if state is None:
            return Dimension(min=1, max=most)
        # The menu is below the cursor if there is room, else over the text.
        before = self._buffer.document.text_before_cursor.split("\n")
        above = sum(row_count(f"{line} ", self._keyboard.room) for line in before)
        return Dimension(min=min(above + min(len(state.completions), MENU_ROWS), most), max=most)

    def _has_menu(self) -> bool:
        return self._buffer.text.startswith("/") or "@" in self._buffer.text

    def _menu(self, text: str) -> Sequence[Choice]:
        return () if self._keyboard.listener is None else self._keyboard.listener.menu(text)

    def _completions(self, text: str) -> Sequence[str]:
        return self._keyboard.ask(lambda listener: listener.completions(text)) or ()
