"""One session at a terminal: submits typed lines to its chain, and shows the chain's events as rows.

One task shows the events, and reads the next ones when these are on the screen. So a slow terminal does not delay the
chain: the feed merges the events that wait.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol

import trio

from chain import events
from chain.app.session_context import git_branch
from chain.chain import CLOSING_S, Chain, SubmitResult
from chain.concurrency.threads import Threads
from chain.concurrency.wakeup import Wakeup
from chain.errors import JournalError, UserError
from chain.lines.parse import is_stop, parse_line
from chain.text.modes import next_mode
from chain.text.plain import sanitize
from chain.text.wording import MAIN, pluralize
from cli.input.address import is_command, split_address
from cli.screen.protocol import Acceptance
from cli.show import answers, question_rows
from cli.show.aliases import AS_TEXT, LEAVE, bare_command, interrupts_nothing
from cli.show.markdown_flow import warm
from cli.show.rows import painted_preview
from cli.show.text_rows import flat, from_home
from cli.show.toolbar import Toolbar, ToolbarPart, answers_question
from cli.show.transcripts import Transcripts
from cli.terminal.attachments import Attachment, Attachments, outside_path
from cli.terminal.display import Display
from cli.terminal.recipients import Recipients, take_back
from cli.terminal.slash import TAKEN_BACK, CommandAnswer, Commands

_THREADS = Threads("imports")

CONTINUE_QUERY = "Continue."
"""The query of a run that continues the work of a run that has used all its iterations."""

_MAKES_ROOM = (events.UserInterruption, events.RunStarted, events.Result)

QUIET_S = 0.5
"""The seconds that an exit waits for a cancelled tool before the user gets a message."""

SHOWING_S = 1.0
"""The maximum seconds that an exit waits until the last rows are shown: the terminal may no longer be read."""


class SessionOwner(Protocol):
    """The methods of the program that a session calls."""

    def give_back(self, text: str) -> None:
        """Put an undelivered line back into the editor."""

    def mark_unsent(self, text: str) -> None:
        """Record a scripted line that will not be sent."""

    def carry_out(self, command: str, answer: CommandAnswer) -> None:
        """Carry out what a command's answer requests, except for showing its text."""


