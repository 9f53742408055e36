"""A chain at a terminal: submits what is typed, shows what happens, and handles keys and signals.

One task shows the chain's events, and waits until they are on the screen before it reads the next. So for a terminal
that is slow, or that nobody reads, the feed joins events and nothing is held up. A line that comes back goes into the
editor, above what is being typed.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

import trio

from chain import events
from chain.chain import CLOSING_S, Chain, Submitted
from chain.config.load import Settings
from chain.errors import UserError
from chain.exit_codes import INTERRUPTED_CODE, LINES_LEFT, SIGTERM_CODE
from chain.lines.parse import Urgency, marked_urgent, parse_line
from chain.threads import Threads
from chain.wording import MAIN
from cli.ending import exit_at_once, exit_soon, let_signals_end
from cli.input.moments import ScheduledLine
from cli.input.sender import NO_ROOM, Outgoing, Sender
from cli.recipients import Recipients, split_address, take_back
from cli.screen import tty
from cli.screen.protocol import Acceptance, Screen
from cli.show.markdown import warm
from cli.show.prompted import PromptRenderer
from cli.show.text import clean, in_rows
from cli.show.toolbar import Toolbar, answers_question
from cli.signals import LEAVING
from cli.slash import TAKEN_BACK, Commands

if TYPE_CHECKING:
    from cli.show.tour import Tour

_THREADS = Threads("imports")

WELCOME = "Type a task, and keep typing while it runs. /help explains the rest."

DOUBLE_PRESS_S = 2.0
"""Two Ctrl-C within this many seconds exit."""

QUIET_S = 0.5
"""How long an exit waits for a cancelled tool before it says that it waits."""

SHOWING_S = 1.0
"""How long the last rows may take to be shown when the program ends: perhaps nobody reads the terminal any more."""


class Interactive:
    """The listener of a terminal, and its tasks."""

    def __init__(
        self,
        chain: Chain,
        settings: Settings,
        screen: Screen,
        renderer: PromptRenderer,
        *,
        model: str,
        ascii: bool,
        tour: Tour | None = None,
    ) -> None:
        """``model`` is the name of the definition that the chain was opened with."""
        self._chain = chain
        self._screen = screen
        self._renderer = renderer
        self._tour = tour
        self._commands = Commands(chain, settings, model=model, has_keys=screen.has_keys)
        self._toolbar = Toolbar(ascii=ascii, inbox_size=chain.inbox_size, has_esc=screen.has_keys)
        self._lock = threading.Lock()
        """Guards the toolbar, which the editor's thread reads."""
        self._recipients = Recipients(chain)
        self._feed = chain.feed()
        self._sender = Sender(chain, lambda line, answer: self._report(answer, line.text, line.to))
        self._run_began = trio.Event()
        self._leaving = trio.Event()
        self._all_shown = trio.Event()
        self._code = 0
        self._was_signalled = False
        self._pressed_at: float | None = None
        self._answered: set[str] = set()
        """The ids of lines that were carried out and answered in one step, so that their receipts say nothing new."""
        self._never_sent: list[str] = []
        self._came_back: list[str] = []
        """The lines that came back when the editor was gone."""
        self._tasks: trio.Nursery | None = None

    async def run(
        self,
        signals: AsyncIterator[int],
        query: str | None,
        scheduled: Sequence[ScheduledLine] = (),
        notes: Sequence[str] = (),
    ) -> int:
        """Serve the user until they leave; returns the exit code.

        Some of the ``signals`` may have come before this was called.
        """
        async with trio.open_nursery() as nursery:
            self._tasks = nursery
            nursery.start_soon(self._show)
            nursery.start_soon(self._refresh_each_second)
            nursery.start_soon(self._prepare)
            await nursery.start(self._sender.run)
            nursery.start_soon(self._watch_signals, signals)
            for note in notes:
                self._feed.put(events.Notice(message=note))
            if query is not None and not self._report(self._chain.start(query), query):
                self._screen.give_back(query)
            for line in scheduled:
                self._sender.schedule(Outgoing(line.moment, line.text, line.written, to=line.to))
            self._screen.listen(self)
            if self._tour is None:
                self._print(WELCOME)
            with self._chain.answering():
                await self._leaving.wait()
                # Within, since what is asked now is withdrawn, not left unanswered.
                code = await self._finish()
            nursery.cancel_scope.cancel()
        return code

    # ------------------------------------------------------------------------------------------ what the user does

    def accept(self, text: str, *, urgency: Urgency, at: str = "") -> Acceptance:
        """Submit a line. One without room may be sent again later as it is; one refused otherwise must be corrected.

        One that was begun at a question answers it, but for those that are stronger than an answer or have an address.
        """
        if self._leaving.is_set():
            return "later"
        if at and urgency == "next" and answers_question(text):
            return self._answer(at, text)
        to, line = split_address(text)
        if to and urgency == "urgent":
            line = marked_urgent(line)
        had_room = self._chain.has_room(line, urgency=urgency, to=to)
        answer = self._chain.submit(line, urgency=urgency, to=to)
        if self._report(answer, text, to):
            return "accepted"
        # A command, or a line that is not well-formed, is not refused for want of room.
        return "keep" if had_room or answer.what == "local" or parse_line(line).problem else "later"

    def _answer(self, question: str, text: str) -> Acceptance:
        if not text.strip():
            return "accepted"
        if self._chain.answer(question, text).what == "answered":
            return "answered"
        return "keep" if self._chain.open_question == question else "gone"

    def escape(self) -> None:
        """Interrupt the run, if there is one."""
        self._chain.interrupt()

    def ctrl_c(self, *, has_text: bool) -> bool:
        """Interrupt the run, else clear the line, else say how to exit; pressed twice, exit."""
        if self._leaving.is_set():
            self._exit_at_once(INTERRUPTED_CODE)
        now = trio.current_time()
        if self._pressed_at is not None and now - self._pressed_at <= DOUBLE_PRESS_S:
            self._exit_with(INTERRUPTED_CODE)
            return False
        was_running = self._chain.interrupt()
        if has_text and not was_running:
            return True
        self._pressed_at = now
        if not was_running:
            self._print("Press Ctrl-C again to exit, or Ctrl-D.")
        return False

    def leave(self) -> None:
        """Exit."""
        self._exit_with(0)

    def hang_up(self) -> None:
        """Exit, as after SIGHUP: the terminal is gone."""
        self._exit_with(SIGTERM_CODE)

    def take_back(self) -> str | None:
        """Drop the latest waiting line and return its text."""
        id = self._chain.last_waiting()
        text = None
        if id is not None:
            with suppress(UserError):
                text = take_back(self._chain, id, TAKEN_BACK)
        self._update_queue()
        return text

    @property
    def awaits_input(self) -> bool:
        """Whether nothing happens until the user types."""
        return not (self._leaving.is_set() or self._chain.is_running or self._toolbar.is_running)

    def completions(self, text: str) -> Sequence[str]:
        """The completions of the text before the cursor."""
        return self._commands.completions(text)

    def toolbar(self, width: int, typed: str, at: str, others: int = 0) -> str:
        """The row below the prompt."""
        to = self._recipients.of(typed)
        if to.is_addressed:
            at, others = "", 0  # it answers nothing, and waits behind nothing
        with self._lock:
            return self._toolbar.row(
                width=width,
                now=time.time(),
                waiting=self._recipients.waiting,
                typed=to.text,
                at=at,
                target=to.agent,
                is_addressed=to.is_addressed,
                ahead=to.waiting,
                others=others,
                holds_rows=self._renderer.holds_rows,
            )

    def _report(self, answer: Submitted, text: str, to: str = "") -> bool:
        """Show the chain's answer to what was typed for the agent ``to``, unless events do. Whether it was accepted."""
        self._update_queue()
        match answer.what:
            case "refused":
                return False
            case "local":
                return self._run_command(text)
            case "stopping":
                agent = self._chain.target(to=to) if to else MAIN
                with self._lock:
                    stopping = self._toolbar.stopping_of(agent, time.time())
                self._print(stopping)
            case "handled":
                self._answered.add(answer.id)
                is_status = split_address(text)[1].strip().casefold() == "status"
                status = self._commands.run("/status", width=self._screen.width) if is_status else None
                self._answer_command(text, answer.message if status is None else status.text)
            case "nothing" | "returned" if answer.message:
                self._answer_command(text, answer.message)
            case _:
                pass
        return True

    def _run_command(self, text: str) -> bool:
        model = self._chain.model_name
        answer = self._commands.run(text, width=self._screen.width)
        if self._chain.model_name != model and self._tasks is not None:
            self._tasks.start_soon(self._chain.prepare)
        self._update_queue()
        rows = [*self._renderer.preview(answer.preview, whole=True), *self._renderer.work_of(answer.agent)]
        self._answer_command(text, answer.text, rows)
        if answer.edit is not None:
            self._screen.edit(answer.edit)
        if answer.quit:
            self.leave()
        return not answer.keeps

    def _answer_command(self, command: str, text: str, rows: Sequence[str] = ()) -> None:
        """Show what was typed, and below it the answer, if there is one."""
        if text.strip() or rows:
            self._print(text, rows, command=command)

    def _print(self, text: str, rows: Sequence[str] = (), *, command: str = "") -> None:
        """Show a text, and rows below it, after all events that came before it."""
        self._show_events(self._feed.take())
        self._screen.show(self._renderer.answer(command, text, rows), self._renderer.tail)

    def _update_queue(self) -> None:
        self._recipients.update()
        self._screen.refresh()

    def _exit_with(self, code: int) -> None:
        if self._leaving.is_set():
            return
        self._code = code
        self._sender.close()
        self._leaving.set()

    # ------------------------------------------------------------------------------------------------- the tasks

    async def _show(self) -> None:
        while batch := await self._feed.batch():
            self._show_events(batch)
            await self._screen.shown()
        self._all_shown.set()

    def _show_events(self, batch: Sequence[events.Event]) -> None:
        rows = self._renderer.resize(self._screen.width)
        settled = {event.id for event in batch if isinstance(event, events.Answer)}
        with self._lock:
            for event in batch:
                self._toolbar.update(event)
            question = self._toolbar.question
        for event in batch:
            if isinstance(event, events.Receipt) and event.id in self._answered:
                self._answered.remove(event.id)
                continue
            rows += self._renderer.lines(event)
            if isinstance(event, events.Question) and event.id not in settled:
                rows += self._renderer.hint(event)
            if self._tour is not None:
                rows += self._renderer.beside(self._tour.comments(event))
        self._screen.show(rows, self._renderer.tail)
        self._screen.ask(question)
        self._update_queue()
        for event in batch:
            if isinstance(event, events.Receipt) and event.state == "returned":
                self._give_back(event.text)
            elif isinstance(event, events.Receipt) and event.state == "unsent":
                self._never_sent.append(event.text)
        if self._toolbar.is_running:
            self._run_began.set()

    def _give_back(self, text: str) -> None:
        """Put a line that came back into the editor."""
        if self._leaving.is_set():
            self._came_back.append(text)
        else:
            self._screen.give_back(text)

    async def _prepare(self) -> None:
        """Import what the first reply needs, one thing after the other: two at once would delay keys."""
        await _THREADS.run(warm, abandon_on_cancel=True)
        await self._chain.prepare()

    async def _refresh_each_second(self) -> None:
        """Redraw the toolbar every second while something runs."""
        while True:
            await self._run_began.wait()
            self._run_began = trio.Event()
            while self._toolbar.is_running:
                await trio.sleep(1)
                self._screen.refresh()

    async def _watch_signals(self, signals: AsyncIterator[int]) -> None:
        async for number in signals:
            match number:
                case signal.SIGWINCH:
                    self._screen.resized()
                    self._show_events(self._feed.take())
                case signal.SIGINT:
                    self.ctrl_c(has_text=False)
                case _ if self._was_signalled:
                    self._exit_at_once(SIGTERM_CODE)
                case _:
                    self._was_signalled = True
                    self._exit_with(SIGTERM_CODE)

    def _exit_at_once(self, code: int) -> NoReturn:
        """End the process: something does not end. What was acknowledged is on the disk, so nothing is lost."""
        # The editor may not end either, so its rows are erased here.
        tty.write_briefly(b"\r\x1b[J")
        tty.restore()
        tty.write_briefly("".join(f"{row}\n" for row in self._session).encode())
        exit_at_once(code)

    async def _finish(self) -> int:
        """Interrupt what runs, show how it ended, and return the exit code."""
        returned = self._returned
        self._sender.discard(NO_ROOM)
        self._chain.interrupt()
        with trio.move_on_after(QUIET_S) as quiet:
            await self._chain.wait_idle()
        if quiet.cancelled_caught:
            self._print("Waiting for the running tool to end; Ctrl-C exits at once.")
            with trio.move_on_after(CLOSING_S):
                await self._chain.wait_idle()
        self._feed.close()
        with trio.move_on_after(SHOWING_S):
            await self._all_shown.wait()
        left = self._returned > returned or bool(self._never_sent)
        return self._code or (LINES_LEFT if left else 0)

    async def close(self) -> None:
        """Restore the terminal, and show what was not sent and where the session is; after any ending."""
        self._leaving.set()
        with trio.CancelScope(shield=True):
            typed = await self._screen.close()
        exit_soon(self._code or 1)
        # Nothing has to be shut down in order any more: a tool that does not end must not keep the process.
        let_signals_end(*LEAVING)
        left = [("Came back:", text) for text in self._came_back]
        left += [("Not sent:", text) for text in [*self._never_sent, *filter(str.strip, [typed])]]
        rows = [f"{label} {text.strip()}".replace("\n", "\n  ") for label, text in left]
        self._screen.show([clean(row) for row in (*rows, *self._session)])

    @property
    def _session(self) -> tuple[str, ...]:
        """Where the session is, if it is kept; the path has a row of its own, to be copied."""
        if self._tour is not None:
            return tuple(in_rows(self._tour.farewell, self._screen.width))
        return f"Session {self._chain.session_id}, recorded in", str(self._chain.journal_path)

    @property
    def _returned(self) -> int:
        return sum(receipt.state == "returned" for receipt in self._chain.receipts)
