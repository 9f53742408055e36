"""The key bindings of the prompt: edits of the text, and calls to the listener.

All of it runs in the editor's thread.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, TypeVar

import trio
from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, get_common_complete_suffix
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, Filter, has_focus, has_selection, is_searching
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent, merge_key_bindings
from prompt_toolkit.key_binding.bindings import emacs, search
from prompt_toolkit.key_binding.bindings.basic import load_basic_bindings
from prompt_toolkit.key_binding.bindings.named_commands import get_by_name
from prompt_toolkit.key_binding.key_bindings import KeyBindingsBase
from prompt_toolkit.keys import Keys
from prompt_toolkit.search import stop_search

from chain.errors import UserError
from cli.input.address import is_command
from cli.screen import tty
from cli.screen.draft import Draft
from cli.screen.external import ExternalProgram
from cli.screen.protocol import Acceptance, Listener, prompt_sign
from cli.screen.row_output import RowOutput
from cli.screen.shown_text import Pastes
from cli.screen.toolkit import edit_by_clusters, screen_size
from cli.show.text_rows import cluster_beside, columns, cut, row_starts
from cli.show.toolbar import answers_question

T = TypeVar("T")

_ACCEPTED: tuple[Acceptance, ...] = ("accepted", "answered")

_SHELL_KEYS = {
    **{"c-a": "beginning-of-line", "c-e": "end-of-line", "c-b": "backward-char", "c-f": "forward-char"},
    **{"c-left": "backward-word", "c-right": "forward-word", "c-delete": "kill-word", "c-y": "yank"},
}
"""The Emacs keys that are bound. prompt_toolkit's other Emacs keys would send the text, or change it invisibly."""

MAX_UNFOLDED = 10_000
"""Maximum characters of a text from the external editor that is shown in full."""

ANSWER_KEY_PAUSE_S = 0.3
"""Seconds to wait before an answer key is sent, since it may start a text: "you should not" must not allow a call."""

_REST_OF_WORD = {"y": "es", "w": "ith network", "o": "utside the sandbox", "a": "lways", "n": "o"}
"""The rest of the word that each answer key stands for, since the user may type the whole word."""

REST_OF_WORD_S = 2.0
"""Seconds after an answer by key in which the user may start to type the rest of the word."""


