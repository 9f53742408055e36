"""A session that takes lines and runs chains: the whole of it, as a front end sees it.

A line goes in through ``submit``, which is one synchronous step in the trio thread: whether a run is active and what
becomes of the line are decided together, so a line that races with the end of a run is either an interruption or a new
run, never nothing. Everything that happens comes out as events.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import trio

from chain import endings, events
from chain.conversation import Conversation
from chain.errors import JournalError, PlanError
from chain.executor import Executor
from chain.feed import Feed
from chain.inbox import Accepted, Inbox, Ledger, Refused
from chain.interruption import InterruptionPrompt
from chain.lines import Line, parse_line
from chain.messages import Usage
from chain.model import Model
from chain.plan import Author, Plan, Task
from chain.promptfile import PromptFile
from chain.run import Limits, Outcome, Run
from chain.session import Journal
from chain.tools import Registry, calling
from chain.trace import Trace, TracedModel
from chain.version import VERSION

Listener: TypeAlias = Callable[[events.Event], None]

CLOSING_S = 5.0
"""How long closing waits for tools that were cancelled; only one that shields itself takes longer than no time."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """What became of a line at once.

    ``started``: it is the query of a new run. ``queued``: it waits for a safe point (its receipt follows as an event).
    ``stopping``: the run will end. ``handled``: done without a model, and ``message`` says what. ``refused``:
    ``message`` says why, and the text is still the user's. ``local``: a slash command, for the front end.
    ``nothing``: a blank line, or a stop when nothing runs.
    """

    what: Literal["started", "queued", "stopping", "handled", "refused", "local", "nothing"]
    id: str = ""
    message: str = ""


class Chain:
    """A session that takes lines and runs chains. Made by ``open_chain``."""

    def __init__(
        self,
        *,
        journal: Journal,
        model: Model,
        system: str,
        registry: Registry,
        workspace: Path,
        interruption_prompt: Path | None,
        limits: Limits,
        tool_rules: calling.Rules,
        inbox_size: int,
        interactive: bool,
        trace: Trace | None = None,
    ) -> None:
        self.session_id = journal.id
        self.journal_path = journal.path
        self.workspace = workspace
        self.model_name = model.name
        self._trace = trace
        self._model = model = model if trace is None else TracedModel(model, trace)
        self.tools = tuple(registry)
        self.plan = Plan(self._plan_changed)
        self._interactive = interactive
        self._journal = journal
        self._feeds: list[Feed] = []
        self._listeners: list[Listener] = [] if trace is None else [trace.on_event]
        self._ledger = Ledger(journal, self._emit)
        self._inbox = Inbox(self._ledger, journal, self._emit, size=inbox_size)
        self._prompt_file = PromptFile(interruption_prompt)
        self._executor = Executor(
            model=model,
            system=system,
            registry=registry,
            conversation=Conversation(),
            inbox=self._inbox,
            ledger=self._ledger,
            journal=journal,
            emit=self._emit,
            plan=self.plan,
            prompt=self._prompt,
            workspace=workspace,
            limits=limits,
            tool_rules=tool_rules,
            trace_path=self._trace_path,
        )
        self._run: Run | None = None
        self._wake = trio.Event()
        self._idle = trio.Event()
        self._idle.set()
        self._room = trio.Event()
        self._inbox.when_room(self._wake_senders)
        self._is_ending = False
        self._is_closing = False
        self._statuses: list[events.Status] = []
        self._usage = Usage()
        self._init = events.Init(session=self.session_id, version=VERSION, model=model.name, workspace=str(workspace))

    # ------------------------------------------------------------------------------------------------- lines in

    def submit(self, text: str, *, urgent: bool = False, id: str = "", local: bool = True) -> Submitted:
        """Take a line. Call it in the trio thread.

        ``urgent`` marks it by other means than a ``!``; ``id`` is the sender's own id for it, unique in the session;
        ``local=False`` makes a leading ``/`` plain text.
        """
        line = parse_line(text.encode(errors="replace").decode(), urgent=urgent, local=local)
        if self._is_closing:
            return self._refuse(line, "the chain is closing", id)
        if line.kind == "blank":
            return Submitted("nothing")
        if line.kind == "local":
            return Submitted("local", message=line.message)
        if self._run is not None:
            return self._interrupt_with(self._run, line, id)
        if line.kind == "stop":
            return Submitted("nothing", message="Nothing is running.")
        if problem := self._ledger.problem(line, id):
            return self._refuse(line, problem, id)
        if line.kind == "todo" or (line.kind == "question" and line.message.casefold() == "status"):
            return self._handle_idle(line, id)
        return self._start(line, id)

    def start(self, query: str, *, id: str = "") -> Submitted:
        """Start a run with a query that is not parsed. Refused while a run is active."""
        line = Line(query, "verbatim", query.encode(errors="replace").decode().strip())
        problem = "a run is active; wait for it to end" if self._run else self._ledger.problem(line, id)
        if self._is_closing:
            problem = "the chain is closing"
        if not line.message:
            problem = "the query is empty; write what the chain is to do"
        if problem:
            return self._refuse(line, problem, id)
        return self._start(line, id)

    def interrupt(self) -> bool:
        """Cancel the work in hand, everywhere. Whether there was any."""
        if self._run is None:
            return False
        self._run.interrupt()
        return True

    @property
    def has_room(self) -> bool:
        """Whether a line would neither be refused for want of room nor come between a stop and its end."""
        return self._run is None or not (self._inbox.is_full or self._run.stop_asked)

    async def wait_for_room(self) -> None:
        """Wait until there is room for a line; how a sender that is no person holds back."""
        while not self.has_room:
            if self._room.is_set():
                self._room = trio.Event()
            await self._room.wait()

    async def wait_idle(self) -> None:
        """Wait until no run is active and everything about the last one has been told."""
        while True:
            await self._idle.wait()
            with suppress(JournalError):
                await self._journal.flush()
            if self._run is None:
                return

    # ------------------------------------------------------------------------------------------------- facts out

    @property
    def is_running(self) -> bool:
        """Whether a run is active, or about to take its first step."""
        return self._run is not None

    @property
    def last_status(self) -> events.Status | None:
        """How the last run that has ended ended."""
        return self._statuses[-1] if self._statuses else None

    @property
    def waiting(self) -> tuple[Accepted, ...]:
        """The lines that wait, in order."""
        return self._inbox.waiting()

    @property
    def receipts(self) -> tuple[events.Receipt, ...]:
        """What became of every line so far."""
        return self._ledger.receipts

    @property
    def usage(self) -> Usage:
        """What the model calls of this session have used."""
        return self._usage

    def exit_code(self, *, unsent: bool = False, interrupted: bool = False, terminated: bool = False) -> int:
        """The exit code of the process as things stand; ``terminated``: by SIGTERM."""
        left = unsent or any(r.state == "returned" for r in self.receipts)
        codes = {endings.LINES_LEFT: left, endings.INTERRUPTED_CODE: interrupted, endings.SIGTERM_CODE: terminated}
        return endings.exit_code(
            [*(endings.EXIT_CODES[s] for s in self._statuses), *(code for code, holds in codes.items() if holds)]
        )

    def feed(self) -> Feed:
        """A new feed of all events from now on, after an ``init``."""
        feed = Feed()
        feed.put(self._init)
        self._feeds.append(feed)
        return feed

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` in the very step in which an event happens. It may submit lines; it must not block."""
        self._listeners.append(listener)

    # ------------------------------------------------------------------------------------------------ inside

    def _interrupt_with(self, run: Run, line: Line, id: str) -> Submitted:
        if line.kind == "stop":
            try:
                accepted = self._accept_at_once(line, id)
            except JournalError:
                # A disk that is full keeps nobody from stopping.
                self._emit(events.Receipt(id=id, text=line.text, state="handled", iteration=run.iteration))
            else:
                self._ledger.settle(accepted, "handled", iteration=run.iteration)
            run.stop()
            return Submitted("stopping")
        put = self._inbox.put(line, id=id, iteration=run.iteration)
        return Submitted("refused", message=put.reason) if isinstance(put, Refused) else Submitted("queued", put.id)

    def _handle_idle(self, line: Line, id: str) -> Submitted:
        """What needs no model is done at once when no run is active."""
        try:
            accepted = self._accept_at_once(line, id)
        except JournalError as error:
            return self._refuse(line, str(error), id)
        reason = ""
        try:
            message = self.status() if line.command is None else self.plan.carry_out(line.command)
        except PlanError as error:
            message = reason = str(error)
        except JournalError as error:
            self._ledger.settle(accepted, "returned", iteration=0, reason=str(error))
            return Submitted("refused", message=str(error))
        self._ledger.settle(accepted, "handled", iteration=0, reason=reason)
        return Submitted("handled", accepted.id, message)

    def status(self) -> str:
        """What the chain is doing, in one line."""
        run = self._run
        doing = "nothing is running" if run is None else f"iteration {run.iteration}, {run.step.phase}"
        closed, count = self.plan.counts
        used = self._usage.total_tokens + (0 if run is None else run.usage.total_tokens)
        return f"{doing}; {len(self._inbox)} lines wait; plan {closed}/{count}; {used:,} tokens used"

    def _start(self, line: Line, id: str) -> Submitted:
        try:
            accepted = self._accept_at_once(line, id)
        except JournalError as error:
            return self._refuse(line, str(error), id)
        self._begin(Run(accepted))
        return Submitted("started", accepted.id)

    def _accept_at_once(self, line: Line, id: str) -> Accepted:
        """Accept a line that has no need to wait; the next model call still waits until it is on the disk."""
        accepted = self._ledger.accept(line, "main", id=id)
        self._journal.acknowledge(lambda: None)
        return accepted

    def _begin(self, run: Run) -> None:
        self._run = run
        if self._idle.is_set():
            self._idle = trio.Event()
        self._wake.set()
        if not self._is_ending:
            self._announce(run)

    def _refuse(self, line: Line, reason: str, id: str) -> Submitted:
        self._ledger.refuse(line, "main", len(self._inbox), reason, id=id)
        return Submitted("refused", message=reason)

    async def run_forever(self) -> None:
        """Run what is started, one run after the other; the task that does this is ``open_chain``'s."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            while self._run is not None:
                run = self._run
                if self._prompt_file.is_configured:
                    self._prompt()  # a broken file is told at once, not at the first interruption
                self._end(run, await self._executor.run(run))

    def _announce(self, run: Run) -> None:
        query = run.query
        started = events.RunStarted(id=query.id if query else "", query=query.line.message if query else "")
        self._journal.in_order(lambda: self._emit(started))

    def _end(self, run: Run, outcome: Outcome) -> None:
        """Settle the lines of a run that ended, and begin the next one if lines ask for it; all in one step.

        What is still to come is decided before anything is told, since a listener may submit a line at once.
        """
        follows = self._interactive or any(a.line.kind == "follow-up" for a in self._inbox.waiting())
        can_go_on = not self._is_closing and self._journal.failure is None
        kept = can_go_on and endings.keeps_lines(outcome.status, run_follows=follows)
        returned = () if kept else self._inbox.take_all()
        query = self._inbox.next_follow_up() if kept else None
        self._run = Run(query) if query is not None or len(self._inbox) else None
        # A listener may start the next run on hearing of this one's end. It is announced when all of that is told.
        self._is_ending = True
        for accepted in (*run.stranded, *returned):
            was_done = accepted.id in run.carried_out or self._inbox.was_used(accepted)
            state: events.State = "handled" if was_done else "returned"
            reason = "" if was_done else outcome.status
            self._ledger.settle(accepted, state, iteration=run.iteration, reason=reason)
        self._usage += run.usage
        self._statuses.append(outcome.status)
        result = self._result(run, outcome)
        # A disk that takes no more must not keep the run from ending.
        with suppress(JournalError):
            fields = {"status": result.status, "result": result.result, "iterations": result.iterations}
            self._journal.record("result", {**fields, "usage": events.to_json(result)["usage"]})
        self._journal.in_order(lambda: self._emit(result))
        self._is_ending = False
        self._wake_senders()
        if self._run is None:
            self._idle.set()
        else:
            self._announce(self._run)

    def _result(self, run: Run, outcome: Outcome) -> events.Result:
        return events.Result(
            iteration=run.iteration,
            status=outcome.status,
            result=outcome.result,
            replies=tuple(run.replies),
            iterations=run.iteration,
            usage=run.usage,
            partial=outcome.partial,
            phase_reached=outcome.phase_reached,
            partial_results=outcome.partial_results,
            termination_reason=outcome.termination_reason,
            trace_path=self._trace_path(),
            exit_code=self.exit_code(),
            receipts=self.receipts,
        )

    async def close(self) -> None:
        """Interrupt what runs, wait for its ending, and bring everything to the disk."""
        self._is_closing = True
        with trio.move_on_after(CLOSING_S, shield=True):
            self.interrupt()
            await self.wait_idle()
            await self._journal.sync()
            await self._model.aclose()
        if self._trace is not None:
            self._trace.close()
        for feed in self._feeds:
            feed.close()

    def _trace_path(self) -> str | None:
        return None if self._trace is None else self._trace.path

    def _prompt(self) -> InterruptionPrompt:
        prompt, error = self._prompt_file.current()
        if error is not None:
            iteration = self._run.iteration if self._run else 0
            why = f"the built-in handler prompt is used: {error.message}"
            self._emit(events.Notice(iteration=iteration, message=why, file=error.file, line=error.line))
        return prompt

    def _plan_changed(self, tasks: tuple[Task, ...], by: Author) -> None:
        """Journal, then tell. Raises ``JournalError``, and the plan then stays as it was."""
        views = tuple(events.TaskView(n, t.text, t.state, t.reason) for n, t in enumerate(tasks, 1))
        changed = events.PlanChanged(iteration=self._run.iteration if self._run else 0, tasks=views, by=by)
        self._journal.record("plan", {"tasks": events.to_json(changed)["tasks"], "by": by})
        self._executor.plan_changed(by)
        self._journal.in_order(lambda: self._emit(changed))

    def _wake_senders(self) -> None:
        self._room.set()

    def _emit(self, event: events.Event) -> None:
        # Feeds first: what a listener submits comes after the event that made it do so.
        for feed in self._feeds:
            feed.put(event)
        for listener in self._listeners:
            listener(event)
