"""The program at a terminal: its sessions, keys and signals, and what it restores and prints when it exits.

A switch to another session opens the new session first, and continues the current one if that fails. During the switch
typed lines stay in the editor, and scripted lines are paused.
"""

from __future__ import annotations

import math
import os
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from functools import partial
from typing import NoReturn

import trio

from chain.app import sessions
from chain.app.open import open_chain
from chain.app.session_context import session_context
from chain.chain import Chain
from chain.concurrency.threads import without_collector
from chain.concurrency.wakeup import Wakeup
from chain.config.commands import find_commands
from chain.errors import JournalError, UserError
from chain.session.exit_codes import INTERRUPTED_CODE, LINES_LEFT, SIGTERM_CODE
from chain.text.plain import sanitize
from chain.text.wording import pluralize
from cli.door.server import side_door
from cli.ending import LEAVING, exit_at_once, exit_on_signals, exit_soon
from cli.input.sender import NO_ROOM, Sender
from cli.screen import tty
from cli.screen.protocol import Acceptance, Choice, Screen
from cli.show.session_list import resumption_rows
from cli.show.text_rows import wrap_text
from cli.show.toolbar import ToolbarPart
from cli.terminal.alerts import Alerts
from cli.terminal.chains import OpenSessions
from cli.terminal.display import Display
from cli.terminal.invocation import Invocation, TerminalStyle
from cli.terminal.slash import CommandAnswer, Commands
from cli.terminal.terminal_session import TerminalSession, workspace_label
from cli.terminal.whole_session import whole_session_rows

OFFLINE = "offline"
"""The built-in model, which needs no key."""

WELCOME = "Type a task, and keep typing while it runs. /help explains the rest."

DOUBLE_PRESS_S = 2.0
"""Seconds between two presses that count as a double press: of Ctrl-C to exit, of Esc to list the runs to undo."""


async def serve(screen: Screen, signals: AsyncIterator[int], style: TerminalStyle, invocation: Invocation) -> int:
    """Open a chain for a screen that is already shown, serve its user, and return the exit code.

    Use the offline model if the configured model has no key. Raise an exception group that contains a ``UserError`` if
    the chain cannot be opened.
    """
    settings, place, state = invocation.settings, invocation.place, invocation.state
    name, notes = settings.chain().model, [*place.notes, *invocation.servers.notes]
    notes += [str(settings.passed_over)] if settings.passed_over else []
    definition = settings.model(name)
    if definition.missing_key:
        notes.append(f"no API key: the {OFFLINE} model answers; set {definition.missing_key} for {name}")
        name = OFFLINE
    opens = partial(
        open_chain,
        settings,
        workspace=place.workspace,
        state=state,
        store=_store_of(invocation),
        tools=tuple(invocation.tools),
        interactive=True,
        traces=invocation.traces,
        session_context=session_context if invocation.tour is None else None,
        instructions=invocation.tour is None,
        servers=invocation.servers.allowed,
        add_dirs=invocation.add_dirs,
    )

    def door(chain: Chain) -> AbstractAsyncContextManager[str]:
        # Clients find a chain by its stored session.
        has_door = invocation.tour is None and invocation.is_kept
        return side_door(chain, state, os.environ) if has_door else nullcontext("")

    async with trio.open_nursery() as nursery:
        open_sessions = OpenSessions(nursery, settings, opens, door)
        with without_collector():  # a garbage collection would delay a key by 30 ms
            chain = await open_sessions.open(name, resume=place.resume, mode=invocation.mode)
        program = _Program(open_sessions, chain, name, screen, style, invocation)
        try:
            code = await program.run(signals, notes)
        finally:
            await program.close()
            await open_sessions.close()
    return code


def _store_of(invocation: Invocation) -> sessions.Store:
    return invocation.store or sessions.open_store(invocation.state, "")


