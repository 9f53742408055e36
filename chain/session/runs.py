"""The runs of a session, one after the other.

A run is active from the step in which a line starts it to the step that ends it. Both steps are synchronous, so at any
time either a run is active or the next submitted line starts one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

import trio

from chain import events
from chain.agent.children import Children, Delegation
from chain.agent.executor import Executor
from chain.agent.spec import AgentSpec, Shared
from chain.agent.state import Outcome, Run, keeps_lines
from chain.agent.tree import AgentTree
from chain.concurrency.wakeup import Wakeup
from chain.config.retries import Retries
from chain.errors import JournalError, UserError
from chain.journal import records
from chain.journal.records import PlanChange
from chain.lines.accepted import AcceptedLine
from chain.model import Model
from chain.session.exit_codes import EXIT_CODES, INTERRUPTED_CODE, LINES_LEFT, SIGTERM_CODE, exit_code
from chain.session.state import State
from chain.text.modes import Mode
from chain.tools.paths import added_root
from chain.tools.registry import Registry

CLOSE_S = 1.0
"""The time limit for closing one model, in seconds."""

ReadInstructions: TypeAlias = Callable[[records.InstructionsRead], Awaitable[records.InstructionsRead]]
"""A function that reads the project's instructions. Its argument is the result of the previous call."""


async def no_instructions(latest: records.InstructionsRead) -> records.InstructionsRead:
    """Return empty instructions."""
    return records.InstructionsRead()


@dataclass(frozen=True, slots=True)
class ServerToolSource:
    """The source of the tools of servers.

    ``offer`` lists the tools that servers offer now. ``registry`` builds the main agent's registry with such a list.
    """

    offer: Callable[[], Awaitable[records.ServerTools]]
    registry: Callable[[records.ServerTools], Registry]


