"""A chain at a terminal: what is typed goes in, what happens scrolls past, and keys and signals are understood.

One task shows the chain's events and waits until they are on the screen before it takes the next, so that a terminal
that is slow, or is not read, has them joined in the feed and holds nothing up. A line that comes back goes into the
editor, above what is being typed.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import trio

from chain import events
from chain.app import build_model, open_chain
from chain.chain import CLOSING_S, Chain, Submitted
from chain.config.load import Settings
from chain.errors import UserError
from chain.exit_codes import INTERRUPTED_CODE, LINES_LEFT, SIGTERM_CODE
from chain.lines.parse import is_stop
from cli.input.moments import Say
from cli.input.sender import NO_ROOM, Outgoing, Sender
from cli.screen import tty
from cli.screen.protocol import Screen, Taken
from cli.show.events import LiveRenderer
from cli.show.text import Flow, clean
from cli.show.toolbar import Toolbar
from cli.signals import LEAVING
from cli.slash import TAKEN_BACK, Commands

if TYPE_CHECKING:
    from chain import Model, Tool

OFFLINE = "offline"
"""The shipped model that needs no key."""

WELCOME = "Type a task, and go on typing while it runs. /help tells the rest."

TWICE_S = 2.0
"""Two Ctrl-C within so many seconds exit."""

PATIENCE_S = 0.5
"""How long an exit waits for a cancelled tool before it says so."""

LAST_S = 10.0
"""How long the process may take to end after its last words; a tool that never lets go would keep it for ever."""

SHOWING_S = 1.0
"""How long the last rows may take to be shown when the program ends: the terminal may not be read any more."""


async def serve(
    screen: Screen,
    signals: AsyncIterator[int],
    settings: Settings,
    *,
    workspace: Path,
    state: Path,
    tools: Sequence[Tool] = (),
    traces: Path | None = None,
    query: str | None = None,
    says: Sequence[Say] = (),
    color: bool = True,
    ascii: bool = False,
) -> int:
    """Open a chain for a screen that is up, serve its user until they leave, and return the exit code.

    Without a key for the configured model the one that needs none answers. Raises ``UserError``.
    """
    name, notes = settings.chain().model, list[str]()
    definition = settings.model(name)
    model: Model | None = None
    if definition.lacks_key:
        notes.append(f"no API key: the {OFFLINE} model answers; set {definition.key_variable} for {name}")
        name, model = OFFLINE, build_model(settings.model(OFFLINE))
    renderer = LiveRenderer(color=color, ascii=ascii, width=screen.width)
    async with open_chain(
        settings, workspace=workspace, state=state, tools=tools, model=model, interactive=True, traces=traces
    ) as chain:
        # What is there by now stays. A collection that walks through all of it would hold up a key for 30 ms.
        gc.freeze()
        user = Interactive(chain, settings, screen, renderer, model=name, ascii=ascii)
        try:
            return await user.run(signals, query, says, notes)
        finally:
            await user.say_goodbye()


class Interactive:
    """The listener of a terminal, and the tasks around it."""

    def __init__(
        self, chain: Chain, settings: Settings, screen: Screen, renderer: LiveRenderer, *, model: str, ascii: bool
    ) -> None:
        """``model`` is the name of the definition that the chain was opened with."""
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
        self._was_signalled = False
        self._pressed_at: float | None = None
        self._urgent: set[str] = set()
        """The lines that were made urgent by their key, which their texts do not show."""
        self._never_sent: list[str] = []
        self._came_back: list[str] = []
        """The lines that came back when there was no editor any more to put them into."""
        self._tasks: trio.Nursery | None = None

    async def run(
        self, signals: AsyncIterator[int], query: str | None, says: Sequence[Say] = (), notes: Sequence[str] = ()
    ) -> int:
        """Serve the user until they leave; returns the exit code.

        Some of the ``signals`` may have come before anybody could listen.
        """
        async with trio.open_nursery() as nursery:
            self._tasks = nursery
            nursery.start_soon(self._show)
            nursery.start_soon(self._tick)
            nursery.start_soon(self._chain.prepare)
            await nursery.start(self._sender.run)
            nursery.start_soon(self._watch_signals, signals)
            for note in notes:
                self._feed.put(events.Notice(message=note))
            if query is not None and not self._answer(self._chain.start(query), query):
                self._screen.give_back(query)
            for say in says:
                self._sender.take(Outgoing(say.moment, say.text, say.written))
            self._screen.listen(self)
            self._say(WELCOME)
            await self._leaving.wait()
            code = await self._finish()
            nursery.cancel_scope.cancel()
        return code

    # ------------------------------------------------------------------------------------------ what the user does

    def accept(self, text: str, *, urgent: bool) -> Taken:
        """Take a line. What has no room may be sent again as it is; what else is refused is put right first."""
        if self._leaving.is_set():
            return "later"
        had_room = self._chain.has_room
        answer = self._chain.submit(text, urgent=urgent)
        if urgent and answer.what == "queued":
            self._urgent.add(answer.id)
        return "taken" if self._answer(answer, text) else "keep" if had_room else "later"

    def escape(self) -> None:
        """Interrupt the run, if there is one."""
        self._chain.interrupt()

    def ctrl_c(self, *, has_text: bool) -> bool:
        """Interrupt the run, else clear the line, else say how to exit; twice exits."""
        if self._leaving.is_set():
            self._exit_at_once(INTERRUPTED_CODE)
        now = trio.current_time()
        if self._pressed_at is not None and now - self._pressed_at <= TWICE_S:
            self._exit_with(INTERRUPTED_CODE)
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
        self._exit_with(0)

    def hang_up(self) -> None:
        """Exit, since there is nobody any more; SIGHUP says the same."""
        self._exit_with(SIGTERM_CODE)

    def take_back(self) -> str | None:
        """Drop the latest waiting line and return its text."""
        id = self._chain.last_waiting()
        text = None
        if id is not None:
            with suppress(UserError):
                text = self._as_typed(id, self._chain.drop(id, TAKEN_BACK))
        self._count()
        return text

    def _as_typed(self, id: str, text: str) -> str:
        return f"!{text}" if id in self._urgent else text

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

    def _answer(self, answer: Submitted, text: str) -> bool:
        """Tell what became of a line at once; most of it the events say. Whether the line was taken."""
        self._count()
        match answer.what:
            case "refused":
                return False
            case "local":
                return self._obey(text)
            case "stopping":
                with self._lock:
                    waits_for = self._toolbar.stopping(time.time())
                self._say(waits_for)
            case "handled":
                self._say(self._commands.run("/status").text if text.strip().casefold() == "status" else answer.message)
            case "nothing" | "returned" if answer.message:
                self._say(answer.message)
            case _:
                pass
        return True

    def _on_sent(self, line: Outgoing, answer: Submitted) -> None:
        self._answer(answer, line.text)

    def _obey(self, text: str) -> bool:
        model = self._chain.model_name
        answer = self._commands.run(text)
        if self._chain.model_name != model and self._tasks is not None:
            self._tasks.start_soon(self._chain.prepare)
        self._count()
        self._say(answer.text)
        if answer.edit is not None:
            self._screen.edit(answer.edit)
        if answer.quit:
            self.leave()
        return not answer.keeps

    def _say(self, text: str) -> None:
        """Show an answer, after what has happened before it."""
        self._take(self._feed.drain())
        flow = Flow(self._screen.width)
        self._screen.show([*flow.add(text), *flow.end()], self._renderer.tail)

    def _count(self) -> None:
        self._waiting = len(self._chain.waiting)
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
            self._take(batch)
            await self._screen.shown()
        self._told.set()

    def _take(self, batch: Sequence[events.Event]) -> None:
        rows = self._renderer.resize(self._screen.width)
        with self._lock:
            for event in batch:
                self._toolbar.take(event)
                rows += self._renderer.lines(event)
        self._screen.show(rows, self._renderer.tail)
        self._count()
        for event in batch:
            if isinstance(event, events.Receipt) and event.state == "returned":
                self._give_back(self._as_typed(event.id, event.text))
            elif isinstance(event, events.Receipt) and event.state == "unsent":
                self._never_sent.append(event.text)
        if self._toolbar.is_running:
            self._runs.set()

    def _give_back(self, text: str) -> None:
        """Put a line that came back into the editor."""
        if self._leaving.is_set():
            self._came_back.append(text)
        else:
            self._screen.give_back(text)

    async def _tick(self) -> None:
        """Let the toolbar's seconds go on while something runs."""
        while True:
            await self._runs.wait()
            self._runs = trio.Event()
            while self._toolbar.is_running:
                await trio.sleep(1)
                self._screen.refresh()

    async def _watch_signals(self, signals: AsyncIterator[int]) -> None:
        async for number in signals:
            match number:
                case signal.SIGWINCH:
                    self._screen.resized()
                    self._take(self._feed.drain())
                case signal.SIGINT:
                    self.ctrl_c(has_text=False)
                case _ if self._was_signalled:
                    self._exit_at_once(SIGTERM_CODE)
                case _:
                    self._was_signalled = True
                    self._exit_with(SIGTERM_CODE)

    def _exit_at_once(self, code: int) -> NoReturn:
        """End the process: something does not let go. What was acknowledged is on the disk, so nothing is lost."""
        # The editor cannot be waited for either, so its rows are taken away here.
        tty.say(b"\r\x1b[J")
        tty.restore()
        tty.say("".join(f"{row}\n" for row in self._session).encode())
        os._exit(code)

    async def _finish(self) -> int:
        """End what runs and show how it ended. The exit code."""
        returned = self._returned
        self._sender.give_up(NO_ROOM)
        self._chain.interrupt()
        with trio.move_on_after(PATIENCE_S) as patience:
            await self._chain.wait_idle()
        if patience.cancelled_caught:
            self._say("Waiting for what runs to end; Ctrl-C does not.")
            with trio.move_on_after(CLOSING_S):
                await self._chain.wait_idle()
        self._feed.close()
        with trio.move_on_after(SHOWING_S):
            await self._told.wait()
        left = self._returned > returned or bool(self._never_sent)
        return self._code or (LINES_LEFT if left else 0)

    async def say_goodbye(self) -> None:
        """Leave the terminal as it was, and say what was not sent and where the session is; after any ending."""
        self._leaving.set()
        with trio.CancelScope(shield=True):
            typed = await self._screen.close()
        last = threading.Timer(LAST_S, os._exit, [self._code or 1])
        last.daemon = True
        last.start()
        for number in LEAVING:
            # Nothing is left to be done in order: a tool that does not let go must not keep the process.
            signal.signal(number, signal.SIG_DFL)
        left = [("Came back:", text) for text in self._came_back]
        left += [("Not sent:", text) for text in [*self._never_sent, *filter(str.strip, [typed])]]
        rows = [f"{label} {text.strip()}".replace("\n", "\n  ") for label, text in left]
        self._screen.show([clean(row) for row in (*rows, *self._session)])

    @property
    def _session(self) -> tuple[str, str]:
        """Where the session is, the path on a row of its own, to be copied."""
        return f"Session {self._chain.session_id}, on record in", str(self._chain.journal_path)

    @property
    def _returned(self) -> int:
        return sum(receipt.state == "returned" and not is_stop(receipt.text) for receipt in self._chain.receipts)
