"""The runs of a session, one after the other: how one begins, what follows it, and which model it asks.

A run is active from the step in which a line starts it to the step that ends it. Both are synchronous, so at any time
either a run is active or the next line starts one. Between two runs the executor and its model can be replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import trio

from chain import events
from chain.agent import endings
from chain.agent.conversation import Conversation
from chain.agent.executor import Executor
from chain.agent.run import Limits, Outcome, Run
from chain.errors import JournalError, UserError
from chain.lines.inbox import Inbox
from chain.lines.receipts import Emit
from chain.model import Model
from chain.plan import Author
from chain.session.account import Account
from chain.session.journal import Journal
from chain.session.trace import Trace, TracedModel


class Runs:
    """Runs what is begun.

    ``make_executor(model=, limits=, conversation=)`` gives an executor in its first state; ``look()`` is called before
    each run, for what the user should hear of at once.
    """

    def __init__(
        self,
        *,
        make_executor: Callable[..., Executor],
        model: Model,
        limits: Limits,
        trace: Trace | None,
        inbox: Inbox,
        account: Account,
        journal: Journal,
        emit: Emit,
        interactive: bool,
        look: Callable[[], None],
    ) -> None:
        self.active: Run | None = None
        self.is_closing = False
        self.has_ended = False
        self.limits = limits
        self._make_executor = make_executor
        self._models = [model]
        self._trace = trace
        self._executor = self._new_executor()
        self._inbox = inbox
        self._account = account
        self._journal = journal
        self._emit = emit
        self._interactive = interactive
        self._look = look
        self._wake = trio.Event()
        self._idle = trio.Event()
        self._idle.set()
        self._room = trio.Event()
        self._inbox.when_room(self._wake_senders)
        self._is_ending = False

    # ------------------------------------------------------------------------------------------- one after the other

    def begin(self, run: Run) -> None:
        """Make a run the active one; none may be active."""
        self.active = run
        if self._idle.is_set():
            self._idle = trio.Event()
        self._wake.set()
        if not self._is_ending:
            self._announce(run)

    async def forever(self) -> None:
        """Run what is begun, and what follows it."""
        try:
            while True:
                await self._wake.wait()
                self._wake = trio.Event()
                while self.active is not None:
                    run = self.active
                    self._look()
                    self._end(run, await self._executor.run(run))
        finally:
            self.has_ended = self.is_closing = True
            if self.active is not None:
                # A mistake of our own, or whoever opened the chain was cancelled: what waits is still the user's.
                self._end(self.active, Outcome("error", "The program ended in the middle of the run."))

    async def wait_idle(self) -> None:
        """Wait until no run is active and everything about the last one has been told."""
        while True:
            await self._idle.wait()
            with suppress(JournalError):
                await self._journal.flush()
            if self.active is None:
                return

    @property
    def has_room(self) -> bool:
        """Whether a line would neither be refused for want of room nor come between a stop and its end."""
        return self.active is None or not (self._inbox.is_full or self.active.stop_asked)

    async def wait_for_room(self) -> None:
        """Wait until there is room for a line."""
        while not self.has_room:
            if self._room.is_set():
                self._room = trio.Event()
            await self._room.wait()

    def _announce(self, run: Run) -> None:
        query = run.query
        started = events.RunStarted(id=query.id if query else "", query=query.line.message if query else "")
        self._journal.in_order(lambda: self._emit(started))

    def _end(self, run: Run, outcome: Outcome) -> None:
        """Settle the lines of a run that ended, and begin the next one if lines ask for it; all in one step.

        What is still to come is decided before anything is told, since a listener may submit a line at once.
        """
        follows = self._interactive or any(a.line.kind == "follow-up" for a in self._inbox.waiting())
        can_go_on = not self.is_closing and self._journal.failure is None
        kept = can_go_on and endings.keeps_lines(outcome.status, run_follows=follows)
        returned = () if kept else self._inbox.take_all()
        query = self._inbox.next_follow_up() if kept else None
        self._hand_over_model()
        self.active = Run(query) if query is not None or len(self._inbox) else None
        # A listener may start the next run on hearing of this one's end. It is announced when all of that is told.
        self._is_ending = True
        self._account.settle(run, outcome, (*run.stranded, *returned))
        self._is_ending = False
        self._wake_senders()
        if self.active is None:
            self._idle.set()
        else:
            self._announce(self.active)

    def _wake_senders(self) -> None:
        self._room.set()

    # ------------------------------------------------------------------------------------------- with which model

    @property
    def model(self) -> Model:
        """The model that the next run asks."""
        return self._models[-1]

    def use_model(self, model: Model, max_attempts: int | None) -> None:
        """Ask another model from the next run on. Raises ``JournalError``, and everything is as it was."""
        self._journal.record("model", {"name": model.name})
        self._models = [*(held for held in self._models if held is not model), model]
        if max_attempts is not None:
            self.limits = replace(self.limits, max_attempts=max_attempts)
        if self.active is None:
            self._hand_over_model()

    def start_afresh(self) -> None:
        """Begin a new conversation. Raises ``UserError`` while a run is active, and ``JournalError``."""
        if self.active is not None:
            raise UserError("a run is active; stop it first")
        old = self._executor
        fields = {"messages": len(old.conversation.messages), "agent": old.agent, "reason": "new"}
        self._journal.record("withdrawn", fields)
        # What else the old one knew (calls left open, lines to give back) is of a history that is gone.
        self._executor = self._new_executor()

    def plan_changed(self, by: Author) -> None:
        """Take note that the plan changed: the model is told, unless it did it itself."""
        self._executor.plan_changed(by)

    async def aclose(self) -> None:
        """Close all models that were in use."""
        # One that is no longer asked holds idle connections at most, which may wait until here.
        for model in self._models:
            await model.aclose()

    def _new_executor(self) -> Executor:
        return self._make_executor(model=self._traced_model(), limits=self.limits, conversation=Conversation())

    def _hand_over_model(self) -> None:
        self._executor.use_model(self._traced_model(), self.limits.max_attempts)

    def _traced_model(self) -> Model:
        return self.model if self._trace is None else TracedModel(self.model, self._trace)
