"""The keys of the prompt: what they do to the text in the editor, and which of them are calls to the listener.

All of it runs in the editor's thread.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, Filter, has_focus, has_selection, is_searching
from prompt_toolkit.input.ansi_escape_sequences import ANSI_SEQUENCES
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.key_binding.bindings import search
from prompt_toolkit.keys import Keys
from prompt_toolkit.search import stop_search

from chain.lines.parse import Urgency, marked_urgent
from cli.input.address import is_command
from cli.screen import tty, wrapping
from cli.screen.draft import Draft
from cli.screen.page import Page
from cli.screen.protocol import Acceptance, Listener
from cli.screen.toolkit import screen_size
from cli.show.text import columns

T = TypeVar("T")

PROMPT = "> "


class Ask(Protocol):
    """Asks the listener in trio's thread, once there is one."""

    def __call__(self, question: Callable[[Listener], T], otherwise: T) -> T:
        """The listener's answer, or ``otherwise`` where nobody listens any more."""


class Keyboard:
    """The keys of one editor."""

    def __init__(self, draft: Draft, page: Page, ask: Ask) -> None:
        self._draft = draft
        self._page = page
        self._ask = ask
        self._before_search: tuple[int, Document] | None = None

    def attach(self, app: Application[Any], buffer: Buffer) -> None:
        """Set the application and its text, which are made with the keys."""
        self._app, self._buffer = app, buffer
        # Some keys (Ctrl-O) accept the text by themselves. Without this handler they would end the application.
        buffer.accept_handler = lambda _: self._submit(urgency="next")
        buffer.on_text_changed += self._on_change

    @property
    def sign(self) -> str:
        """The sign before the text: what Enter would do with it."""
        return f"{self._draft.at}? " if self._draft.at else PROMPT

    def put_above(self, text: str) -> None:
        """Put a line above what is being typed, and below others that came back before."""
        self._leave_search()
        typed = self._buffer.text
        *_, rest = lines = self._draft.put_above(typed, text)
        self._set_lines(lines, max(self._buffer.cursor_position - (len(typed) - len(rest)), 0))

    def put_to_edit(self, text: str) -> None:
        """Put a text into an empty editor to be changed, else above what is being typed."""
        self._leave_search()
        if self._buffer.text:
            self.put_above(text)
        else:
            self._buffer.document = Document(text, len(text))
            self._draft.is_no_answer()

    def _empty(self) -> None:
        self._buffer.reset()
        self._draft.cleared()

    def _set_lines(self, lines: Sequence[str], column: int) -> None:
        above = "".join(f"{line}\n" for line in lines[:-1])
        self._buffer.document = Document(above + lines[-1], len(above) + column)

    def _on_change(self, buffer: Buffer) -> None:
        separated = self._draft.changed(buffer.text)
        if separated is not None:
            buffer.document = Document(separated, len(separated))

    def _submit(self, *, urgency: Urgency) -> bool:
        """Submit the lines in order until one is not accepted. Returns true, which keeps what is left in the editor."""
        if passing := self._draft.passing(self._buffer.text):
            typed, before = passing
            if self._offer(typed, urgency=urgency, at="") == "accepted":
                self._remember(typed)
                self._buffer.document = Document(before, len(before))
            elif is_command(typed):
                self._select_from(len(before))
            return True
        lines, at = self._draft.offered(self._buffer.text), self._draft.at
        if urgency == "urgent":
            lines = [marked_urgent(line) for line in lines]
        while lines:
            is_last = len(lines) == 1
            answer = self._offer(lines[0], urgency=urgency, at=at if is_last else "")
            if answer not in ("accepted", "answered"):
                self._keep(self._draft.left(lines, answer), answer)
                break
            if answer == "answered":
                self._page.is_answered(at)
            if not (is_last and at):
                self._remember(lines[0])
            self._draft.sent()
            del lines[0]
        else:
            self._empty()
        return True

    def _keep(self, lines: Sequence[str], answer: Acceptance) -> None:
        self._set_lines(lines, len(lines[-1]))
        if answer == "keep" and is_command(self._buffer.text):
            # The next key replaces a command that was not understood, so that two are never joined.
            self._remember(self._buffer.text)
            self._select_from(0)

    def _select_from(self, start: int) -> None:
        self._buffer.cursor_position = start
        self._buffer.start_selection()
        assert self._buffer.selection_state is not None
        self._buffer.selection_state.enter_shift_mode()
        self._buffer.cursor_position = len(self._buffer.text)

    def _offer(self, line: str, *, urgency: Urgency, at: str) -> Acceptance:
        otherwise: Acceptance = "later"
        return self._ask(lambda listener: listener.accept(line, urgency=urgency, at=at), otherwise)

    def _remember(self, line: str) -> None:
        history = self._buffer.history
        if line.strip() and history.get_strings()[-1:] != [line]:
            history.append_string(line)

    def bindings(self) -> KeyBindings:
        """The keys that mean something here; prompt_toolkit has the others, which are those of readline."""
        # Shift-Enter, as kitty and xterm report it, is the same as Alt-Enter.
        for sequence in ("\x1b[13;2u", "\x1b[27;2;13~"):
            ANSI_SEQUENCES[sequence] = (Keys.Escape, Keys.ControlM)
        keys = KeyBindings()
        editing = has_focus(DEFAULT_BUFFER)
        is_empty = Condition(lambda: not self._buffer.text)

        def bind(*sequence: Keys | str, to: Callable[[KeyPressEvent], Any], when: Filter = editing) -> None:
            keys.add(*sequence, filter=when)(to)

        bind("enter", to=lambda _: self._enter())
        bind("escape", "enter", to=lambda _: self._submit(urgency="urgent"))
        bind("c-j", to=lambda _: self._newline())
        bind("escape", to=lambda _: self._ask(lambda listener: listener.escape(), None))
        bind("c-c", to=lambda _: self._ctrl_c())
        bind("c-d", to=lambda _: self._ask(lambda listener: listener.leave(), None), when=editing & is_empty)
        bind("up", to=lambda _: self._up())
        bind("down", to=lambda _: self._down())
        bind("tab", to=lambda _: self._complete())
        bind("c-l", to=lambda _: self._page.clear(self._app))
        for key in ("c-r", "c-s"):
            bind(key, to=self._search)
        for key in ("c-g", "c-c"):
            bind(key, to=lambda _: self._leave_search(), when=is_searching)
        for key in ("c-u", "c-k"):
            bind(key, to=lambda _: self._paste_over(""), when=editing & has_selection)
        bind(Keys.BracketedPaste, to=lambda event: self._paste_over(event.data), when=editing & has_selection)
        keys.add("c-z")(lambda _: self._suspend())
        return keys

    def _enter(self) -> None:
        """Send the lines, or begin a new one after a backslash."""
        typed = self._buffer.document
        if typed.is_cursor_at_the_end and typed.text.endswith("\\"):
            self._buffer.delete_before_cursor()
            self._newline()
        else:
            self._submit(urgency="next")

    def _newline(self) -> None:
        self._buffer.newline(copy_margin=False)

    def _ctrl_c(self) -> None:
        has_text = bool(self._buffer.text)
        if self._ask(lambda listener: listener.ctrl_c(has_text=has_text), False):
            self._empty()

    def _up(self) -> None:
        """Go to the row above; from the first one, to a waiting line or to the history."""
        buffer = self._buffer
        if not buffer.text:
            text = self._ask(lambda listener: listener.take_back(), None)
            if text is not None:
                self.put_to_edit(text)
                return
        elif (at := self._column_above()) is not None and not self._is_from_history:
            buffer.cursor_position = at
            return
        buffer.auto_up()

    def _down(self) -> None:
        """Go to the row below; from the last one, to the history."""
        document, room = self._buffer.document, self._room
        at = wrapping.below(document.current_line, document.cursor_position_col, room)
        if at is None or self._is_from_history:
            self._buffer.auto_down()
        else:
            self._buffer.cursor_position += at - document.cursor_position_col

    def _column_above(self) -> int | None:
        """The place one row above the cursor, in the whole text."""
        document, room = self._buffer.document, self._room
        column, start = document.cursor_position_col, document.cursor_position - document.cursor_position_col
        at = wrapping.above(document.current_line, column, room)
        if at is not None:
            return start + at
        if document.cursor_position_row == 0:
            return None
        before = document.lines[document.cursor_position_row - 1]
        return start - 1 - len(before) + wrapping.in_last_row(before, columns(document.current_line[:column]), room)

    @property
    def _room(self) -> int:
        """The columns beside the prompt's sign."""
        return max(screen_size().columns - len(self.sign), 1)

    @property
    def _is_from_history(self) -> bool:
        """Whether the history is being walked through: the cursor is at the end of an entry that was not changed."""
        buffer = self._buffer
        entries = buffer.history.get_strings()
        is_entry = buffer.working_index < len(entries) and buffer.text == entries[buffer.working_index]
        return is_entry and buffer.document.is_cursor_at_the_end

    def _complete(self) -> None:
        if self._buffer.complete_state:
            self._buffer.complete_next()
        else:
            self._buffer.start_completion(insert_common_part=True)

    def _search(self, event: KeyPressEvent) -> None:
        self._before_search = self._buffer.working_index, self._buffer.document
        forward = event.key_sequence[0].key == Keys.ControlS
        (search.start_forward_incremental_search if forward else search.start_reverse_incremental_search).call(event)

    def _leave_search(self) -> None:
        """End the search, and restore what was in the editor before it."""
        if not self._app.layout.is_searching:
            return
        assert self._app.context is not None
        self._app.context.copy().run(stop_search)
        if self._before_search is not None:
            self._buffer.working_index, self._buffer.document = self._before_search
            self._before_search = None

    def _paste_over(self, text: str) -> None:
        self._buffer.cut_selection()
        self._buffer.insert_text(text.replace("\r\n", "\n").replace("\r", "\n"))

    def _suspend(self) -> None:
        """Suspend the program, as Ctrl-Z does everywhere, and redraw the prompt when it continues."""
        self._app.renderer.erase()
        with tty.restored():
            # Sent to this thread, which therefore stops at this line until the program continues.
            signal.pthread_kill(threading.get_ident(), signal.SIGTSTP)
        self._app._redraw()
