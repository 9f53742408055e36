"""The loop of one agent: ask the model, run its tool calls, and deliver the user's lines at the safe points between.

::

    append the query
    A     deliver the lines carried over
    for each iteration:
          ask the model              nothing is delivered while it answers
          append the reply
          no tool calls?        B    deliver what waits and continue; nothing waits: done
          for each batch:       C    an urgent line or a stop waits: skip the rest
          append the results
                                D    deliver what waits
    N     a now line, at any time: cut the reply or the tools, deliver what waits, continue

The letters are the values of ``Point``. Apart from the query, a line enters only in ``Delivery.deliver``, one step
without an ``await``, at A, B, D (called C after skipped tools) and N. Before the next request ``_flush`` waits until
the lines in it are acknowledged. Lines that come during a compaction are delivered after it (``_make_room``).

What each act of the user does, depending on where the run is at that moment (in any step that awaits or emits)::

                                         now line                  stop                   interrupt (Esc)
    before A                             enters at A               the run ends           cancels the run
    from a safe point to the request     N, nothing is cut         the run ends           cancels the run
    while the model is asked             N, the reply is cut       the reply is cut       cancels the run
    in a pause between two requests      N, the pause ends         the pause ends         cancels the run
    from the reply to its first tool     C, all are skipped        all are skipped        cancels the run
    while its tools run                  N, they are cancelled     the rest is skipped    cancels the run
    after its last tool, until D         enters there              the run ends           cancels the run
    after a reply without tools, until B enters there              the run ends           cancels the run
    from the ending on                   waits, or goes back       see ``agent.state``    see ``agent.state``

``Run`` exists from the step in which a line starts it, so no stop is lost that comes before the loop's first step. A
now line cancels only scopes that exist, so nothing is awaited or emitted between the last check of the inbox and
``cut_by``, which makes one. What a stop or an interrupt leaves half done is completed outside the cancelled scope, in
``_end``, before any listener hears of the ending. ``tool_calls`` says what becomes of a started tool.

On a full disk, which may be temporary (a failed sync is final, see ``Journal.failure``):

- A line is refused.
- A message, the start or end of a request, or the start of a call that cannot be recorded raises ``JournalError``. The
  run ends with ``error``, and a tool does not start.
- A cut, a receipt and the run's result take effect even if they cannot be recorded, and their events are emitted
  (``Journal.record_if_possible``). So is a tool's result, but then the run ends with ``error``.
- Calls without a recorded result stay open. The next run answers them first. After a stop or an interrupt the next run
  of the same process also adds the note that says so (``_left``).
"""

from __future__ import annotations

from typing import Literal

import trio

from chain import events
from chain.agent.compaction import Compactor
from chain.agent.delivery import Delivery
from chain.agent.model_call import BudgetSpent, ModelCalls
from chain.agent.spec import AgentContext, Limits
from chain.agent.state import Outcome, Run, Step
from chain.agent.tool_calls import ToolCalls
from chain.errors import JournalError, ModelError
from chain.events import CompactedBy, Point
from chain.journal import records
from chain.messages import TOO_LONG, Message, Text, assistant, user_text
from chain.model import Reply
from chain.text.wording import INTERRUPT_NOTE, PLEASE_CONTINUE, PROGRAM_ENDED, STOP_NOTE, counted