class Keyboard:
    """The key bindings and the text of one editor."""

    def __init__(self, draft: Draft, row_output: RowOutput) -> None:
        self.listener: Listener | None = None
        self.token: trio.lowlevel.TrioToken | None = None
        self.is_ready = threading.Event()
        """Set when there is a listener, or when there will never be one."""
        self._draft = draft
        self._row_output = row_output
        self._before_search = 0, Document()
        """The index in the history, and the text, both of which are restored when a search is cancelled."""
        self.pastes = Pastes()
        self.external = ExternalProgram(lambda: self.ask(lambda _: None))
        self._rest_of_word = ""
        """The rest of the last answer key's word while the user may still type it. Its letters are then ignored."""
        self._pasted_path: tuple[str, str, str] | None = None
        """The path of a pasted file that can be attached, the pasted text, and the editor's text at that time."""
        self._timer: asyncio.TimerHandle | None = None
        """A timer that each key cancels. When it runs out, it sends an answer key, or removes the rest of its word."""

    def attach(self, app: Application[Any], buffer: Buffer) -> None:
        """Set the application and its buffer, which are created after the bindings."""
        self._app, self._buffer = app, buffer
        # Without this handler prompt_toolkit's own key for accepting the text would end the application.
        buffer.accept_handler = lambda _: self._submit()
        buffer.on_text_changed += self._on_change
        app.key_processor.before_key_press += lambda _: self._cancel_timer()

    def ask(self, question: Callable[[Listener], T]) -> T | None:
        """Call ``question`` with the listener in trio's thread, and return the result.

        Wait until there is a listener; return ``None`` if there is none at the exit. No keys are read during the call,
        and trio's thread may hang, for example on a disk. So Ctrl-C sends a signal during the call.
        """
        with tty.signal_on_ctrl_c():
            self.is_ready.wait()
            if self.listener is not None and self.token is not None:
                with suppress(trio.RunFinishedError):
                    return trio.from_thread.run_sync(question, self.listener, trio_token=self.token)
            return None

    @property
    def text(self) -> str:
        """The text in the editor, with all pastes in full."""
        return self.pastes.whole(self._buffer.text)

    def put_above(self, text: str) -> None:
        """Put a returned line above the typed text, below lines that were returned earlier."""
        with self._edit_under_search():
            typed = self._buffer.text
            *_, rest = lines = self._draft.put_above(typed, self.pastes.fold(text))
            self._set_lines(lines, max(self._buffer.cursor_position - (len(typed) - len(rest)), 0))

    def edit_or_put_above(self, text: str) -> None:
        """Put a text into an empty editor. If the editor is not empty, put the text above the typed text."""
        with self._edit_under_search():
            if not self._buffer.text:
                self._set_text(self.pastes.fold(text))
                self._draft.assign_to("")
                return
        self.put_above(text)

    def insert(self, text: str) -> None:
        """Insert a text at the cursor, followed by a space."""
        with self._edit_under_search():
            self._buffer.insert_text(f"{text} ")

    def _set_text(self, text: str) -> None:
        self._buffer.document = Document(text, len(text))

    def _empty(self) -> None:
        self._buffer.reset()
        self._draft.clear()

    def _set_lines(self, lines: Sequence[str], column: int) -> None:
        above = "".join(f"{line}\n" for line in lines[:-1])
        self._buffer.document = Document(above + lines[-1], len(above) + column)

    def _on_change(self, buffer: Buffer) -> None:
        self._cancel_timer()
        if (separated := self._draft.update(buffer.text)) is not None:
            self._set_text(separated)
        elif self._rest_of_word and buffer.text.casefold() == self._rest_of_word:
            self._timer = asyncio.get_running_loop().call_later(ANSWER_KEY_PAUSE_S, self._set_text, "")

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _submit(self) -> bool:
        """Submit the lines in order until one is not accepted.

        Always return true, so that prompt_toolkit does not empty the editor.
        """
        if passing := self._draft.overtaking_line(self._buffer.text):
            typed, before = passing
            if self._submit_lines([typed], question_id="") == ["accepted"]:
                self._set_text(before)
                self._remember(typed)
            elif is_command(typed):
                self._select_from(len(before))
            return True
        lines, question_id = self._draft.lines_to_send(self._buffer.text), self._draft.question_id
        answers = self._submit_lines(lines, question_id=question_id)
        count = sum(answer in _ACCEPTED for answer in answers)
        accepted, left = lines[:count], lines[count:]
        if answers[-1] == "answered":
            self._row_output.close_question(question_id)
        if question_id and not left and answers_question(lines[-1]):
            accepted.pop()  # answers are not added to the history
        for line in accepted:
            self._remember(line)
        self._draft.remove_sent(count)
        if left:
            self._show_left(self._draft.lines_to_show(left, answers[-1]), answers[-1])
        else:
            self.remember_typed(is_sent=True)
            self._empty()
        return True

    def _show_left(self, lines: Sequence[str], answer: Acceptance) -> None:
        self._set_lines(lines, len(lines[-1]))
        if answer == "replace" or (answer == "keep" and is_command(self._buffer.text)):
            # The next key replaces a command that was not understood, so that two are never joined.
            self._remember(self._buffer.text)
            self._select_from(0)

    def _select_from(self, start: int) -> None:
        self._buffer.cursor_position = start
        self._buffer.start_selection()
        assert self._buffer.selection_state is not None
        self._buffer.selection_state.enter_shift_mode()
        self._buffer.cursor_position = len(self._buffer.text)

    def _submit_lines(self, lines: Sequence[str], *, question_id: str) -> list[Acceptance]:
        """Submit lines until one is not accepted. Return what happened to each submitted line.

        The last line may answer the question ``question_id``. One call to trio's thread submits all lines, so that no
        run ends between two of them.
        """
        whole = [self.pastes.whole(line) for line in lines]

        def accept(listener: Listener) -> list[Acceptance]:
            answers: list[Acceptance] = []
            for line in whole[:-1]:
                answers.append(listener.accept(line, again=True))
                if answers[-1] not in _ACCEPTED:
                    return answers
            return [*answers, listener.accept(whole[-1], question_id=question_id)]

        return self.ask(accept) or ["later"]

    def remember_typed(self, *, is_sent: bool = False) -> None:
        """Add the typed text to the history, unless it was sent.

        If an older entry of the history is shown, also add the draft that was typed before.
        """
        if self._buffer.working_index < len(lines := self._buffer._working_lines) - 1:
            self._remember(lines[-1])
        if not is_sent:
            self._remember(self._buffer.text)

    def _remember(self, line: str) -> None:
        history, line = self._buffer.history, self.pastes.whole(line)
        if line.strip() and history.get_strings()[-1:] != [line]:
            history.append_string(line)

    def bindings(self) -> KeyBindingsBase:
        """Return all key bindings: ours, and those of prompt_toolkit that edit the text."""
        edit_by_clusters()
        moving, keys = KeyBindings(), KeyBindings()
        for key, name in _SHELL_KEYS.items():
            moving.add(key)(get_by_name(name))
        moving.add("c-_", save_before=lambda _: False)(lambda event: event.current_buffer.undo())
        editing = has_focus(DEFAULT_BUFFER)
        is_empty = Condition(lambda: not self._buffer.text)

        def answers(key: str) -> Filter:
            return editing & is_empty & Condition(lambda: key in self._row_output.answer_keys)

        def bind(*sequence: Keys | str, to: Callable[[KeyPressEvent], Any], when: Filter = editing) -> None:
            keys.add(*sequence, filter=when)(to)

        bind("enter", to=lambda _: self._enter())
        for key in _REST_OF_WORD:
            bind(key, to=lambda event: self._press_answer(event.data), when=answers(key))
        is_asking = Condition(lambda: bool(self._path_to_attach))
        bind("y", to=lambda _: self._attach_pasted_path(), when=editing & is_asking)
        bind("n", to=lambda _: self._keep_pasted_path(), when=editing & is_asking)
        bind("c-v", to=lambda _: self.ask(lambda listener: listener.paste_image()))
        bind("c-j", to=lambda _: self._newline())
        bind("escape", to=lambda _: self._escape())
        bind("c-c", to=lambda _: self._ctrl_c())
        bind("c-d", to=lambda _: self.ask(lambda listener: listener.leave()), when=editing & is_empty)
        for key in ("up", "c-p"):
            bind(key, to=lambda _: self._up())
        for key in ("down", "c-n"):
            bind(key, to=lambda _: self._move_by_row(1))
        bind("tab", to=lambda _: self._complete())
        bind("s-tab", to=lambda _: self._back_tab())
        bind("c-l", to=lambda _: self._row_output.clear())
        for key in ("c-r", "c-s"):
            bind(key, to=self._search)
        for key in ("c-g", "c-c"):
            bind(key, to=lambda _: self._leave_search(), when=is_searching)
        for key in ("c-u", "c-k", "c-w"):
            bind(key, to=lambda _: self._paste_over(""), when=editing & has_selection)
        bind(Keys.BracketedPaste, to=lambda event: self._paste_over(event.data))
        bind("c-g", to=lambda _: self._open_external_editor())
        bind("c-x", "c-e", to=lambda _: self._open_external_editor())
        bind("c-o", to=lambda _: self._open_pager())
        keys.add("c-z")(lambda _: self._suspend())
        selecting, searching = emacs.load_emacs_shift_selection_bindings(), emacs.load_emacs_search_bindings()
        return merge_key_bindings([load_basic_bindings(), moving, searching, selecting, keys])

    def _enter(self) -> None:
        """Handle Enter: send the lines, but start a new line after a backslash.

        If a completion is selected in the menu, only close the menu.
        """
        if (state := self._buffer.complete_state) is not None and state.complete_index is not None:
            self._buffer.complete_state = None
            self._buffer.start_completion()
            return
        typed = self._buffer.document
        rest, self._rest_of_word = self._rest_of_word, ""
        if rest and (found := re.match(rf"{rest}\b[ ,.;:!]*", typed.text, re.I)):
            self._draft.assign_to("")  # the text behind the word is a new line, since the question is answered
            self._set_text(typed.text[found.end() :])
            if not self._buffer.text:
                return
        if not (typed.text or self.is_ready.is_set()):
            return  # a blank line would send lines of a resumed session before the user has seen them
        if typed.is_cursor_at_the_end and typed.text.endswith("\\"):
            self._buffer.delete_before_cursor()
            self._newline()
        else:
            self._submit()

    def _press_answer(self, key: str) -> None:
        """Insert a key that answers the question on the screen. Send it if no other key follows soon."""
        self._buffer.insert_text(key)
        self._timer = asyncio.get_running_loop().call_later(ANSWER_KEY_PAUSE_S, self._answer_by, key)

    def _answer_by(self, key: str) -> None:
        self._submit()
        if not self._buffer.text:
            self._rest_of_word = _REST_OF_WORD[key]
            asyncio.get_running_loop().call_later(REST_OF_WORD_S, self._forget_rest)

    def _forget_rest(self) -> None:
        if not self._buffer.text:
            self._rest_of_word = ""

    def _newline(self) -> None:
        self._buffer.newline(copy_margin=False)

    def _escape(self) -> None:
        """Close the menu if it is open; otherwise let the listener handle Esc."""
        if self._buffer.complete_state is not None:
            self._buffer.cancel_completion()
        else:
            has_text = bool(self._buffer.text)
            self.ask(lambda listener: listener.on_escape(has_text=has_text))

    def _open_external_editor(self) -> None:
        """Edit the draft in $VISUAL or $EDITOR.

        Blocks this thread: the editor owns the terminal, and output is held until it exits.
        """
        self._row_output.suspend()
        said, text = "", self.text
        try:
            edited = self.external.edit(text, os.environ)
        except UserError as error:
            said = str(error)
        else:
            if edited != text:
                self._buffer.save_to_undo_stack()
                edited = self.pastes.fold_again(edited)
                # prompt_toolkit processes a whole line at each key: 90,000 characters take about a second.
                self._set_text(self.pastes.fold(edited) if len(edited) > MAX_UNFOLDED else edited)
        self._row_output.resume(said)

    def _open_pager(self) -> None:
        """Show the whole session in the user's pager.

        Blocks this thread: the pager owns the terminal, and output is held until it exits.
        """
        rows = self.ask(lambda listener: listener.session_rows())
        if rows is None:
            return
        self._row_output.suspend()
        said = ""
        try:
            self.external.page(rows, os.environ)
        except UserError as error:
            said = str(error)
        self._row_output.resume(said)

    def _ctrl_c(self) -> None:
        has_text = bool(self._buffer.text)
        if self.ask(lambda listener: listener.on_ctrl_c(has_text=has_text)):
            self.discard()

    def discard(self) -> None:
        """Empty the editor, and add its text to the history."""
        self.remember_typed()
        self._empty()
        self._app.invalidate()  # emptying a buffer does not redraw, and no key may have been pressed

    def _up(self) -> None:
        """Return the latest waiting line to an empty editor. Without a waiting line or with text, move one row up."""
        text = None if self._buffer.text else self.ask(lambda listener: listener.take_back())
        if text is None:
            self._move_by_row(-1)
        else:
            self.edit_or_put_above(text)

    def _move_by_row(self, by: Literal[-1, 1]) -> None:
        """Move one row up (-1) or down (1): in an open menu, else in the text, or beyond its ends in the history."""
        buffer, at = self._buffer, None
        if not (buffer.complete_state or self.pastes.has_any(buffer.text) or self._is_from_history):
            at = index_by_row(buffer.text, buffer.cursor_position, self.room, by)
        if at is not None:
            buffer.cursor_position = at
        elif by < 0:
            buffer.auto_up()
        else:
            buffer.auto_down()

    @property
    def sign(self) -> str:
        """The prompt before the text."""
        if path := self._path_to_attach:
            return f"[attach {cut(path, max(screen_size().columns // 2, 1), '')}? y/n] "
        question_id, typed = self._draft.question_id, self._draft.lines(self._buffer.text)[-1]
        target = self.listener.target(typed) if self.listener is not None and not question_id else ""
        return prompt_sign(question_id, cut(target, max(screen_size().columns // 3, 1), ""))

    @property
    def room(self) -> int:
        """The columns that a row of the text may fill beside the prompt."""
        return max(screen_size().columns - columns(self.sign), 1)

    @property
    def _is_from_history(self) -> bool:
        """Whether the text is an unchanged entry of the history, and the cursor is at its end."""
        buffer = self._buffer
        entries = buffer.history.get_strings()
        is_entry = buffer.working_index < len(entries) and buffer.text == entries[buffer.working_index]
        return is_entry and buffer.document.is_cursor_at_the_end

    def _complete(self) -> None:
        """Handle Tab: insert the only completion, or the common prefix of all completions.

        If the menu is open and there is nothing to insert, select the next completion in the menu.
        """
        buffer, state = self._buffer, self._buffer.complete_state
        if state is None:
            found = list(buffer.completer.get_completions(buffer.document, CompleteEvent(completion_requested=True)))
        else:
            found = state.completions
        typed = buffer.document.text_before_cursor
        # Fuzzy matches count only if nothing begins with what was typed.
        found = [each for each in found if each.text.startswith(typed)] or found
        common = get_common_complete_suffix(buffer.document, found)
        if state is not None and (state.complete_index is not None or not common):
            buffer.complete_next()
        elif len(found) == 1:  # also if it changes the typed text
            buffer.apply_completion(found[0])
        else:
            buffer.cancel_completion()
            # Not by ``start_completion``, which does nothing while the completion of the last key is running.
            buffer.insert_text(common)
            buffer.start_completion()

    def _back_tab(self) -> None:
        """Select the previous completion in an open menu, or else switch to the next mode."""
        if self._buffer.complete_state is not None:
            self._buffer.complete_previous()
        else:
            self.ask(lambda listener: listener.next_mode())

    def _search(self, event: KeyPressEvent) -> None:
        self._before_search = self._buffer.working_index, self._buffer.document
        forward = event.key_sequence[0].key == Keys.ControlS
        (search.start_forward_incremental_search if forward else search.start_reverse_incremental_search).call(event)

    def _leave_search(self) -> None:
        """Cancel the history search, and restore the text that the editor contained before the search."""
        stop_search()
        self._buffer.working_index, self._buffer.document = self._before_search

    @contextmanager
    def _edit_under_search(self) -> Iterator[None]:
        """Let the block change the text that the user has typed, even while a history search shows another text."""
        is_searching = self._app.layout.is_searching
        if is_searching:
            self._buffer.working_index, self._buffer.document = self._before_search
        yield
        if is_searching:
            self._before_search = self._buffer.working_index, self._buffer.document

    def _paste_over(self, text: str) -> None:
        if self._buffer.selection_state is not None:
            self._buffer.cut_selection()
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        folded = self.pastes.fold(text)
        self._buffer.insert_text(folded)
        if self.listener is not None and folded == text and not self._draft.question_id:
            path = self.listener.outside_path(text)
            self._pasted_path = (path, text, self._buffer.text) if path else None

    @property
    def _path_to_attach(self) -> str:
        """The path that the user has just pasted, which the next key may attach; empty for none."""
        path, _, text = self._pasted_path or ("", "", "")
        return path if text == self._buffer.text else ""

    def _attach_pasted_path(self) -> None:
        assert self._pasted_path is not None
        (path, pasted, _), self._pasted_path = self._pasted_path, None
        self._buffer.delete_before_cursor(len(pasted))
        self.ask(lambda listener: listener.attach_path(path, pasted))

    def _keep_pasted_path(self) -> None:
        """Let the pasted path stay in the editor as text, and do not offer to attach the file."""
        self._pasted_path = None

    def _suspend(self) -> None:
        self._row_output.suspend()
        with tty.lend_terminal():
            self.ask(lambda _: tty.stop_job())
        self._row_output.resume()


def index_by_row(text: str, at: int, width: int, by: Literal[-1, 1]) -> int | None:
    """Return the index one row above (``by`` is -1) or below (1) the index ``at``; ``None`` if there is no such row.

    The text is wrapped after ``width`` columns, even inside words, as prompt_toolkit wraps it.
    """
    starts, begin = [], 0
    for line in text.split("\n"):
        starts += [begin + start for start in row_starts(line, width)]
        begin += len(line) + 1
    row = bisect_right(starts, at) - 1
    if not 0 <= row + by < len(starts):
        return None
    column = columns(text[starts[row] : at])
    start, next_start = [*starts, begin][row + by : row + by + 2]
    place = start
    while place < next_start - 1 and columns(text[start : place + 1]) <= column:
        place += 1
    return cluster_beside(text, place + 1, -1) if place < len(text) else place
