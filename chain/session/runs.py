"""The runs of a session, one after the other: how one begins, what follows it, which model it asks, what it came to.

A run is active from the step in which a line starts it to the step that ends it. Both are synchronous, so at any time
either a run is active or the next line starts one. Between two runs the executor and its model can be replaced.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import trio

from chain import events
from chain.agent.children import Children, Delegation
from chain.agent.executor import Executor
from chain.agent.spec import Shared
from chain.agent.state import Outcome, Run, keeps_lines
from chain.agent.tree import AgentTree
from chain.agent.window import WindowView
from chain.errors import JournalError
from chain.exit_codes import EXIT_CODES, INTERRUPTED_CODE, LINES_LEFT, SIGTERM_CODE, exit_code
from chain.journal import records
from chain.journal.records import PlanChange
from chain.lines.accepted import Accepted
from chain.model import Model
from chain.retries import Retries
from chain.session.state import State
from chain.signal import Signal
from chain.tools.registry import Registry

CLOSE_S = 1.0
"""How long the closing of a model may take: it is its connections, which end with the process as well."""


ReadInstructions: TypeAlias = Callable[[records.InstructionsRead], Awaitable[records.InstructionsRead]]
"""Reads the project's instructions as they are now; it is given what was read last."""


async def no_instructions(latest: records.InstructionsRead) -> records.InstructionsRead:
    """There are none."""
    return records.InstructionsRead()


@dataclass(frozen=True, slots=True)
class Offers:
    """Where the tools of servers come from: what they ``offer`` now, and the main agent's ``registry`` with these."""

    offer: Callable[[records.ServerTools], Awaitable[records.ServerTools]]
    registry: Callable[[records.ServerTools], Registry]