class Executor:
    """The loop of one agent."""

    def __init__(self, context: AgentContext) -> None:
        shared = context.shared
        self.context = context
        self.agent = context.name
        self.conversation = context.conversation
        self.inbox = context.inbox
        self._model = ModelCalls(context)
        self._tools = ToolCalls(context)
        self._delivery = Delivery(context)
        self._shared = shared
        self.compaction = Compactor(context, self._model)
        self._left: tuple[Run, str] | None = None
        """A run whose end could not be recorded, and its status."""

    @property
    def _limits(self) -> Limits:
        return self.context.spec.limits

    def use_spec(self) -> None:
        """Follow a change of the agent's spec, so that what a request would fill is known before the next one."""
        self._model.use_spec()

    def end_here(self) -> None:
        """Complete the history of a run whose process ended, with a note of that. Raise ``JournalError``."""
        self.catch_up()
        note, messages = user_text(PROGRAM_ENDED), self.conversation.messages
        if messages and messages[-1] != note:
            self.context.append(note)

    async def run(self, run: Run) -> Outcome:
        """Run the loop to its end, and return the outcome. Nothing is awaited after the outcome is decided.

        The history is valid afterwards, also if this call is cancelled, as when the run above ends.
        """
        try:
            ending = await self._run(run)
        except (trio.Cancelled, BaseExceptionGroup):
            self._end(run, None)
            raise
        return self._end(run, ending)

    def _end(self, run: Run, ending: Outcome | None) -> Outcome:
        """Complete the history and return the outcome. On a full disk the next run completes it."""
        outcome = run.outcome(ending, self._limits.timeout_s)
        if self._left is None:  # otherwise this run did not get past ``catch_up``
            try:
                self._complete(run, outcome.status)
            except JournalError:
                run.step.shown.clear()  # the next run would emit it as a reply of its own
                self._left = run, outcome.status
        return outcome

    async def _run(self, run: Run) -> Outcome | None:
        """Return the loop's own ending, or ``None`` if its scope was cancelled."""
        outcome: Outcome | None = None
        try:
            self.catch_up()
            if run.query is not None:
                self._delivery.query(run, run.query)
            elif run.task:
                self.context.append(user_text(run.task))
            run.scope.deadline = trio.current_time() + self._limits.timeout_s
            with run.scope:
                try:
                    outcome = await self._loop(run)
                except BudgetSpent as spent:
                    outcome = self._limit_reached(run, str(spent))
        except ModelError as error:
            # The interrupt may have caused the error.
            return None if run.interrupted else self._failed(run, "model", str(error))
        except JournalError as error:
            return self._failed(run, "journal", str(error))
        if outcome is None and not run.interrupted:
            self._record_cut(run, run.step.phase, "time")
        return outcome

    def _complete(self, run: Run, status: str) -> None:
        """Answer the open calls, and note what cut the run short. Raise ``JournalError``; it can then be repeated."""
        was_stopped, was_interrupted = status.startswith("cancelled"), status == "interrupted"
        if self.conversation.open_calls:
            self._tools.answer_open(run)
        shown = "".join(run.step.shown)
        if (was_stopped or was_interrupted or status == "limit_reached") and shown.strip() and not run.step.appended:
            self._append_reply(run, assistant([Text(shown)]))
        if (was_stopped or was_interrupted) and not run.only_compacts:
            self.context.append(user_text(STOP_NOTE if was_stopped else INTERRUPT_NOTE))

    def catch_up(self) -> None:
        """Complete what an earlier run or process could not. Raise ``JournalError``."""
        if self._left is not None:
            self._complete(*self._left)
            self._left = None
        elif self.conversation.open_calls:
            self._tools.answer_open(Run())

    # ------------------------------------------------------------------------------------------------- the loop

    async def _loop(self, run: Run) -> Outcome:
        # A run that was interrupted before its first step delivers no lines: they go back to the user.
        await trio.lowlevel.checkpoint_if_cancelled()
        if run.only_compacts:
            return await self._compact_alone(run)
        if not run.stop_asked and not self._delivery.deliver(run, Point.BEFORE_FIRST_CALL) and not run.asked_for:
            return self._done(run)  # the carried lines were dropped at the last moment
        limits = self._limits
        while run.iteration < limits.max_iterations:
            run.step = Step()
            await self._flush()
            if run.stop_asked:
                return self._done(run)
            if spent := limits.spent(run.used):
                return self._limit_reached(run, spent)
            if (by := self.compaction.due(run)) is not None:
                if (outcome := await self._make_room(run, by)) is not None:
                    return outcome
                continue
            run.iteration += 1
            most = limits.max_iterations
            self._shared.emit(events.IterationStarted(agent=self.agent, iteration=run.iteration, max_iterations=most))
            reply = await self._ask(run)
            if reply is not None and self.compaction.may_help(run, reply):
                was_shown = bool(run.step.shown)
                outcome = await self._make_room(run, "service")
                if outcome is None:
                    if was_shown:
                        self._model.tell_again(run, 1, 0.0, "the conversation no longer fitted the model's window")
                    reply = await self._ask(run)
                elif outcome.status != "context_full" or not (reply.message.answer and self.compaction.has_past):
                    return outcome
            outcome = self._after_cut(run) if reply is None else await self._apply(run, reply)
            if outcome is not None:
                return outcome
        return self._at_limit(run)

    async def _make_room(self, run: Run, by: CompactedBy) -> Outcome | None:
        """Compact the conversation, then deliver what came meanwhile. Return ``None`` if the next request may fit."""
        while True:
            attempted = await self.compaction.make_room(run, by)
            was_cut = attempted.what == "cut"
            if was_cut:
                self._record_cut(run, "thinking", "line")
            await trio.lowlevel.checkpoint_if_cancelled()
            if run.stop_asked:
                return self._done(run)
            run.step = Step()
            is_too_long = by == "service" and attempted.what == "failed"
            if is_too_long or (not was_cut and self.compaction.is_hopeless()):
                return self._context_full(run)
            point = Point.AFTER_TOOLS if run.iteration else Point.BEFORE_FIRST_CALL
            point = Point.AT_ONCE if was_cut else point
            left = self._limits.max_iterations - run.iteration + (by == "service")
            if self._limits.spent(run.used):
                self._delivery.settle_todos(run)  # no call is left to answer other lines
            else:
                self._delivery.deliver(run, point, calls_left=left)
            await self._flush()
            if not was_cut or by != "service":
                return None

    async def _compact_alone(self, run: Run) -> Outcome:
        """Run a compaction that the user asked for between two runs. Lines that come meanwhile start the next run."""
        await self._flush()
        if run.stop_asked:
            return self._done(run)
        attempted = await self.compaction.make_room(run, "user")
        if attempted.what == "cut":
            self._record_cut(run, "thinking", "line")
        return Outcome("done", attempted.sentence)

    async def _ask(self, run: Run) -> Reply | None:
        """Return the reply of this iteration, or ``None`` if a stop or a now line cut it.

        A now line that comes before the request, or in the pause before a retry, is delivered with it.
        """
        while True:
            await trio.lowlevel.checkpoint_if_cancelled()
            while self.inbox.has_now and not run.stop_asked and not self._limits.spent(run.used):
                self._delivery.deliver(run, Point.AT_ONCE, calls_left=self._limits.max_iterations - run.iteration + 1)
                await self._flush()
            # No await from here to the scope that a now line cancels.
            news = self.context.state.news.pending(self._shared.plan, self.agent)
            tail = tuple(text for text in (run.expectation.post_prompt, news) if text)
            reply = await self._model.reply(run, self.conversation.request(), tail)
            if reply is not None or run.stop_asked or run.step.is_asking:
                return reply

    async def _flush(self) -> None:
        """Wait until the lines in the next request are acknowledged. Once per request, because the wait is slow."""
        await self._shared.journal.flush()
        await trio.lowlevel.checkpoint_if_cancelled()

    def _after_cut(self, run: Run) -> Outcome | None:
        """Append the part of a cut reply that was shown, which is no answer, and deliver the lines at ``AT_ONCE``."""
        self._record_cut(run, run.step.phase, "line")
        if run.stop_asked:
            return self._done(run)
        shown = "".join(run.step.shown)
        if shown.strip():
            self._append_reply(run, assistant([Text(shown)]), is_whole=False)
            run.expectation = run.expectation.after_reply()
        self._deliver_midway(run, Point.AT_ONCE)
        return None

    def _record_cut(self, run: Run, what: events.Phase, by: Literal["line", "time"]) -> None:
        # A full disk must not prevent a cut.
        cut = records.Interrupted(self.agent, run.iteration, what, by, run.step.cut_usage)
        self._shared.journal.record_if_possible(cut)

    def _deliver_midway(self, run: Run, point: Point, skipped: tuple[str, ...] = ()) -> None:
        """Deliver in mid-task, if a call is left to answer. Otherwise the loop ends."""
        if run.iteration == self._limits.max_iterations or self._limits.spent(run.used):
            self._delivery.settle_todos(run)
        elif not self._delivery.deliver(run, point, skipped) and self.conversation.state == "REPLIED":
            # The now line was dropped in the step in which it cut the reply.
            self.context.append(user_text(PLEASE_CONTINUE))

    async def _apply(self, run: Run, reply: Reply) -> Outcome | None:
        """Append a reply and run its calls. Return ``None`` if the loop continues."""
        message, text = reply.message, reply.message.answer
        if reply.stop_reason == "refusal":
            # The service would refuse every later request with these messages too.
            self._delivery.give_back(run, "refused")
            said = "The model refused to answer; what you wrote is yours again, to put it differently."
            return Outcome("refused", said)
        if reply.stop_reason == "pause_turn":
            if run.stop_asked:
                return self._done(run)
            raise ModelError("the model paused for a server tool; server tools are not supported, so take them out")
        if reply.stop_reason == TOO_LONG:
            if text:
                self._append_reply(run, assistant([Text(message.text)]))
            return self._context_full(run, text)
        if not text and not message.calls:
            await trio.lowlevel.checkpoint_if_cancelled()
            return self._empty(run)
        self._append_reply(run, message)
        if message.calls:
            was_skipped, unstarted = await self._tools.run(run, message.calls, reply.cut_calls)
            await trio.lowlevel.checkpoint_if_cancelled()
            return self._after_tools(run, unstarted, was_skipped=was_skipped)
        await trio.lowlevel.checkpoint_if_cancelled()
        return self._after_answer(run, Outcome("truncated", text) if reply.stop_reason == "max_tokens" else None)

    def _after_answer(self, run: Run, no_answer: Outcome | None) -> Outcome | None:
        """Deliver ``AFTER_REPLY``, or return to the task after an aside. ``no_answer`` ends a truncated reply."""
        if run.stop_asked:
            return self._done(run)
        spent = self._limits.spent(run.used)
        if spent or run.iteration == self._limits.max_iterations:
            # No call is left to answer other lines.
            self._delivery.settle_todos(run)
            waits = any(a.line.kind not in ("follow-up", "job") for a in self.inbox.waiting())
            if not waits and (no_answer or run.expectation.resume is None):
                return no_answer or self._done(run)
            return self._limit_reached(run, spent) if spent else self._at_limit(run)
        if self._delivery.deliver(run, Point.AFTER_REPLY):
            return None
        if no_answer:
            return no_answer
        resume, run.expectation = run.expectation.resume, run.expectation.after_reply()
        if resume is None:
            return self._done(run)
        self.context.append(user_text(resume))
        return None

    def _after_tools(self, run: Run, unstarted: tuple[str, ...], *, was_skipped: bool) -> Outcome | None:
        """Deliver ``AFTER_TOOLS``, or the point at which a line skipped or cut tools."""
        if run.step.was_cut:
            self._record_cut(run, "tools", "line")
        if run.stop_asked:
            return self._done(run)
        run.expectation = run.expectation.after_reply()
        point = Point.BEFORE_TOOL if was_skipped else Point.AFTER_TOOLS
        point = Point.AT_ONCE if run.step.was_cut else point
        self._deliver_midway(run, point, unstarted)
        return None

    def _append_reply(self, run: Run, message: Message, *, is_whole: bool = True) -> None:
        """Append a reply. A cut one (not ``is_whole``) is never the result."""
        projected = self.context.append(message, is_cut=not is_whole)
        run.step.appended = True
        run.unanswered.clear()
        text = message.answer
        if is_whole and text:
            run.last_reply = text
        if is_whole and not message.calls:
            run.answer = run.answer if run.expectation.asides_only else text
        projected.emit()

    # --------------------------------------------------------------------------------------------------- endings

    def _done(self, run: Run) -> Outcome:
        # ``Run.outcome`` replaces this after a stop.
        return Outcome("done", run.result)

    def _limit_reached(self, run: Run, spent: str) -> Outcome:
        self.context.notice(run.iteration, spent)
        return Outcome("limit_reached", run.result or spent)

    def _at_limit(self, run: Run) -> Outcome:
        why = f"the run has used {counted(run.iteration, 'iteration')}, its limit; raise max_iterations for longer runs"
        self.context.notice(run.iteration, why)
        unanswered = f"Stopped after {counted(run.iteration, 'iteration')} without a final answer."
        return Outcome("max_iterations", run.last_reply or unanswered)

    def _failed(self, run: Run, kind: str, message: str) -> Outcome:
        self._shared.emit(events.Error(agent=self.agent, iteration=run.iteration, message=message, kind=kind))
        return Outcome("error", message)

    def _empty(self, run: Run) -> Outcome | None:
        """After a reply without content: deliver what waits, otherwise ask once for more, then give up."""
        twice = " twice" if run.was_nudged else ""
        empty = Outcome("empty", f"The model gave an empty reply{twice}; put it differently, or try again.")
        outcome = self._after_answer(run, empty)
        if outcome is not empty or run.was_nudged or run.iteration == self._limits.max_iterations:
            return outcome
        run.was_nudged = True
        self.context.append(user_text(PLEASE_CONTINUE))
        return None

    def _context_full(self, run: Run, text: str = "") -> Outcome:
        """Return the ending for a conversation that does not fit. ``text`` is the reply so far."""
        why = text or self.compaction.too_full()
        if not self.compaction.has_past:
            self._delivery.give_back(run, "context_full")  # nothing can be compacted, so it would never fit
        return Outcome("context_full", why)
