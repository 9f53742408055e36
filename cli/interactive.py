"""A chain at a terminal: what is typed goes in, what happens scrolls past, and keys and signals are understood.

One task shows the chain's events and waits until they are on the screen before it takes the next, so that a terminal
that is slow, or is not read, has them joined in the feed and holds nothing up. A line that comes back goes into the
editor, above what is being typed.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence

import trio

from chain import events
from chain.chain import CLOSING_S, Chain, Submitted
from chain.config import Settings
from chain.endings import INTERRUPTED_CODE, LINES_LEFT, SIGTERM_CODE
from chain.errors import UserError
from chain.lines import is_stop
from cli import tty
from cli.commands import TAKEN_BACK, Commands
from cli.flow import clean
from cli.keyboard import Screen
from cli.moments import Say
from cli.render import LiveRenderer
from cli.sender import Outgoing, Sender
from cli.toolbar import Toolbar

WELCOME = "Type a task, and go on typing while it runs. /help tells the rest."

TWICE_S = 2.0
"""Two Ctrl-C within so many seconds exit."""

SHOWING_S = 1.0
"""How long the last rows may take to be shown when the program ends: the terminal may not be read any more."""


class Interactive:
    """The listener of a terminal, and the tasks around it."""

    def __init__(
        self, chain: Chain, settings: Settings, screen: Screen, renderer: LiveRenderer, *, model: str, ascii: bool
    ) -> None:
        self._chain = chain
        self._screen = screen
        self._renderer = renderer
        self._commands = Commands(chain, settings, model=model)
        self._toolbar = Toolbar(ascii=ascii, inbox_size=chain.inbox_size)
        self._lock = threading.Lock()
        """The toolbar is read in the editor's thread."""
        self._waiting = 0
        self._feed = chain.feed()
        self._sender = Sender(chain, self._on_sent)
        self._runs = trio.Event()
        self._leaving = trio.Event()
        self._told = trio.Event()
        self._code = 0
        self._pressed_at: float | None = None

    async def run(self, query: str | None, says: Sequence[Say] = (), notes: Sequence[str] = ()) -> int:
        """Serve the user until they leave; returns the exit code."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._show)
            nursery.start_soon(self._tick)
            nursery.start_soon(self._chain.prepare)
            await nursery.start(self._sender.run)
            await nursery.start(self._watch_signals)
            for note in notes:
                self._feed.put(events.Notice(message=note))
            if query is not None:
                self._tell(self._chain.start(query), query)
            for say in says:
                self._sender.take(Outgoing(say.moment, say.text, say.written))
            self._screen.listen(self)
            self._say(WELCOME)
            await self._leaving.wait()
            code = await self._leave()
            nursery.cancel_scope.cancel()
        return code

    # ------------------------------------------------------------------------------------------ what the user does

    def accept(self, text: str, *, urgent: bool) -> bool:
        """Take a line. ``False``: its text stays in the editor."""
        if self._leaving.is_set():
            return False
        return self._tell(self._chain.submit(text, urgent=urgent), text)

    def escape(self) -> None:
        """Interrupt the run, if there is one."""
        self._chain.interrupt()

    def ctrl_c(self, *, has_text: bool) -> bool:
        """Interrupt the run, else clear the line, else say how to exit; twice exits."""
        now = trio.current_time()
        if self._pressed_at is not None and now - self._pressed_at <= TWICE_S:
            self._leave_with(INTERRUPTED_CODE)
            return False
        was_running = self._chain.interrupt()
        if has_text and not was_running:
            return True
        self._pressed_at = now
        if not was_running:
            self._say("Press Ctrl-C again to exit, or Ctrl-D.")
        return False

    def leave(self) -> None:
        """Exit."""
        self._leave_with(0)

    def take_back(self) -> str | None:
        """Drop the latest waiting line and return its text."""
        id = self._chain.last_waiting()
        try:
            text = None if id is None else self._chain.drop(id, TAKEN_BACK)
        except UserError:
            text = None
        self._count()
        return text

    def redrawn(self) -> None:
        """Say where the last trace is."""
        path = self._chain.trace_path
        self._say(f"The last trace: {path}" if path else "No trace yet.")

    def completions(self, text: str) -> Sequence[str]:
        """What could stand for the text before the cursor."""
        return self._commands.completions(text)

    def toolbar(self, width: int, typed: str) -> str:
        """The row below the prompt."""
        with self._lock:
            return self._toolbar.row(width=width, now=time.time(), waiting=self._waiting, typed=typed)

    def _tell(self, answer: Submitted, text: str) -> bool:
        """Tell what became of a line at once; most of it the events say. Whether the line was taken."""
        self._count()
        match answer.what:
            case "refused":
                return False
            case "local":
                return self._obey(text)
            case "stopping":
                with self._lock:
                    self._say(self._toolbar.stopping(time.time()))
            case "handled":
                self._say(self._commands.run("/status").text if text.strip().casefold() == "status" else answer.message)
            case "nothing" if answer.message:
                self._say(answer.message)
            case _:
                pass
        return True

    def _on_sent(self, line: Outgoing, answer: Submitted) -> None:
        self._tell(answer, line.text)

    def _obey(self, text: str) -> bool:
        answer = self._commands.run(text)
        self._count()
        self._say(answer.text)
        if answer.edit is not None:
            self._screen.give_back(answer.edit)
        if answer.quit:
            self.leave()
        return not answer.keeps

    def _say(self, text: str) -> None:
        rows = clean(text).split("\n") if text else []
        self._screen.show(rows, self._renderer.tail)

    def _count(self) -> None:
        self._waiting = len(self._chain.waiting)
        self._screen.refresh()

    def _leave_with(self, code: int) -> None:
        if self._leaving.is_set():
            return
        self._code = code
        self._sender.close()
        self._leaving.set()

    # ------------------------------------------------------------------------------------------------- the tasks

    async def _show(self) -> None:
        while batch := await self._feed.batch():
            self._renderer.width = max(self._screen.width, 20)
            rows = []
            with self._lock:
                for event in batch:
                    self._toolbar.take(event)
                    rows += self._renderer.lines(event)
            self._screen.show(rows, self._renderer.tail)
            self._count()
            self._give_back(batch)
            if self._toolbar.is_running:
                self._runs.set()
            await self._screen.shown()
        self._told.set()

    def _give_back(self, batch: Sequence[events.Event]) -> None:
        """Put the lines that came back into the editor; once the user leaves, the rows above are where they end."""
        back = [e.text for e in batch if isinstance(e, events.Receipt) and e.state == "returned"]
        if back and not self._leaving.is_set():
            self._screen.give_back("\n".join(back))

    async def _tick(self) -> None:
        """Let the toolbar's seconds go on while something runs."""
        while True:
            await self._runs.wait()
            self._runs = trio.Event()
            while self._toolbar.is_running:
                await trio.sleep(1)
                self._screen.refresh()

    async def _watch_signals(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH)
        with trio.open_signal_receiver(*(n for n in wanted if signal.getsignal(n) is not signal.SIG_IGN)) as signals:
            task_status.started()
            async for number in signals:
                match number:
                    case signal.SIGWINCH:
                        self._screen.resized()
                    case signal.SIGINT if not self._leaving.is_set():
                        self.ctrl_c(has_text=False)
                    case _ if self._leaving.is_set():
                        # Something does not let go. All that was acknowledged is on the disk, so nothing is lost.
                        tty.restore()
                        os._exit(self._code or INTERRUPTED_CODE)
                    case _:
                        self._leave_with(SIGTERM_CODE)

    async def _leave(self) -> int:
        """End what runs, show how it ended, and leave the terminal as it was."""
        returned = self._returned
        self._chain.interrupt()
        with trio.move_on_after(CLOSING_S):
            await self._chain.wait_idle()
        self._feed.close()
        with trio.move_on_after(SHOWING_S):
            await self._told.wait()
        typed = await self._screen.close()
        unsent = [*self._sender.unsent, *filter(str.strip, [typed])]
        for text in unsent:
            self._say(f"Not sent: {text}")
        self._say(f"Session {self._chain.session_id}, on record in {self._chain.journal_path}")
        left = self._returned > returned or bool(self._sender.unsent)
        return self._code or (LINES_LEFT if left else 0)

    @property
    def _returned(self) -> int:
        return sum(receipt.state == "returned" and not is_stop(receipt.text) for receipt in self._chain.receipts)