class SessionRuns:
    """The runs of a session's main agent, of which at most one is active.

    ``interactive``: a person types the lines. Waiting lines then stay queued after a run that used up its iterations,
    and refused lines do not affect the exit code, since the editor keeps their text. At the start of a run,
    ``load_instructions`` reads the project's instructions, and ``server_tools`` lists the tools of servers.
    """

    def __init__(
        self,
        state: State,
        tree: AgentTree,
        children: Children,
        shared: Shared,
        *,
        interactive: bool,
        load_instructions: ReadInstructions,
        server_tools: ServerToolSource | None,
    ) -> None:
        self.is_closing = False
        """Whether all lines are refused because the session closes."""
        self.last_status: events.Status | None = None
        """The status of the last finished run, or ``None``."""
        self.state = state
        self.spec = tree.main.agent.spec
        """The spec of the next run."""
        self._load_instructions = load_instructions
        self._server_tools = server_tools
        self.tree = tree
        self.children = children
        self._shared = shared
        self._models = [self.spec.model]
        self._inbox = tree.main.inbox
        self._journal = shared.journal
        self.interactive = interactive
        self._has_new_directory = False
        """Whether the main agent's system prompt lacks an added directory."""
        self._codes: set[int] = set()
        self.executor = Executor(tree.main.agent)
        self._changed = Wakeup()
        """Set when a run has started or ended, and when no further run can start."""
        self._is_ending = False
        self._leaves_lines = False
        """Whether the program ends, so that waiting lines stay queued until the session is resumed."""
        shared.plan.record = self._record_plan_change

    # -------------------------------------------------------------------------------------------- sequence of runs

    @property
    def active(self) -> Run | None:
        """The active run, or ``None``."""
        return self.tree.main.run

    def start(self, query: AcceptedLine) -> None:
        """Start a run with this query. No run may be active."""
        self._activate(self._create_run(query))

    def start_waiting(self) -> bool:
        """Start a run with the waiting lines. Return ``False`` if no line waits or no run can start."""
        run = None if self.active is not None or self.is_closing else self._create_waiting_run()
        if run is not None:
            self._activate(run)
        return run is not None

    def _activate(self, run: Run) -> None:
        """Make a run active, and record the run's start. While ``_end`` is running, leave the record to ``_end``."""
        self.tree.main.run = run
        self._changed.set()
        if not self._is_ending:
            self._record_start(run)

    def compact(self, focus: str = "") -> None:
        """Compact the main agent's conversation at the next safe point. If no run is active, start a run for this.

        ``focus`` says what matters most to the user. A ``compaction`` event reports the outcome. Raise ``UserError`` if
        there is no conversation or the session is closing. Raise ``JournalError`` if the request cannot be recorded.
        """
        if self.is_closing:
            raise UserError("the chain is closing")
        if not self.tree.main.agent.conversation.messages:
            raise UserError("there is no conversation yet")
        focus = " ".join(focus.split())
        recorded = self._journal.record(records.CompactionAsked(self.spec.name, focus))
        self._journal.emit_after_acks(recorded.emit)
        if self.active is not None:
            self.active.focus = focus
            return
        self._activate(self._create_compaction_run(focus))

    def interrupt(self) -> bool:
        """Cancel the active run on the user's behalf, and withdraw open questions. Return whether a run was active."""
        return self._interrupt("user")

    def leave(self) -> None:
        """Refuse further lines and interrupt the run, because the program ends. Waiting lines stay queued."""
        if not self._leaves_lines:
            self.is_closing = self._leaves_lines = True
            self._interrupt("exit")

    def _interrupt(self, by: Literal["user", "exit"]) -> bool:
        """Withdraw open questions, cancel the active run and record this. Return whether a run was active."""
        self._shared.questions.withdraw()
        run = self.active
        if run is None:
            return False
        if by == "exit" or not run.is_interrupted:
            cut = records.Interrupted(self.spec.name, run.iteration, run.step.phase, by)
            self._journal.record_if_possible(cut)
        self.tree.main.interrupt()
        return True

    async def serve(self) -> None:
        """Execute each run that is started, until the session closes."""
        try:
            while (run := self.active) is not None or not self.is_closing:
                if run is None:
                    await self._changed.wait()
                else:
                    self.tree.main.agent.check_prompt(run.iteration)
                    await self._prepare(run)
                    self._end(run, await self.executor.run(run))
        finally:
            self.is_closing = True
            if self.active is not None:
                # Return the waiting lines even after a bug.
                self._end(self.active, Outcome("error", "The program ended in the middle of the run."))

    async def wait_idle(self) -> None:
        """Wait until no run is active and every event of the last run has been emitted."""
        await trio.lowlevel.checkpoint()
        while True:
            while self.active is not None:
                await self._changed.wait()
            with suppress(JournalError):
                await self._journal.flush()
            if self.active is None:
                return

    def _record_start(self, run: Run) -> None:
        """Record and emit the start of a run."""
        begun = records.RunBegun("" if run.query is None else run.query.on_record, run.only_compacts)
        # The run fails by itself if the disk is still full at its first message.
        self._journal.emit_after_acks(self._journal.record_if_possible(begun).emit)

    def _end(self, run: Run, outcome: Outcome) -> None:
        """End the active run: settle its lines, emit its result, and start the next run if waiting lines request one.

        This is one step without an ``await``. The next run is selected before any event is emitted, since a listener
        may submit a line immediately.
        """
        follows = self.interactive or any(a.line.kind == "follow-up" for a in self._inbox.waiting())
        can_continue = not self.is_closing and self._journal.failure is None
        keeps = can_continue and keeps_lines(outcome.status, run_follows=follows)
        if not keeps:
            self._inbox.drain_all()
        leftover = () if keeps else self._inbox.all_lines()
        self.tree.main.agent.spec = self.spec
        self.tree.main.run = self._create_waiting_run(outcome.status)
        if run.focus is not None and can_continue and outcome.status in ("done", "max_iterations", "truncated"):
            # The compaction was asked for when no iteration was left.
            self.tree.main.run = self.tree.main.run or self._create_compaction_run(run.focus)
            self.tree.main.run.focus = run.focus
        # A listener of the result may start the next run. The start is recorded after this step.
        self._is_ending = True
        self._settle(run, outcome, (*run.undelivered, *leftover))
        self._is_ending = False
        self._inbox.room.set()
        self._changed.set()
        if self.active is not None:
            self._record_start(self.active)

    # ------------------------------------------------------------------------------------------- the end of a run

    def exit_code(self, *, interrupted: bool = False, terminated: bool = False) -> int:
        """Return the exit code of the process for all runs and lines so far.

        ``interrupted``: the user ended the process. ``terminated``: SIGTERM ended it.
        """
        ledger = self._shared.ledger
        undelivered = ledger.returned + ledger.unsent + (0 if self.interactive else ledger.refused)
        codes = {LINES_LEFT: undelivered, INTERRUPTED_CODE: interrupted, SIGTERM_CODE: terminated}
        return exit_code([*self._codes, *(code for code, applies in codes.items() if applies)])

    def _settle(self, run: Run, outcome: Outcome, leftover: Sequence[AcceptedLine]) -> None:
        """Settle the lines that a run did not deliver (``leftover``), then record and emit the run's result.

        This is one step without an ``await``.
        """
        for accepted in sorted(leftover, key=lambda accepted: accepted.number):
            was_done = accepted.is_carried_out or accepted.is_used
            # The line of a job is not returned, since no user can send it again.
            is_for_next_run = accepted.line.kind == "job" and not self.is_closing and self._journal.failure is None
            if (self._leaves_lines or is_for_next_run) and not was_done:
                accepted.is_leaving = False
                continue
            state: events.State = "handled" if was_done else "returned"
            reason = "" if was_done else outcome.status
            self._shared.ledger.settle(accepted, state, iteration=run.iteration, reason=reason)
        self.last_status = outcome.status
        self._codes.add(EXIT_CODES[outcome.status])
        recorded = self._journal.record_if_possible(
            records.Result(
                outcome.status, outcome.result, run.iteration, run.usage, outcome.phase_reached, short=outcome.short
            )
        )
        ended, *notices = recorded.events
        assert isinstance(ended, events.Result)
        settled = self._shared.ledger.settled()
        result = replace(
            ended,
            partial_results=outcome.partial_results,
            exit_code=self.exit_code(),
            receipts=settled.receipts,
            unsent=settled.unsent,
        )
        self._journal.emit_after_acks(lambda: self._shared.emit(result))
        for notice in [] if self.is_closing else notices:
            self._journal.emit_after_acks(partial(self._shared.emit, notice))

    def return_job_lines(self, reason: str) -> None:
        """Settle the waiting lines of jobs as ``returned``, since the session closes.

        Do nothing in an interactive session or after ``leave``: the lines then wait until the session is resumed.
        """
        if self._leaves_lines or self.interactive:
            return
        for accepted in self._inbox.all_lines():
            if accepted.line.kind == "job":
                self._shared.ledger.settle(accepted, "returned", iteration=0, reason=reason)

    # ------------------------------------------------------------------------------- instructions, tools and model

    async def read_instructions(self) -> None:
        """Read the project's instructions, and use them if they have changed. Must not be called within a run.

        Raise ``JournalError`` if new instructions cannot be recorded. The previous ones then stay in use.
        """
        record = await self._load_instructions(self.state.instructions)
        if record != self.state.instructions:
            self._record_and_use(record)

    async def _prepare(self, run: Run) -> None:
        """Read the instructions and list the server tools for a run. A stop or an interrupt cancels both."""
        if not run.is_ending:
            # If the disk is full, the run fails by itself at its first message.
            with run.cut_scope("stop", "interrupt"), suppress(JournalError):
                await self.read_instructions()
                if self._has_new_directory:
                    self.use_context()
                if self._server_tools is not None:
                    offered = await self._server_tools.offer()
                    if offered != self.state.server_tools:
                        self._record_and_use(offered)

    def _record_and_use(self, record: records.InstructionsRead | records.ServerTools) -> None:
        """Record new instructions or server tools, and use them in the run that starts."""
        recorded = self._journal.record(record)
        self.use_context()
        self._journal.emit_after_acks(recorded.emit)

    def use_context(self) -> None:
        """Update the main agent's spec with the instructions, added directories and server tools of the state.

        Must be called before the first step of a run.
        """
        self._has_new_directory = False
        with_context = partial(replace, instructions=self.state.system_instructions)
        if self._server_tools is not None:
            with_context = partial(with_context, registry=self._server_tools.registry(self.state.server_tools))
        agent = self.tree.main.agent
        # The specs of this run and of the next one, which may have another model.
        agent.spec, self.spec = with_context(agent.spec), with_context(self.spec)
        self.executor.use_spec()

    def add_directory(self, path: str) -> bool:
        """Allow tools to read a directory, and to edit files in it with approval.

        Return ``False`` if they already may do so. The main agent's system prompt names the directory from the next
        run on. Raise ``UserError`` if there is no such directory, and ``JournalError`` if the record fails.
        """
        real = added_root(self._shared.workspace, self.state.added_directories, path)
        if real == Path():
            return False
        recorded = self._journal.record(records.DirectoryAdded(str(real)))
        self._has_new_directory = True
        if self.active is None:
            self.use_context()
        self._journal.emit_after_acks(recorded.emit)
        return True

    def use_model(self, model: Model, retries: Retries | None) -> None:
        """Use another model from the next run on. Without ``retries``, keep the current retry settings.

        Raise ``UserError`` if the session is closing, and ``JournalError`` if the change cannot be recorded.
        """
        if self.is_closing:
            raise UserError("the chain is closing")
        self._journal.record(records.Model(model.name))
        self.spec = self._spec_with(model, retries)
        if self.active is None:
            self.tree.main.agent.spec = self.spec

    def use_mode(self, mode: Mode) -> None:
        """Change the mode from the next tool call on.

        Raise ``UserError`` if the session is closing, and ``JournalError`` if the change cannot be recorded.
        """
        if self.is_closing:
            raise UserError("the chain is closing")
        if mode != self.state.mode:
            self._journal.emit_after_acks(self._journal.record(records.Mode(mode)).emit)

    def use_effort(self, level: str) -> None:
        """Use the effort ``level`` from the next run on.

        Raise ``UserError`` if the session is closing, and ``JournalError`` if the change cannot be recorded.
        """
        if self.is_closing:
            raise UserError("the chain is closing")
        self._journal.record(records.Effort(level))
        self.spec = replace(self.spec, effort=level)
        if self.active is None:
            self.tree.main.agent.spec = self.spec

    def use_model_once(self, model: Model, retries: Retries | None) -> None:
        """Use another model for the active run only. Must be called before the first step of the run."""
        assert self.active is not None
        self._journal.record_if_possible(records.Model(model.name, once=True))
        self.tree.main.agent.spec = self._spec_with(model, retries)  # ``_end`` replaces it by that of the next run

    def _spec_with(self, model: Model, retries: Retries | None) -> AgentSpec:
        self._models = [*(each for each in self._models if each is not model), model]
        limits = self.spec.limits if retries is None else replace(self.spec.limits, retries=retries)
        return replace(self.spec, model=model, limits=limits)

    def _record_plan_change(self, change: PlanChange) -> None:
        """Record and emit a change of the plan. Raise ``JournalError``, and leave the plan unchanged, if this fails."""
        self._journal.emit_after_acks(self._journal.record(change).emit)

    async def end_runs(self) -> None:
        """Refuse further lines, interrupt the active run, and wait for its end."""
        self.is_closing = True
        self._changed.set()
        self.interrupt()
        await self.wait_idle()

    async def close(self) -> None:
        """Flush the journal, and close all models that were used."""
        self._inbox.room.close()
        models, self._models = self._models, []
        try:
            await self._journal.sync()
        finally:
            await close_models(models)

    def _create_waiting_run(self, ended: events.Status | None = None) -> Run | None:
        """Take the oldest follow-up from the inbox, and return a run with it as the query and with the waiting lines.

        Return ``None`` if no waiting line starts a run. The run delivers the other lines, except later follow-ups,
        before its first model call. ``ended`` is the status of a run that ends in this step: lines of jobs alone then
        start a run only if the status is ``done`` and one of the jobs wakes the session.
        """
        query = self._inbox.take_follow_up()
        lines = self._inbox.waiting()
        is_wanted = any(ended is None or a.line.kind != "job" or (ended == "done" and a.wakes) for a in lines)
        return self._create_run(query) if query is not None or is_wanted else None

    def _create_compaction_run(self, focus: str) -> Run:
        run = self._create_run(None)
        run.focus, run.only_compacts = focus, True
        return run

    def _create_run(self, query: AcceptedLine | None) -> Run:
        return Run(query, delegating=Delegation(self.children, self.tree.main))


async def close_models(models: Iterable[Model]) -> None:
    """Close models, each within ``CLOSE_S``, even if the caller is cancelled."""
    for model in models:
        with trio.move_on_after(CLOSE_S, shield=True):
            await model.aclose()