class SessionRuns:
    """Runs what is begun with the main agent, and adds up what the runs used.

    ``interactive``: a person types the lines. They can start a run with the lines that wait, and one that was refused
    is still in their editor, so it is no failure. ``reads`` is asked for the project's instructions as a run begins,
    and ``offers`` for the tools of servers.
    """

    def __init__(
        self,
        state: State,
        tree: AgentTree,
        children: Children,
        shared: Shared,
        *,
        interactive: bool,
        reads: ReadInstructions,
        offers: Offers | None,
    ) -> None:
        self.is_closing = False
        self.last_status: events.Status | None = None
        self.state = state
        self.spec = tree.main.agent.spec
        """What the next run is made with."""
        self._reads = reads
        self._offers = offers
        self.tree = tree
        self.children = children
        self._shared = shared
        self._models = [self.spec.model]
        self._inbox = tree.main.inbox
        self._journal = shared.journal
        self.interactive = interactive
        self._codes: set[int] = set()
        self.executor = Executor(tree.main.agent)
        self._changed = Signal()
        """A run has begun or ended, or none is to begin any more."""
        self._is_ending = False
        self._leaves_lines = False
        """Whether the program ends, so that waiting lines stay queued for whoever resumes the session."""
        shared.plan.record = self._record_plan_change

    # ------------------------------------------------------------------------------------------- one after the other

    @property
    def iteration(self) -> int:
        """The iteration of the run that is active; 0 without one."""
        return 0 if self.active is None else self.active.iteration

    @property
    def active(self) -> Run | None:
        """The run that is active."""
        return self.tree.main.run

    def begin(self, query: Accepted) -> None:
        """Make a run of this query the active one; none may be active."""
        self._begin(self._new_run(query))

    def begin_waiting(self) -> bool:
        """Begin a run with the lines that wait, if none is active and there are any. Whether it was begun."""
        run = None if self.active is not None else self._run_of_waiting()
        if run is not None:
            self._begin(run)
        return run is not None

    def _begin(self, run: Run) -> None:
        self.tree.main.run = run
        self._changed.set()
        if not self._is_ending:
            self._announce(run)

    def compact(self, focus: str) -> None:
        """Compact the main agent's conversation at its next safe point, or at once. Raises ``JournalError``."""
        told = self._journal.record(records.CompactionAsked(self.spec.name, focus))
        self._journal.in_order(told.emit)
        if self.active is not None:
            self.active.focus = focus
            return
        self._begin(self._run_of_compaction(focus))

    def interrupt(self) -> bool:
        """Cancel the work in hand, and withdraw what is asked. Whether a run is active."""
        return self._interrupt("user")

    def leave(self) -> None:
        """Accept no more lines, and interrupt as the program ends: waiting lines stay queued."""
        if not self._leaves_lines:
            self.is_closing = self._leaves_lines = True
            self._interrupt("exit")

    def _interrupt(self, by: Literal["user", "exit"]) -> bool:
        self._shared.questions.withdraw()
        run = self.active
        if run is None:
            return False
        if by == "exit" or not run.interrupted:
            # A full disk must not keep anybody from interrupting.
            cut = records.Interrupted(self.spec.name, run.iteration, run.step.phase, by)
            self._journal.record_if_possible(cut)
        self.tree.main.interrupt()
        return True

    async def forever(self) -> None:
        """Run what is begun, and what follows it, until no more is accepted."""
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
                # A mistake of our own: what waits is still the user's.
                self._end(self.active, Outcome("error", "The program ended in the middle of the run."))

    async def wait_idle(self) -> None:
        """Wait until no run is active and every event of the last one has been emitted."""
        await trio.lowlevel.checkpoint()
        while True:
            while self.active is not None:
                await self._changed.wait()
            with suppress(JournalError):
                await self._journal.flush()
            if self.active is None:
                return

    def _announce(self, run: Run) -> None:
        begun = records.RunBegun("" if run.query is None else run.query.on_record, run.only_compacts)
        # The run fails by itself if the disk is still full at its first message.
        self._journal.in_order(self._journal.record_if_possible(begun).emit)

    def _end(self, run: Run, outcome: Outcome) -> None:
        """Settle the lines of a run that ended, and begin the next one if lines ask for it; all in one step.

        What is still to come is decided before anything is emitted, since a listener may submit a line at once.
        """
        follows = self.interactive or any(a.line.kind == "follow-up" for a in self._inbox.waiting())
        can_go_on = not self.is_closing and self._journal.failure is None
        kept = can_go_on and keeps_lines(outcome.status, run_follows=follows)
        if not kept:
            self._inbox.drain_all()
        left = () if kept else self._inbox.everything()
        self.tree.main.agent.spec = self.spec
        self.tree.main.run = self._run_of_waiting()
        if run.focus is not None and can_go_on and outcome.status in ("done", "max_iterations", "truncated"):
            # It was asked for when no iteration was left before which it could be done.
            self.tree.main.run = self.tree.main.run or self._run_of_compaction(run.focus)
            self.tree.main.run.focus = run.focus
        # A listener may start the next run on hearing of this one's end. It is announced after all of that.
        self._is_ending = True
        self._settle(run, outcome, (*run.undelivered, *left))
        self._is_ending = False
        self._inbox.room.set()
        self._changed.set()
        if self.active is not None:
            self._announce(self.active)

    # ------------------------------------------------------------------------------------------- what it came to

    def exit_code(self, *, interrupted: bool = False, terminated: bool = False) -> int:
        """The exit code of the process as things stand; ``terminated``: by SIGTERM."""
        ledger = self._shared.ledger
        left = ledger.returned + ledger.unsent + (0 if self.interactive else ledger.refused)
        codes = {LINES_LEFT: left, INTERRUPTED_CODE: interrupted, SIGTERM_CODE: terminated}
        return exit_code([*self._codes, *(code for code, holds in codes.items() if holds)])

    def _settle(self, run: Run, outcome: Outcome, left: Sequence[Accepted]) -> None:
        """Give back the lines that are left, add up the run, record and emit its result; all in one step."""
        for accepted in sorted(left, key=lambda accepted: accepted.number):
            was_done = accepted.is_carried_out or accepted.was_used
            if self._leaves_lines and not was_done:
                accepted.is_leaving = False
                continue
            state: events.State = "handled" if was_done else "returned"
            reason = "" if was_done else outcome.status
            self._shared.ledger.settle(accepted, state, iteration=run.iteration, reason=reason)
        self.last_status = outcome.status
        self._codes.add(EXIT_CODES[outcome.status])
        # A full disk must not keep the run from ending.
        told = self._journal.record_if_possible(
            records.Result(
                outcome.status, outcome.result, run.iteration, run.usage, outcome.phase_reached, short=outcome.short
            )
        )
        (ended,) = told.events
        assert isinstance(ended, events.Result)
        settled = self._shared.ledger.settled()
        result = replace(
            ended,
            partial_results=outcome.partial_results,
            exit_code=self.exit_code(),
            receipts=settled.receipts,
            unsent=settled.unsent,
        )
        self._journal.in_order(lambda: self._shared.emit(result))

    # ------------------------------------------------------------------------------------------- with what it is made

    async def read_instructions(self) -> None:
        """Read the project's instructions again; between two runs. Raise ``JournalError``, and nothing has changed."""
        read = await self._reads(self.state.instructions)
        if read != self.state.instructions:
            told = self._journal.record(read)
            self.use_instructions()
            self._journal.in_order(told.emit)

    def use_instructions(self) -> None:
        """Give all agents the instructions that were read last; no run has taken its first step."""
        self._change_spec(instructions=self.state.instructions.text)

    async def _prepare(self, run: Run) -> None:
        """Read the instructions and list tools for a run that was begun, unless the user ends it meanwhile."""
        if not run.is_ending:
            # Where the disk is full, the run fails by itself at its first message.
            with run.cut_by("stop", "interrupt"), suppress(JournalError):
                await self.read_instructions()
                await self._list_server_tools()

    async def _list_server_tools(self) -> None:
        """Give the run the tools that servers offer now. Raise ``JournalError``, and nothing has changed then."""
        if self._offers is None:
            return
        offered = await self._offers.offer(self.state.server_tools)
        if offered != self.state.server_tools:
            told = self._journal.record(offered)
            self.use_server_tools()
            self._journal.in_order(told.emit)

    def use_server_tools(self) -> None:
        """Use the tools that servers offered last; no run has taken its first step."""
        if self._offers is not None:
            self._change_spec(registry=self._offers.registry(self.state.server_tools))

    def _change_spec(self, **changes: Any) -> None:  # noqa: ANN401 - the fields of a dataclass
        """Change the spec of this run, and that of the next, which may have another model."""
        agent = self.tree.main.agent
        agent.spec = replace(agent.spec, **changes)
        self.spec = replace(self.spec, **changes)
        self.executor.use_spec()

    def use_model(self, model: Model, retries: Retries | None) -> None:
        """Ask another model from the next run on. Raises ``JournalError``, and everything is as it was."""
        self._journal.record(records.Model(model.name))
        self._models = [*(held for held in self._models if held is not model), model]
        limits = self.spec.limits
        if retries is not None:
            limits = replace(limits, retries=retries)
        self.spec = replace(self.spec, model=model, limits=limits)
        if self.active is None:
            self.tree.main.agent.spec = self.spec

    @property
    def window(self) -> WindowView:
        """What fills the window of the main agent's model."""
        return self.executor.compaction.view()

    def _record_plan_change(self, change: PlanChange) -> None:
        """Record a change of the plan, then emit it. Raise ``JournalError``, and the plan then stays as it was."""
        self._journal.in_order(self._journal.record(change).emit)

    async def end_runs(self) -> None:
        """Let no run begin any more, interrupt the one that is active, and wait for its ending."""
        self.is_closing = True
        self._changed.set()
        self.interrupt()
        await self.wait_idle()

    async def close(self) -> None:
        """Bring everything to the disk, and close all models that were in use."""
        self._inbox.room.close()
        # One that is no longer asked holds idle connections at most, which may wait until here.
        models, self._models = self._models, []
        try:
            await self._journal.sync()
        finally:
            await close_models(models)

    def _run_of_waiting(self) -> Run | None:
        """The run that the waiting lines ask for, if there are any. Its query is the oldest follow-up.

        Without a follow-up it has no query of its own. The other lines enter at A, later follow-ups excepted.
        """
        query = self._inbox.next_follow_up()
        return self._new_run(query) if query is not None or len(self._inbox) else None

    def _run_of_compaction(self, focus: str) -> Run:
        run = self._new_run(None)
        run.focus, run.only_compacts = focus, True
        return run

    def _new_run(self, query: Accepted | None) -> Run:
        return Run(query, delegating=Delegation(self.children, self.tree.main))


async def close_models(models: Iterable[Model]) -> None:
    """Close models, each in a time of its own, also where the caller is cancelled."""
    for model in models:
        with trio.move_on_after(CLOSE_S, shield=True):
            await model.aclose()
