"""The prompt: a line editor that stays usable while rows scroll by above it.

prompt_toolkit runs in a thread of its own and trio in the main thread. In one thread, the chain would stop whenever
nobody reads the terminal, and keys would echo late whenever trio is busy. A key with a meaning is a call into trio's
thread, which returns at once; rows to show are queued here and drawn by the editor's thread.

One application lives as long as the program: between two prompts the terminal would be in its ordinary mode, and lines
typed fast would run together. Rows are not printed by ``run_in_terminal`` or ``patch_stdout``, which remove the prompt
for each row, lose keys and flicker. Here the prompt is erased, the rows are written and the prompt is drawn again in
one write.

This module is longer than 400 lines: the prompt, its keys and its rows share one lock and one application, and each of
them calls the others. What prompt_toolkit asks for beside them is in ``toolkit``, which with this module is its only
importer.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import trio
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, has_focus
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input.ansi_escape_sequences import ANSI_SEQUENCES
from prompt_toolkit.input.vt100_parser import Vt100Parser
from prompt_toolkit.key_binding import KeyBindings, KeyPress, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import Dimension
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.shortcuts import CompleteStyle, PromptSession
from prompt_toolkit.styles import Style

from chain.lines.parse import Urgency
from chain.threads import Threads
from cli.screen import tty
from cli.screen.draft import Draft
from cli.screen.protocol import Acceptance, Listener
from cli.screen.toolkit import FileHistory, Output, WholeTextCompleter, screen_size
from cli.show.text import cut

T = TypeVar("T")

_THREADS = Threads("editor")

PROMPT = "> "

FRAME_S = 0.033
"""Seconds between two drawings of rows: nobody sees more than thirty a second, and keys need the rest of the time."""

ESCAPE_S = 0.05
"""How long an Esc may still turn out to be the beginning of another key."""

CLOSING_S = 1.0
"""How long the editor may take to end; only a terminal that nobody reads makes it take any time."""

KEPT = 500
"""Rows that Ctrl-L can draw again: more than a screen has."""

MARGIN = 5
"""Rows of the screen left for the prompt, the toolbar and an answer."""

_STYLE = Style([("prompt", "bold")])


@asynccontextmanager
async def open_terminal(*, color: bool, history: Path | None, typed: str = "") -> AsyncIterator[Terminal]:
    """A prompt that is on the screen. Its lines wait until ``listen`` has been called.

    ``typed`` are the keys that were pressed before.
    """
    terminal = Terminal(color=color, history=history, typed=typed)
    async with trio.open_nursery() as nursery:
        await nursery.start(terminal.run)
        try:
            yield terminal
        finally:
            await terminal.close()
            nursery.cancel_scope.cancel()


class Terminal:
    """A ``Screen`` with an editor: made by ``open_terminal``."""

    has_keys = True

    def __init__(self, *, color: bool, history: Path | None, typed: str = "") -> None:
        self._typed = typed
        self._listener: Listener | None = None
        self._is_ready = threading.Event()
        self._lock = threading.Lock()
        self._rows: list[str] = []
        self._tail = self._next_tail = ""
        self._last: deque[str] = deque(maxlen=KEPT)
        self._draft = Draft()
        self._next_question = ""
        self._is_scheduled = False
        self._is_open = False
        self._is_closing = False
        self._shown = trio.Event()
        self._ended = trio.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._output = Output(sys.stdout, screen_size, term=os.environ.get("TERM"), enable_cpr=False)
        # Shift-Enter, as kitty and xterm report it, is the same as Alt-Enter.
        for sequence in ("\x1b[13;2u", "\x1b[27;2;13~"):
            ANSI_SEQUENCES[sequence] = (Keys.Escape, Keys.ControlM)
        self._session: PromptSession[None] = PromptSession(
            message=self._message,
            multiline=True,
            wrap_lines=True,
            bottom_toolbar=self._toolbar,
            style=_STYLE,
            color_depth=None if color else ColorDepth.DEPTH_1_BIT,
            history=InMemoryHistory() if history is None else FileHistory(history),
            search_ignore_case=True,
            completer=WholeTextCompleter(self._completions),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            reserve_space_for_menu=0,
            key_bindings=self._keys(),
            prompt_continuation=lambda width, number, is_soft: " " * width,
            erase_when_done=True,
            output=self._output,
        )
        self._buffer = self._session.default_buffer
        # Some keys (Ctrl-O) accept the text by themselves. Without this handler they would end the application.
        self._buffer.accept_handler = lambda buffer: self._submit(urgency="next")
        self._buffer.on_text_changed += lambda buffer: self._draft.changed(buffer.text)
        # A pasted file must not fill the whole screen.
        self._session.layout.current_window.height = lambda: Dimension(max=max(screen_size().rows // 2, 1))
        self._app = app = self._session.app
        app.ttimeoutlen, app.timeoutlen = ESCAPE_S, 0
        app.terminal_size_polling_interval = None

    # ------------------------------------------------------------------------------------------- in trio's thread

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Show the prompt until ``close``; started when it is on the screen."""
        self._token = trio.lowlevel.current_trio_token()
        self._started = task_status.started
        try:
            await _THREADS.run(self._run_editor, abandon_on_cancel=True)
        finally:
            self._is_open = False
            self._ended.set()
            self._shown.set()

    @property
    def width(self) -> int:
        """Columns of the terminal."""
        return self._output.get_size().columns

    def listen(self, listener: Listener) -> None:
        """Set the listener; a line that was entered before has waited for this call."""
        self._listener = listener
        self._is_ready.set()
        self.refresh()

    def show(self, rows: Sequence[str], tail: str = "") -> None:
        """Show whole rows above the prompt, and below them the unfinished ones."""
        with self._lock:
            self._rows.extend(rows)
            self._next_tail = tail
        self._schedule()

    def ask(self, question: str | None) -> None:
        """What is begun in an empty editor answers this question, once the rows shown so far are on the screen."""
        with self._lock:
            if self._next_question == (question or ""):
                return
            self._next_question = question or ""
        self._schedule()

    def _schedule(self) -> None:
        with self._lock:
            is_due = self._is_open and not self._is_scheduled
            self._is_scheduled = self._is_scheduled or is_due
        if not self._is_open:
            self._write_left()
        elif is_due:
            self._in_editor(self._draw_now_and_rest)

    async def shown(self) -> None:
        """Wait until all rows are on the screen."""
        while self._is_open and (self._rows or self._is_scheduled):
            self._shown = trio.Event()
            if self._rows or self._is_scheduled:
                await self._shown.wait()

    def refresh(self) -> None:
        """Redraw the toolbar."""
        self._in_editor(self._app.invalidate)

    def resized(self) -> None:
        """Adapt to the terminal's new size: the editor's thread receives no signals."""
        self._in_editor(self._app._on_resize)

    def give_back(self, text: str) -> None:
        """Put a line that came back into the editor, above what is being typed."""
        self._in_editor(lambda: self._put_above(text))

    def edit(self, text: str) -> None:
        """Put a text into the editor to be changed, above what is being typed."""
        self._in_editor(lambda: self._put_to_edit(text))

    async def close(self) -> str:
        """Remove the prompt, restore the terminal, and return the text that was in the editor."""
        self._is_closing = True
        self._is_ready.set()
        self._in_editor(self._exit)
        with trio.move_on_after(CLOSING_S, shield=True):
            await self._ended.wait()
        self._is_open = False
        tty.restore()
        self._write_left()
        return self._buffer.text

    def _write_left(self) -> None:
        """Write the rows that are left when the prompt is gone."""
        with self._lock:
            rows, self._rows, self._next_tail = [*self._rows, *filter(None, [self._next_tail])], [], ""
        if rows:
            text = "".join(f"{row}\n" for row in rows)
            tty.write_briefly(text.encode(sys.stdout.encoding or "utf-8", errors="replace"))

    def _in_editor(self, action: Callable[[], object]) -> None:
        loop = self._app.loop
        if loop is not None:
            with suppress(RuntimeError):  # it has just been closed
                loop.call_soon_threadsafe(action)

    # ---------------------------------------------------------------------------------------- in the editor's thread

    def _run_editor(self) -> None:
        def begin() -> None:
            asyncio.get_running_loop().set_exception_handler(self._end_with_error)

        def begun(_: object) -> None:
            app.after_render -= begun
            self._is_open = True
            self._call_in_trio(self._started)
            asyncio.get_running_loop().call_soon(self._press_keys)

        app = self._app
        app.after_render += begun
        with suppress(EOFError):  # the terminal is gone
            app.run(pre_run=begin, set_exception_handler=False, handle_sigint=False)
        if not self._is_closing:
            self._call_in_trio(self._hang_up)

    def _press_keys(self) -> None:
        """Process the keys that were typed ahead."""
        keys: list[KeyPress] = []
        parser = Vt100Parser(keys.append)
        parser.feed(self._typed)
        parser.flush()
        self._app.key_processor.feed_multiple(keys)
        self._app.key_processor.process_keys()

    def _end_with_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """End the application with an exception of a callback, which is our bug; ``run`` raises it."""
        error = context.get("exception")
        if error is not None and not self._app.is_done:
            self._app.exit(exception=error)

    def _exit(self) -> None:
        if self._app.is_running and not self._app.is_done:
            self._draw()
            self._app.exit()

    def _hang_up(self) -> None:
        if self._listener is not None:
            self._listener.hang_up()

    def _ask(self, question: Callable[[Listener], T], otherwise: T) -> T:
        """Ask the listener in trio's thread, once there is one."""
        self._is_ready.wait()
        listener, token = self._listener, self._token
        if listener is None or token is None:
            return otherwise
        try:
            return trio.from_thread.run_sync(lambda: question(listener), trio_token=token)
        except trio.RunFinishedError:
            return otherwise

    def _call_in_trio(self, action: Callable[[], object]) -> None:
        with suppress(trio.RunFinishedError):
            assert self._token is not None
            self._token.run_sync_soon(action)

    def _draw_now_and_rest(self) -> None:
        """Draw the rows that wait, then none for ``FRAME_S``."""
        self._draw()
        asyncio.get_running_loop().call_later(FRAME_S, self._draw_again_if_due)

    def _draw_again_if_due(self) -> None:
        with self._lock:
            is_due = bool(self._rows) or self._next_tail != self._tail or self._next_question != self._draft.question
            self._is_scheduled = is_due
        if is_due:
            self._draw_now_and_rest()
        else:
            self._call_in_trio(lambda: self._shown.set())

    def _draw(self) -> None:
        """Write the rows that wait and draw the prompt below them, in one piece."""
        with self._lock:
            rows, self._rows = self._rows, []
            # Not before: a key drawn ahead of these rows must not show the unfinished row that follows them, nor answer
            # a question that is not on the screen yet.
            shrinks = self._tail.count("\n") > self._next_tail.count("\n")
            self._tail = self._next_tail
            self._draft.question = self._next_question
            self._last.extend(rows)
        app, output = self._app, self._output
        if app.is_running and not app.is_done:
            output.is_held = True
            try:
                if rows or shrinks:
                    app.renderer.erase()
                if rows:
                    output.write_raw("".join(f"{row}\r\n" for row in rows))
                app._redraw()
            finally:
                output.is_held = False
            output.flush()

    def _message(self) -> StyleAndTextTuples:
        above = [("", f"{self._tail}\n")] if self._tail else []
        return [*above, ("class:prompt", f"{self._draft.at}? " if self._draft.at else PROMPT)]

    def _toolbar(self) -> str:
        width = self._output.get_size().columns
        state = self._buffer.complete_state
        if state is not None and len(state.completions) > 1:
            return cut("  ".join(completion.text for completion in state.completions), width, "")
        if self._listener is None:
            return "starting"
        return self._listener.toolbar(width, self._buffer.text, self._draft.at)

    def _completions(self, text: str) -> Sequence[str]:
        nothing: Sequence[str] = ()
        return self._ask(lambda listener: listener.completions(text), nothing)

    def _put_above(self, text: str) -> None:
        """Put a line above what is being typed, and below others that came back before."""
        typed = self._buffer.text
        *_, rest = lines = self._draft.put_above(typed, text)
        self._set_lines(lines, max(self._buffer.cursor_position - (len(typed) - len(rest)), 0))

    def _put_to_edit(self, text: str) -> None:
        if self._buffer.text:
            self._put_above(text)
        else:
            self._buffer.document = Document(text, len(text))
            self._draft.is_no_answer()

    def _empty(self) -> None:
        self._buffer.reset()
        self._draft.cleared()

    def _set_lines(self, lines: Sequence[str], column: int) -> None:
        above = "".join(f"{line}\n" for line in lines[:-1])
        self._buffer.document = Document(above + lines[-1], len(above) + column)

    def _submit(self, *, urgency: Urgency) -> bool:
        """Submit the lines in order until one is not accepted. Returns true, which keeps what is left in the editor."""
        if stop := self._draft.stop_in(self._buffer.text):
            self._offer(stop[0], urgency="next", at="")
            self._buffer.document = Document(stop[1], len(stop[1]))
            return True
        lines, at = self._draft.lines(self._buffer.text), self._draft.at
        was_tall = "\n" in self._buffer.text
        while lines:
            is_last = len(lines) == 1
            answer = self._offer(lines[0], urgency=urgency, at=at if is_last else "")
            if answer not in ("accepted", "answered"):
                left = self._draft.left(lines, answer)
                self._set_lines(left, len(left[-1]))
                break
            if answer == "answered":
                self._is_answered(at)
            if not (is_last and at):
                self._remember(lines[0])
            del lines[0]
        else:
            self._empty()
        if was_tall:
            self._redraw_at_its_height()
        return True

    def _is_answered(self, question: str) -> None:
        """What is typed from now on does not answer this question, whenever the next rows are drawn."""
        with self._lock:
            if self._next_question == question:
                self._next_question = ""
        self._draft.question = ""

    def _offer(self, line: str, *, urgency: Urgency, at: str) -> Acceptance:
        otherwise: Acceptance = "later"
        return self._ask(lambda listener: listener.accept(line, urgency=urgency, at=at), otherwise)

    def _remember(self, line: str) -> None:
        history = self._buffer.history
        if line.strip() and history.get_strings()[-1:] != [line]:
            history.append_string(line)

    def _redraw_at_its_height(self) -> None:
        """Redraw the prompt at the height that it needs now; prompt_toolkit never shrinks it."""
        self._output.is_held = True
        try:
            self._app.renderer.erase()
            self._app._redraw()
        finally:
            self._output.is_held = False
        self._output.flush()

    def _draw_screen(self) -> None:
        """Clear the screen, and draw as many of the latest rows as fit; what other programs wrote is gone."""
        self._app.renderer.clear()
        with self._lock:
            self._rows = [*list(self._last)[-max(screen_size().rows - MARGIN, 0) :], *self._rows]
            self._last.clear()
        self._draw()
        self._ask(lambda listener: listener.redrawn(), None)

    def _suspend(self) -> None:
        """Suspend the program, as Ctrl-Z does everywhere, and redraw the prompt when it continues."""
        self._app.renderer.erase()
        with tty.restored():
            # Sent to this thread, which therefore stops at this line until the program continues.
            signal.pthread_kill(threading.get_ident(), signal.SIGTSTP)
        self._app._redraw()

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()
        in_editor = has_focus(DEFAULT_BUFFER)
        is_empty = Condition(lambda: not self._buffer.text)

        @keys.add("enter", filter=in_editor)
        def _enter(event: KeyPressEvent) -> None:
            typed = self._buffer.document
            if typed.is_cursor_at_the_end and typed.text.endswith("\\"):
                self._buffer.delete_before_cursor()
                self._buffer.newline(copy_margin=False)
            else:
                self._submit(urgency="next")

        @keys.add("escape", "enter", filter=in_editor)
        def _alt_enter(event: KeyPressEvent) -> None:
            self._submit(urgency="urgent")

        @keys.add("c-j", filter=in_editor)
        def _newline(event: KeyPressEvent) -> None:
            self._buffer.newline(copy_margin=False)

        @keys.add("escape", filter=in_editor)
        def _escape(event: KeyPressEvent) -> None:
            self._ask(lambda listener: listener.escape(), None)

        @keys.add("c-c", filter=in_editor)
        def _interrupt(event: KeyPressEvent) -> None:
            has_text = bool(self._buffer.text)
            if self._ask(lambda listener: listener.ctrl_c(has_text=has_text), False):
                self._empty()

        @keys.add("c-d", filter=in_editor & is_empty)
        def _end(event: KeyPressEvent) -> None:
            self._ask(lambda listener: listener.leave(), None)

        @keys.add("up", filter=in_editor & is_empty)
        def _up(event: KeyPressEvent) -> None:
            text = self._ask(lambda listener: listener.take_back(), None)
            if text is None:
                self._buffer.auto_up()
            else:
                self._put_to_edit(text)

        @keys.add("tab", filter=in_editor)
        def _tab(event: KeyPressEvent) -> None:
            if self._buffer.complete_state:
                self._buffer.complete_next()
            else:
                self._buffer.start_completion(insert_common_part=True)

        @keys.add("c-l", filter=in_editor)
        def _clear(event: KeyPressEvent) -> None:
            self._draw_screen()

        @keys.add("c-z")
        def _stop(event: KeyPressEvent) -> None:
            self._suspend()

        return keys