class TerminalSession:
    """A session and its view. Only trio's thread may call the methods, except those that say otherwise."""

    def __init__(self, chain: Chain, commands: Commands, owner: SessionOwner, display: Display) -> None:
        self.chain = chain
        self.commands = commands
        self._owner = owner
        self._display = display
        self._screen = display.screen
        self._renderer = display.renderer()
        self._transcripts = Transcripts(color=display.style.color, ascii=display.style.ascii)
        self._toolbar = Toolbar(
            ascii=display.style.ascii,
            inbox_size=chain.inbox_size,
            has_esc=display.screen.has_keys,
            plan=[task.state for task in chain.plan.tasks],
            folder=workspace_label(chain) if display.tour is None else "",
        )
        self._lock = threading.Lock()
        """Protects the toolbar, which the editor's thread reads."""
        self._recipients = Recipients(chain)
        self._shown_notes: set[str] = set()
        """The notes shown before the first event. A resumed session does not show them twice."""
        self._feed = chain.feed()
        self._answerer = chain.answering()
        self._run_started = Wakeup()
        self._all_shown = trio.Event()
        self._now = time.time()
        """The time of the last drawing, which the rows and the toolbar show."""
        self._last_refusal = ("", "")
        """The last refused line and the reason, which are shown once; empty when the queue has room again."""
        self._answered_ids: set[str] = set()
        """The ids of lines that are answered already, so that their receipts are not shown."""
        self._tasks: trio.Nursery | None = None
        self._branch_read = trio.CancelScope()
        self._attachments = Attachments()
        commands.custom.attach = self._attachments.expand

    async def run(self) -> None:
        """Show events until the feed ends."""
        async with trio.open_nursery() as nursery:
            self._tasks = nursery
            nursery.start_soon(self._refresh_each_second)
            nursery.start_soon(self._prepare)
            self.refresh_branch()
            while batch := await self._feed.batch():
                self._show_events(batch)
                await self._screen.wait_shown()
            self._all_shown.set()
            nursery.cancel_scope.cancel()

    async def finish(self) -> None:
        """Interrupt the run and show how it ended. Waiting lines stay queued in the session."""
        self.chain.leave()
        with trio.move_on_after(QUIET_S) as quiet:
            await self.chain.wait_idle()
            await self.chain.jobs.wait_closed()
        if quiet.cancelled_caught:
            self.print("Waiting for the running tool to end; Ctrl-C exits at once.")
            with trio.move_on_after(CLOSING_S):
                await self.chain.wait_idle()
        self._feed.close()
        with trio.move_on_after(SHOWING_S):
            await self._all_shown.wait()
        # Close this last. Questions that open during the exit are then withdrawn, not left unanswered.
        self._answerer.close()

    def end(self) -> None:
        """Show the remaining rows of a chain that has been closed."""
        self.show_rest()
        self._screen.show(self._renderer.unsettled_rows())
        self._answerer.close()

    def welcome(self, text: str, *, command: str = "") -> None:
        """Show the past events of a resumed session, then the ``command`` that opened the session, and a ``text``."""
        resumed = self.chain.resumed
        if resumed is None:
            self.print(text, command=command)
            return
        self.show_rest()
        if resumed.has_earlier:
            self.print(f"Show earlier events with: chain sessions show {self.chain.session_id}")
        self._show_past(resumed.past)
        rows = [*resumed.changes, *self._waiting_rows(), *([text] if text else [])]
        self.print("\n".join(rows), command=command)
        for accepted in resumed.returned:
            if accepted.origin == "prompt":
                self._owner.give_back(accepted.line.text)
        if resumed.draft:
            self._screen.edit(resumed.draft)

    def _show_past(self, past: Sequence[events.Event]) -> None:
        rows: list[str] = []
        with self._lock:
            for event in past:
                is_shown = isinstance(event, events.Notice) and event.message in self._shown_notes
                if is_shown or isinstance(event, events.Init):
                    continue
                self._update(event)
                self._transcripts.update(event, self._screen.width)
                rows += self._renderer.rows(event)
            if not self.chain.is_running:
                self._toolbar.tokens = self.chain.state.usage.total_tokens
        if self.chain.undo.points and not self.chain.is_running:
            self._show_context()  # the last runs may have been undone, and another model may answer now
        self._show(rows)
        self._update_queue()

    def _waiting_rows(self) -> list[str]:
        ids = [accepted.id for accepted in self.chain.lines.waiting]
        if not ids or self.chain.is_running:  # the run that has just started delivers them
            return []
        them = "it" if len(ids) == 1 else "them"
        return [
            f"{pluralize(len(ids), 'earlier line')} {'waits' if len(ids) == 1 else 'wait'} ({', '.join(ids)}): "
            f"Enter on an empty line sends {them}, /queue shows {them}, /drop drops one."
        ]

    def start(self, query: str) -> None:
        """Start a run with a query, which is not parsed as a line. If the query is refused, put it into the editor."""
        if not self.report(self.chain.start(query), query):
            self._screen.give_back(query)

    def accept(self, text: str, *, question_id: str = "", again: bool = False) -> Acceptance:
        """Submit a line, and return what the editor does with it.

        A line answers the question ``question_id``, which was open when the user began to type, if there is one.
        Commands, stops and lines with ``!`` never answer a question. A blank line sends the waiting lines; if there are
        none, a blank line continues a run that has used all its iterations. While no run is active, a line with ``!``
        is refused, unless it was returned earlier and is sent ``again``.
        """
        if question_id and answers_question(text):
            return self._answer(question_id, text)
        if not text.strip():
            if not self.chain.runs.start_waiting() and self.chain.state.is_at_limit and not self.chain.is_running:
                self.start(CONTINUE_QUERY)
            return "accepted"
        if command := bare_command(text):
            if command == LEAVE and self.chain.is_running:
                self.print(f"A run is active: stop ends it, {LEAVE} exits. {AS_TEXT}", command=text)
                return "replace"
            return "accepted" if self._run_command(command) else "keep"
        if not (again or self.chain.is_running) and interrupts_nothing(text):
            self.print(f"Nothing is running to interrupt, and ! does not run shell commands. {AS_TEXT}", command=text)
            return "replace"
        to, line = split_address(text)
        had_room = self.chain.lines.has_room(line, to=to)
        whole, images = self._attachments.expand(line)
        answer = self.chain.submit(whole, to=to, local=not self.commands.is_path(line), images=images)
        if self.report(answer, text, to):
            return "accepted"
        # Commands and malformed lines are refused for other reasons than lack of room.
        parsed = parse_line(line)
        if parsed.is_mistyped:
            return "replace"
        return "keep" if had_room or answer.what == "local" or parsed.problem else "later"

    def _answer(self, question: str, text: str) -> Acceptance:
        """Answer a question, and return what the editor does with the text.

        A text that may be a mistyped key is not sent, since it would deny a call.
        """
        if not text.strip():
            return "accepted"
        asked = self._toolbar.asked
        if asked is not None and asked.id == question and (how := question_rows.warning(asked, text)):
            self.print(how, command=text)
            return "replace" if " " in text.strip() else "accepted"
        if self.chain.answer(question, text).what == "answered":
            return "answered"
        return "keep" if self.chain.questions.open_id == question else "gone"

    def next_mode(self) -> None:
        """Switch to the next mode. A notice reports the change."""
        try:
            self.chain.use_mode(next_mode(self.chain.mode))
        except (UserError, JournalError) as error:
            self.print(str(error))
        self._screen.refresh()  # the notice may wait for the disk

    def offer_undo(self) -> None:
        """List the runs that can be undone, and put ``/undo`` into the editor."""
        points = self.chain.undo.points
        self.print("\n".join(answers.undo_rows(points, self._screen.width, now=time.time())))
        if points:
            self._screen.edit("/undo ")

    def paste_image(self) -> None:
        """Attach the image in the clipboard to the typed line, or show the reason why not."""
        self._start_attaching(lambda: self._attachments.attach_clipboard(os.environ))

    def outside_path(self, pasted: str) -> str:
        """Return the path of a file outside the tools' folders if the pasted text names one, or "". For any thread."""
        path = outside_path(pasted, (self.chain.workspace, *self.chain.state.added_directories))
        return "" if path is None else str(path)

    def attach_path(self, path: str, pasted: str) -> None:
        """Attach a file to the typed line. If that fails, show the reason and insert the pasted text again."""
        self._start_attaching(lambda: self._attachments.attach_file(Path(path)), pasted)

    def _start_attaching(self, attach: Callable[[], Awaitable[Attachment]], instead: str = "") -> None:
        async def work() -> None:
            try:
                attached = await attach()
            except UserError as error:
                self.print(sanitize(f"Nothing was attached: {error}."))
                if instead:
                    self._screen.insert(instead)
            else:
                self.print(sanitize(f"Attached {attached.name} ({attached.about})."))
                self._screen.insert(attached.label)

        if self._tasks is not None:
            self._tasks.start_soon(work)

    def take_back(self) -> str | None:
        """Drop the latest waiting line and return its text; ``None`` if there is none."""
        id, text = self.chain.lines.last_waiting(), None
        with suppress(UserError):
            text = None if id is None else take_back(self.chain, id, TAKEN_BACK)
        self._update_queue()
        return text

    def report(self, answer: SubmitResult, text: str, to: str = "") -> bool:
        """Show the answer to a line for the agent ``to``, unless an event shows it. Return whether it was accepted."""
        self._update_queue()
        match answer.what:
            case "refused":
                return False
            case "local":
                return self._run_command(text)
            case "stopping":
                agent = self.chain.lines.target(to=to) if to else MAIN
                with self._lock:
                    stopping = self._toolbar.stopping(self._now, agent)
                self.print(stopping)
            case "handled":
                self._answered_ids.add(answer.id)
                is_status = split_address(text)[1].strip().casefold() == "status"
                status = self.commands.run("/status", width=self._screen.width) if is_status else None
                self.print(answer.message if status is None else status.text, command=text)
            case "nothing" | "returned" if answer.message:
                self.print(answer.message, command=text)
            case "started" | "queued" if missing := self.commands.files.missing_names(text):
                named = ", ".join(f"@{flat(name)}" for name in missing)
                self.print(f"No such file: {named}. Sent as text.")
            case _:
                pass
        return True

    def _run_command(self, text: str) -> bool:
        model, count = self.chain.init.model, len(self.chain.undo.points)
        answer = self.commands.run(text, width=self._screen.width)
        if len(self.chain.undo.points) < count:
            self._show_context()
        if self.chain.init.model != model and self._tasks is not None:
            self._tasks.start_soon(self.chain.prepare)
        if answer.thinking is not None:
            self._display.shows_thinking = self._renderer.shows_thinking = answer.thinking
        self._update_queue()
        asked = answer.question
        rows = [] if asked is None else painted_preview(asked, self._renderer.place, whole=True)
        if answer.agent not in ("", MAIN):
            rows += self._transcripts.rows(answer.agent)
        if answer.opening is None:
            self.print(answer.text, rows, command=text)
        self._owner.carry_out(text, answer)
        return not answer.is_rejected

    def _show_context(self) -> None:
        """Update the context usage in the toolbar, since no event reports the usage after an undo."""
        view = self.chain.window
        with self._lock:
            self._toolbar.set_context_usage(view.tokens, view.window or None)

    def notify(self, notes: Iterable[str]) -> None:
        """Queue notes to be shown as notices. Call this method before the first event."""
        for note in notes:
            self._shown_notes.add(note)
            self._feed.put(events.Notice(message=note))

    def print(self, text: str, rows: Sequence[str] = (), *, command: str = "") -> None:
        """Show the typed ``command``, a text and ``rows``, below earlier events. Do nothing without text and rows."""
        if text.strip() or rows:
            self.show_rest()
            self._show(self._renderer.answer(command, text, rows))

    def _show(self, rows: Sequence[str] = ()) -> None:
        """Show finished rows, and redraw the unfinished rows and the toolbar with the current time."""
        self._now = time.time()
        self._screen.show(rows, self._renderer.tail_at(self._now))

    def show_rest(self) -> None:
        """Show the events that are not shown yet, formatted for the terminal's current width."""
        self._show_events(self._feed.take())

    @property
    def is_running(self) -> bool:
        """Whether a run is active, or its end is not shown yet."""
        return self.chain.is_running or self._toolbar.is_running

    def target(self, typed: str) -> str:
        """Return the agent that gets the typed line; empty for the main agent. Any thread may call this method."""
        to = self._recipients.find(typed)
        is_for_all = not to.is_addressed and (is_stop(typed) or is_command(typed))
        return "" if is_for_all else self._toolbar.target(to.agent)

    def toolbar(self, width: int, typed: str, question_id: str, lines_before: int, keys: str) -> Sequence[ToolbarPart]:
        """Return the row below the prompt, as ``Listener.toolbar`` describes. Any thread may call this method."""
        to = self._recipients.find(typed)
        if to.is_addressed:
            question_id, lines_before = "", 0  # a line with an address is neither an answer nor sent after other lines
        with self._lock:
            self._toolbar.model = self.chain.init.model
            return self._toolbar.row(
                width=width,
                now=self._now,
                to=to,
                waiting=self._recipients.waiting,
                question_id=question_id,
                lines_before=lines_before,
                keys=keys,
                holds_rows=self._renderer.holds_rows,
                mode=self.chain.mode,
                jobs=len(self.chain.jobs.running),
            )

    def refresh_branch(self) -> None:
        """Read the workspace's git branch in a thread, and show it in the toolbar."""
        if self._tasks is not None and not self._all_shown.is_set() and self._display.tour is None:
            self._branch_read.cancel()  # it could end later, with an older branch
            self._branch_read = trio.CancelScope()
            self._tasks.start_soon(self._read_branch, self._branch_read)

    async def _read_branch(self, scope: trio.CancelScope) -> None:
        folders = (self.chain.workspace, *self.chain.workspace.parents)
        with scope, suppress(RuntimeError):  # no thread can be started
            branch = await _THREADS.run(partial(git_branch, folders), abandon_on_cancel=True)
            with self._lock:
                self._toolbar.branch = branch.removeprefix("none, ")
            self._screen.refresh()

    def _update_queue(self) -> None:
        self._recipients.update()
        self._screen.refresh()

    def _show_events(self, batch: Sequence[events.Event]) -> None:
        self._renderer.resize(self._screen.width)
        rows: list[str] = []
        settled = {event.id for event in batch if isinstance(event, events.Answer)}
        with self._lock:
            for event in batch:
                self._update(event)
            question = self._toolbar.asked
        alerts, tour = self._display.alerts, self._display.tour
        for event in batch:
            if isinstance(event, events.Receipt) and event.state == "handled" and event.id in self._answered_ids:
                self._answered_ids.remove(event.id)
                continue
            if isinstance(event, events.LineRefused):
                if (refused := (event.text, event.reason)) == self._last_refusal:
                    continue
                self._last_refusal = refused
            elif isinstance(event, _MAKES_ROOM) or (
                # The event of an earlier line may come later, since it waits for the disk.
                isinstance(event, events.LineQueued) and event.text == self._last_refusal[0]
            ):
                self._last_refusal = ("", "")
            self._transcripts.update(event, self._screen.width)
            rows += self._renderer.rows(event)
            is_settled = isinstance(event, events.Question) and event.id in settled
            if isinstance(event, events.Question) and not is_settled:
                rows += self._renderer.hint(event, by_key=self._screen.has_keys)
            if alerts is not None and not is_settled and (alert := alerts.next_alert(event)):
                self._screen.alert(alert.title, rings=alert.rings)
            if tour is not None:
                rows += self._renderer.comment_rows(tour.comments(event))
        self._show(rows)
        self._screen.ask(None if question is None else question.id, question_rows.answer_keys(question))
        self._update_queue()
        for event in batch:
            if isinstance(event, events.Receipt) and event.state == "returned" and event.origin == "prompt":
                self._owner.give_back(event.text)
            elif isinstance(event, events.Receipt) and event.state == "unsent":
                self._owner.mark_unsent(event.text)
            elif isinstance(event, events.Result) and event.agent == MAIN:
                self.refresh_branch()
        if self._toolbar.is_running:
            self._run_started.set()

    def _update(self, event: events.Event) -> None:
        self._now = max(self._now, event.time)  # the toolbar may be drawn before the rows
        self._toolbar.update(event)

    async def _prepare(self) -> None:
        """Import the modules for a request, then those for its reply: two imports at once would slow down typing."""
        await self.chain.prepare()
        await _THREADS.run(warm, abandon_on_cancel=True)
        await self.chain.prepare_tools()

    async def _refresh_each_second(self) -> None:
        while True:
            await self._run_started.wait()
            while self._toolbar.is_running:
                await trio.sleep(1)
                self._show()


def workspace_label(chain: Chain) -> str:
    """Return the path of the workspace, with ``~`` for the home folder."""
    home = os.path.expanduser("~").removeprefix("~")  # "~" remains if there is no home
    return from_home(flat(chain.init.workspace), home)