class _Program:
    """The ``Listener`` of the screen and the ``SessionOwner`` of the session in use."""

    def __init__(
        self,
        open_sessions: OpenSessions,
        chain: Chain,
        model: str,
        screen: Screen,
        style: TerminalStyle,
        invocation: Invocation,
    ) -> None:
        """Create the program for its first ``chain``, which was opened with the model named ``model``."""
        self._open_sessions = open_sessions
        self._screen = screen
        alerts = Alerts() if invocation.settings.notify == "bell" else None
        self._display = Display(screen, style, invocation.tour, alerts)
        self._invocation = invocation
        self._session = self._show(chain, model)
        self._used_ids = [chain.session_id]
        """The ids of the sessions that were in use, the current one last."""
        self._sender = Sender(chain, lambda line, answer: self._session.report(answer, line.text, line.to))
        self._requested: tuple[str, CommandAnswer] | None = None
        """The command that requested another session, until the switch has succeeded or failed."""
        self._switching = trio.CancelScope()
        self._ready = Wakeup()
        self._is_leaving = False
        self._wakeup = Wakeup()
        """Set when the user exits or requests another session."""
        self._code = 0
        self._has_finished = False
        self._was_signalled = False
        self._interrupted_at = self._hinted_at = -math.inf
        """The time of the last Ctrl-C that interrupted a run, and the time of the last hint that Ctrl-C exits."""
        self._escaped_at = -math.inf
        """The time of an Esc at an empty prompt with no run to interrupt, which may be the first of a double press."""
        self._unsent: list[str] = []

    async def run(self, signals: AsyncIterator[int], notes: Sequence[str] = ()) -> int:
        """Show the ``notes``, serve the user until they leave, and return the exit code."""
        async with trio.open_nursery() as nursery:
            self._tasks = nursery
            nursery.start_soon(self._session.run)
            await nursery.start(self._sender.run)
            nursery.start_soon(self._watch_signals, signals)
            self._session.notify(notes)
            if self._invocation.query is not None:
                self._session.start(self._invocation.query)
            for line in self._invocation.scheduled:
                self._sender.schedule(line)
            self._screen.listen(self)
            if self._invocation.tour is None:
                self._screen.name_window(f"chain: {workspace_label(self._session.chain)}")
            if self._invocation.tour is None:
                self._session.welcome(WELCOME)
            await self._serve_session_switches()
            self._code = await self._finish()
            self._has_finished = True
            nursery.cancel_scope.cancel()
        return self._code

    def _show(self, chain: Chain, model: str) -> TerminalSession:
        asked = self._invocation
        commands = Commands(
            chain,
            asked.settings,
            model=model,
            screen=self._screen,
            store=_store_of(asked),
            find_custom=partial(find_commands, asked.settings, chain.workspace, asked.state),
        )
        session = TerminalSession(chain, commands, self, self._display)
        session.notify([*self._open_sessions.notes(chain), *commands.custom.found.faults])
        return session

    def accept(self, text: str, *, question_id: str = "", again: bool = False) -> Acceptance:
        # A key pressed after a line does not count as the second press.
        self._interrupted_at = self._hinted_at = self._escaped_at = -math.inf
        if self._is_leaving or self._requested is not None:
            return "later"
        return self._session.accept(text, question_id=question_id, again=again)

    async def wait_ready(self) -> None:
        while self._requested is not None:
            await self._ready.wait()

    def on_escape(self, *, has_text: bool) -> None:
        """Interrupt the run. If no run is active and the prompt is empty, a double Esc lists the runs to undo."""
        now, before, self._escaped_at = trio.current_time(), self._escaped_at, -math.inf
        if self._session.chain.interrupt() or has_text or self._is_leaving:
            return
        if now - before <= DOUBLE_PRESS_S:
            self._session.offer_undo()
        else:
            self._escaped_at = now

    def on_ctrl_c(self, *, has_text: bool) -> bool:
        """Interrupt the run. If no run is active, clear the line, or if the line is empty, show how to exit.

        A second Ctrl-C soon after this hint exits. Return whether the caller must clear the line.
        """
        if self._is_leaving:
            self._exit_at_once(INTERRUPTED_CODE)
        now = trio.current_time()
        if now - self._hinted_at <= DOUBLE_PRESS_S:
            self._exit_with(INTERRUPTED_CODE)
            return False
        was_running, is_second = self._session.chain.interrupt(), now - self._interrupted_at <= DOUBLE_PRESS_S
        if not is_second and was_running:
            self._interrupted_at = now
        elif not is_second and has_text:
            return True
        else:
            self._hinted_at = now
            self._session.print("Press Ctrl-C again to exit, or Ctrl-D.")
        return False

    def next_mode(self) -> None:
        if not self._is_leaving and self._requested is None:
            self._session.next_mode()

    def leave(self) -> None:
        self._exit_with(0)

    def hang_up(self) -> None:
        self._exit_with(SIGTERM_CODE)

    def paste_image(self) -> None:
        self._session.paste_image()

    def outside_path(self, pasted: str) -> str:
        return self._session.outside_path(pasted)

    def attach_path(self, path: str, pasted: str) -> None:
        self._session.attach_path(path, pasted)

    def take_back(self) -> str | None:
        return self._session.take_back()

    def session_rows(self) -> Iterator[str]:
        store, session = _store_of(self._invocation), self._session.chain.session_id
        return whole_session_rows(store, session, self._display.style, self._screen.width)

    @property
    def awaits_input(self) -> bool:
        return not (self._is_leaving or self._requested is not None or self._session.is_running)

    def completions(self, text: str) -> Sequence[str]:
        return self._session.commands.completions(text)

    def menu(self, text: str) -> Sequence[Choice]:
        return self._session.commands.menu(text)

    def target(self, typed: str) -> str:
        return self._session.target(typed)

    def toolbar(self, width: int, typed: str, question_id: str, lines_before: int, keys: str) -> Sequence[ToolbarPart]:
        return self._session.toolbar(width, typed, question_id, lines_before, keys)

    def give_back(self, text: str) -> None:
        self._screen.give_back(text)

    def mark_unsent(self, text: str) -> None:
        self._unsent.append(text)

    def carry_out(self, command: str, answer: CommandAnswer) -> None:
        if answer.edit is not None:
            self._screen.edit(answer.edit)
        if answer.copies:
            self._screen.copy(answer.copies)
        if answer.quit:
            self.leave()
        if answer.opening is not None:
            self._requested = (command, answer)
            # No run may start in the session that is about to be closed.
            self._sender.pause()
            self._wakeup.set()

    async def _serve_session_switches(self) -> None:
        while True:
            await self._wakeup.wait()
            if self._requested is not None and not self._is_leaving:
                await self._switch(*self._requested)
            self._requested = None
            self._ready.set()
            if self._is_leaving:
                return
            self._screen.refresh()

    async def _switch(self, command: str, answer: CommandAnswer) -> None:
        """Switch to the session ``answer.opening``. If it cannot be opened, continue with the current session."""
        before, opening, chain = self._session, answer.opening, None
        assert opening is not None
        model = before.commands.model
        mode = None if opening.resume else before.chain.mode  # a new conversation must not change what is allowed
        with trio.CancelScope() as self._switching:
            try:
                chain = await self._open_sessions.open(model, plan=opening.plan, resume=opening.resume, mode=mode)
            except UserError as error:
                before.print(sanitize(str(error)), command=command)
            else:
                if before.chain.effort and not opening.resume:
                    with suppress(UserError, JournalError):  # the default effort is good enough
                        chain.use_effort(before.chain.effort)
                await self._open_sessions.close(before.chain)
        if chain is None:
            self._sender.resume(before.chain)
            return
        before.end()
        self._session = self._show(chain, model)
        self._used_ids = [*(id for id in self._used_ids if id != chain.session_id), chain.session_id]
        self._tasks.start_soon(self._session.run)
        self._session.welcome(answer.text, command=command)
        self._sender.resume(chain)

    async def _watch_signals(self, signals: AsyncIterator[int]) -> None:
        async for number in signals:
            match number:
                case signal.SIGWINCH | signal.SIGCONT:
                    self._screen.redraw()
                    self._session.show_rest()
                    if number == signal.SIGCONT:
                        self._session.refresh_branch()
                case signal.SIGINT:
                    # Also a Ctrl-C that was pressed while the editor waited for this thread.
                    if self.on_ctrl_c(has_text=bool(self._screen.text)):
                        self._screen.discard_text()
                case _ if self._was_signalled:
                    self._exit_at_once(SIGTERM_CODE)
                case _:
                    self._was_signalled = True
                    self._exit_with(SIGTERM_CODE)

    def _exit_with(self, code: int) -> None:
        if self._is_leaving:
            return
        self._code = code
        self._is_leaving = True
        self._sender.close()
        self._switching.cancel()
        self._wakeup.set()

    def _exit_at_once(self, code: int) -> NoReturn:
        """End the process even if a task hangs. Acknowledged lines are on the disk, so nothing is lost."""
        self._session.chain.record_draft(self._screen.text)
        # The editor may hang too, so its rows are erased here.
        tty.write_briefly(b"\r\x1b[J" if self._screen.has_keys else b"\n")
        tty.restore()
        tty.write_briefly("".join(f"{row}\n" for row in self._farewell).encode())
        exit_at_once(code)

    async def _finish(self) -> int:
        self._sender.discard(NO_ROOM)
        await self._session.finish()
        left = self._unsent or any(accepted.is_own for accepted in self._session.chain.lines.waiting)
        return self._code or (LINES_LEFT if left else 0)

    async def close(self) -> None:
        """Restore the terminal, store the draft, and print the unsent lines and how to resume the sessions."""
        self._is_leaving = True
        self._session.chain.leave()
        # Restore the terminal however the program ended; ``Screen.close`` has its own timeout.
        with trio.CancelScope(shield=True):
            await self._screen.close()
        self._session.chain.record_draft(typed := self._screen.text)
        exit_soon(self._code if self._has_finished else self._code or 1)
        # From here on signals kill the process, so that a hanging tool cannot keep it alive.
        exit_on_signals(*LEAVING)
        left = [*self._unsent, *filter(str.strip, [typed])]
        rows = [f"Not sent: {text.strip()}".replace("\n", "\n  ") for text in left]
        waiting = self._session.chain.lines.waiting
        jobs = sum(accepted.line.kind == "job" for accepted in waiting)
        for count, what in ((len(waiting) - jobs, "line"), (jobs, "job end")):
            if count:
                rows.append(f"{pluralize(count, what)} {'stays' if count == 1 else 'stay'} queued in the session.")
        self._screen.show([sanitize(row) for row in (*rows, *self._farewell)])

    @property
    def _farewell(self) -> list[str]:
        """The rows that say how to resume the stored sessions of this program, the latest session last."""
        if (tour := self._invocation.tour) is not None:
            return wrap_text(tour.farewell, self._screen.width)
        if not self._invocation.is_kept:
            return []
        return [row for id in self._used_ids for row in resumption_rows(id, self._screen.width)]
