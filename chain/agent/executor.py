"""The loop of one agent: ask the model, run its tool calls, and deliver the user's lines at safe points.

::

    append the query
    A     deliver the lines carried over
    for each iteration:
          ask the model              nothing is delivered while it answers
          append the reply
          no tool calls?        B    deliver the waiting lines and continue; if there are none: done
          for each batch:       C    if an urgent line or a stop waits: skip the rest
          append the results
                                D    deliver the waiting lines
    N     a now line, at any time: cancel the reply or the tools, deliver the waiting lines, continue

The letters are the values of ``Point``. Except for the query, lines enter the conversation only in
``Delivery.deliver``, in one step without an ``await``. It is called at A, B, D and N. After skipped tools, a delivery
at D is reported as C. Before each request, ``_flush`` waits until the delivered lines are acknowledged. Lines that
arrive during a compaction are delivered after the compaction (``_make_room``).

The effect of a ``now`` line, a stop or an interrupt depends on where the run is when the user acts. The table covers
every step that awaits or emits::

                                         now line                  stop                   interrupt (Esc)
    before A                             enters at A               the run ends           cancels the run
    from a safe point to the request     N, nothing is cancelled   the run ends           cancels the run
    while the model is asked             N, cancels the reply      cancels the reply      cancels the run
    in a pause between two requests      N, the pause ends         the pause ends         cancels the run
    from the reply to its first tool     C, all are skipped        all are skipped        cancels the run
    while its tools run                  N, they are cancelled     the rest is skipped    cancels the run
    after its last tool, until D         enters at D               the run ends           cancels the run
    after a reply without tools, until B enters at B               the run ends           cancels the run
    after the end is decided             waits, or is returned     see ``agent.state``    see ``agent.state``

The ``Run`` object is created in the step in which a line starts the run, so a stop before the loop's first step is not
lost. A ``now`` line can cancel only scopes that already exist. Therefore nothing is awaited or emitted between the last
check of the inbox and ``cut_scope``, which creates the scope. After a stop or an interrupt, ``_end`` completes the
conversation. It does so outside the cancelled scope, before any listener receives the end of the run. The docstring of
``tool_calls`` describes what happens to a tool that has started.

On a full disk, the run behaves as follows. (A full disk may be temporary, but a failed sync is final: see
``Journal.failure``.)

- New lines are refused.
- If a message, the start or end of a request, or the start of a tool call cannot be recorded, ``JournalError`` is
  raised. The run ends with ``error``, and the tool of that call does not start.
- A cancellation by a line or the time limit, a receipt, and the run's result take effect and are emitted even if they
  cannot be recorded (``Journal.record_if_possible``).
- A tool's result is also emitted if it cannot be recorded, but then the run ends with ``error``.
- Calls without a recorded result stay open. The next run first appends results for them. If the note about a stop or
  an interrupt could not be recorded, the next run of the same process also appends this note (``_incomplete``).
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
from chain.text.wording import INTERRUPT_NOTE, PLEASE_CONTINUE, PROGRAM_ENDED, STOP_NOTE, pluralize


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
        self._incomplete: tuple[Run, str] | None = None
        """The last run and its status if the conversation's end could not be recorded, otherwise ``None``."""

    @property
    def _limits(self) -> Limits:
        return self.context.spec.limits

    def use_spec(self) -> None:
        """Use the agent's current spec for all later requests.

        Also update the estimated size of the next request, which includes the system prompt and the tools.
        """
        self._model.use_spec()

    def complete_lost_run(self) -> None:
        """Complete the conversation of a run whose process has ended, and append a note that the program ended.

        Raise ``JournalError`` if the messages cannot be recorded.
        """
        self.catch_up()
        note, messages = user_text(PROGRAM_ENDED), self.conversation.messages
        if messages and messages[-1] != note:
            self.context.append(note)

    async def run(self, run: Run) -> Outcome:
        """Run the loop until the run ends, and return the outcome. Nothing is awaited after the outcome is decided.

        Afterwards the conversation has no open calls, unless the disk is full. This also holds if the call of this
        method is cancelled, for example because the parent's run ends.
        """
        try:
            ending = await self._run(run)
        except (trio.Cancelled, BaseExceptionGroup):
            self._end(run, None)
            raise
        return self._end(run, ending)

    def _end(self, run: Run, ending: Outcome | None) -> Outcome:
        """Complete the conversation, and return the run's outcome. On a full disk, the next run completes it.

        ``ending`` is the outcome that the loop decided, and ``None`` if the loop was cancelled.
        """
        outcome = run.outcome(ending, self._limits.timeout_s)
        if self._incomplete is None:  # otherwise ``catch_up`` failed, so this run has appended nothing
            try:
                self._complete(run, outcome.status)
            except JournalError:
                run.step.shown.clear()  # otherwise the next run would emit this text as its own reply
                self._incomplete = run, outcome.status
        return outcome

    async def _run(self, run: Run) -> Outcome | None:
        """Append the query or task, run the loop, and return the outcome that the loop decided.

        Return ``None`` if the time limit or an interrupt cancelled the loop.
        """
        outcome: Outcome | None = None
        try:
            self.catch_up()
            if run.query is not None:
                self._delivery.append_query(run, run.query)
            elif run.task:
                self.context.append(user_text(run.task))
            run.scope.deadline = trio.current_time() + self._limits.timeout_s
            with run.scope:
                try:
                    outcome = await self._loop(run)
                except BudgetSpent as spent:
                    outcome = self._end_at_limit(run, str(spent))
        except ModelError as error:
            # The interrupt may have caused the error.
            return None if run.is_interrupted else self._end_with_error(run, "model", str(error))
        except JournalError as error:
            return self._end_with_error(run, "journal", str(error))
        if outcome is None and not run.is_interrupted:
            self._record_cut(run, run.step.phase, "time")
        return outcome

    def _complete(self, run: Run, status: str) -> None:
        """Append results for open calls, the displayed part of a cancelled reply, and a note about a stop or interrupt.

        Raise ``JournalError`` if a message cannot be recorded. This method can then be called again.
        """
        was_stopped, was_interrupted = status.startswith("cancelled"), status == "interrupted"
        if self.conversation.open_calls:
            self._tools.answer_open(run)
        shown = "".join(run.step.shown)
        if (was_stopped or was_interrupted or status == "limit_reached") and shown.strip() and not run.step.is_appended:
            self._append_reply(run, assistant([Text(shown)]))
        if (was_stopped or was_interrupted) and not run.only_compacts:
            self.context.append(user_text(STOP_NOTE if was_stopped else INTERRUPT_NOTE))

    def catch_up(self) -> None:
        """Complete the conversation if an earlier run or process left it incomplete.

        Raise ``JournalError`` if a message cannot be recorded.
        """
        if self._incomplete is not None:
            self._complete(*self._incomplete)
            self._incomplete = None
        elif self.conversation.open_calls:
            self._tools.answer_open(Run())

    # ------------------------------------------------------------------------------------------------- the loop

    async def _loop(self, run: Run) -> Outcome:
        """Run iterations until the outcome of the run is decided, and return the outcome."""
        # A run that was interrupted before its first step delivers no lines. Its lines are returned to the user.
        await trio.lowlevel.checkpoint_if_cancelled()
        if run.only_compacts:
            return await self._compact_alone(run)
        if not run.is_stop_requested and not self._delivery.deliver(run, Point.BEFORE_FIRST_CALL) and not run.task_text:
            return self._end_normally(run)  # the carried lines were dropped at the last moment
        limits = self._limits
        while run.iteration < limits.max_iterations:
            run.step = Step()
            await self._flush()
            if run.is_stop_requested:
                return self._end_normally(run)
            if spent := limits.exceeded_budget(run.tree_usage):
                return self._end_at_limit(run, spent)
            if (by := self.compaction.reason(run)) is not None:
                if (outcome := await self._make_room(run, by)) is not None:
                    return outcome
                continue
            run.iteration += 1
            most = limits.max_iterations
            self._shared.emit(events.IterationStarted(agent=self.agent, iteration=run.iteration, max_iterations=most))
            reply = await self._ask(run)
            if reply is not None and self.compaction.is_worthwhile(run, reply):
                was_shown = bool(run.step.shown)
                outcome = await self._make_room(run, "service")
                if outcome is None:
                    if was_shown:
                        self._model.emit_retry(run, 1, 0.0, "the conversation did not fit the model's window")
                    reply = await self._ask(run)
                elif outcome.status != "context_full" or not (reply.message.answer and self.compaction.has_reply):
                    return outcome
            outcome = self._continue_after_cut(run) if reply is None else await self._apply_reply(run, reply)
            if outcome is not None:
                return outcome
        return self._end_at_max_iterations(run)

    async def _make_room(self, run: Run, by: CompactedBy) -> Outcome | None:
        """Compact the conversation, then deliver the lines that arrived during the compaction.

        Return ``None`` if the run continues. Return its outcome if the user stopped the run, or if the conversation is
        still too long.
        """
        while True:
            attempt = await self.compaction.make_room(run, by)
            was_cut = attempt.status == "cut"
            if was_cut:
                self._record_cut(run, "thinking", "line")
            await trio.lowlevel.checkpoint_if_cancelled()
            if run.is_stop_requested:
                return self._end_normally(run)
            run.step = Step()
            is_too_long = by == "service" and attempt.status == "failed"
            if is_too_long or (not was_cut and self.compaction.exceeds_window()):
                return self._end_context_full(run)
            point = Point.AFTER_TOOLS if run.iteration else Point.BEFORE_FIRST_CALL
            point = Point.AT_ONCE if was_cut else point
            calls_left = self._limits.max_iterations - run.iteration + (by == "service")
            if self._limits.exceeded_budget(run.tree_usage):
                self._delivery.settle_todos(run)  # no model call is left to answer lines of other kinds
            else:
                self._delivery.deliver(run, point, calls_left=calls_left)
            await self._flush()
            if not was_cut or by != "service":
                return None

    async def _compact_alone(self, run: Run) -> Outcome:
        """Run a compaction that the user requested between two runs, and return its outcome.

        Lines that arrive during the compaction are not delivered: they start the next run.
        """
        await self._flush()
        if run.is_stop_requested:
            return self._end_normally(run)
        attempt = await self.compaction.make_room(run, "user")
        if attempt.status == "cut":
            self._record_cut(run, "thinking", "line")
        return Outcome("done", attempt.sentence)

    async def _ask(self, run: Run) -> Reply | None:
        """Ask the model, and return its reply, or ``None`` if a stop or a ``now`` line cancelled the request.

        A ``now`` line that arrives before the request or during the pause before a retry cancels nothing. It is
        delivered first, and the request then includes it.
        """
        while True:
            await trio.lowlevel.checkpoint_if_cancelled()
            while self.inbox.has_now and not run.is_stop_requested and not self._limits.exceeded_budget(run.tree_usage):
                self._delivery.deliver(run, Point.AT_ONCE, calls_left=self._limits.max_iterations - run.iteration + 1)
                await self._flush()
            # No await from here until ``reply`` has created the scope that a ``now`` line cancels.
            news = self.context.state.news.pending(self._shared.plan, self.agent)
            tail = tuple(text for text in (run.expectation.post_prompt, news) if text)
            reply = await self._model.reply(run, self.conversation.request(), tail)
            if reply is not None or run.is_stop_requested or run.step.is_asking:
                return reply

    async def _flush(self) -> None:
        """Wait until the delivered lines are acknowledged.

        The wait is slow, so it happens once before each request instead of once per delivery.
        """
        await self._shared.journal.flush()
        await trio.lowlevel.checkpoint_if_cancelled()

    def _continue_after_cut(self, run: Run) -> Outcome | None:
        """Append the displayed part of a cancelled reply, and deliver the waiting lines at ``Point.AT_ONCE``.

        Return ``None`` if the loop continues, otherwise the outcome.
        """
        self._record_cut(run, run.step.phase, "line")
        if run.is_stop_requested:
            return self._end_normally(run)
        shown = "".join(run.step.shown)
        if shown.strip():
            self._append_reply(run, assistant([Text(shown)]), is_whole=False)
            run.expectation = run.expectation.after_reply()
        self._deliver_midway(run, Point.AT_ONCE)
        return None

    def _record_cut(self, run: Run, phase: events.Phase, by: Literal["line", "time"]) -> None:
        """Record that a line or the time limit (``by``) cancelled the work of this iteration in this phase."""
        # A full disk must not prevent the cancellation.
        cut = records.Interrupted(self.agent, run.iteration, phase, by, run.step.cut_usage)
        self._shared.journal.record_if_possible(cut)

    def _deliver_midway(self, run: Run, point: Point, skipped: tuple[str, ...] = ()) -> None:
        """Deliver the waiting lines in the middle of a task, if a model call is left to answer them.

        If no call is left, only carry out the todo lines. The loop then ends at its limit.
        """
        if run.iteration == self._limits.max_iterations or self._limits.exceeded_budget(run.tree_usage):
            self._delivery.settle_todos(run)
        elif not self._delivery.deliver(run, point, skipped) and self.conversation.state == "REPLIED":
            # The ``now`` line was dropped in the same step in which it cancelled the reply.
            self.context.append(user_text(PLEASE_CONTINUE))

    async def _apply_reply(self, run: Run, reply: Reply) -> Outcome | None:
        """Append a reply, run its tool calls, and deliver the waiting lines.

        Return ``None`` if the loop continues, otherwise the outcome.
        """
        message, text = reply.message, reply.message.answer
        if reply.stop_reason == "refusal":
            # The service would refuse every later request with these messages too.
            self._delivery.return_withdrawn(run, "refused")
            return Outcome(
                "refused", "The model refused to answer. Your lines were returned: change them and try again."
            )
        if reply.stop_reason == "pause_turn":
            if run.is_stop_requested:
                return self._end_normally(run)
            raise ModelError("the model paused for a server tool; server tools are not supported, so disable them")
        if reply.stop_reason == TOO_LONG:
            if text:
                self._append_reply(run, assistant([Text(message.text)]))
            return self._end_context_full(run, text)
        if not text and not message.calls:
            await trio.lowlevel.checkpoint_if_cancelled()
            return self._retry_empty(run)
        self._append_reply(run, message)
        if message.calls:
            was_skipped, unstarted = await self._tools.run(run, message.calls, reply.cut_calls)
            await trio.lowlevel.checkpoint_if_cancelled()
            return self._continue_after_tools(run, unstarted, was_skipped=was_skipped)
        await trio.lowlevel.checkpoint_if_cancelled()
        return self._continue_after_answer(
            run, Outcome("truncated", text) if reply.stop_reason == "max_tokens" else None
        )

    def _continue_after_answer(self, run: Run, unusual_outcome: Outcome | None) -> Outcome | None:
        """Deliver the waiting lines after a reply without tool calls.

        If no lines wait and the reply answered an aside, ask the model to resume its task. Return ``None`` if the loop
        continues, otherwise the outcome. ``unusual_outcome`` is the outcome for a truncated or empty reply, and
        ``None`` for an ordinary reply.
        """
        if run.is_stop_requested:
            return self._end_normally(run)
        spent = self._limits.exceeded_budget(run.tree_usage)
        if spent or run.iteration == self._limits.max_iterations:
            # No model call is left to answer lines of other kinds.
            self._delivery.settle_todos(run)
            waits = any(a.line.kind not in ("follow-up", "job") for a in self.inbox.waiting())
            if not waits and (unusual_outcome or run.expectation.resume is None):
                return unusual_outcome or self._end_normally(run)
            return self._end_at_limit(run, spent) if spent else self._end_at_max_iterations(run)
        if self._delivery.deliver(run, Point.AFTER_REPLY):
            return None
        if unusual_outcome:
            return unusual_outcome
        resume, run.expectation = run.expectation.resume, run.expectation.after_reply()
        if resume is None:
            return self._end_normally(run)
        self.context.append(user_text(resume))
        return None

    def _continue_after_tools(self, run: Run, unstarted: tuple[str, ...], *, was_skipped: bool) -> Outcome | None:
        """Deliver the waiting lines after the results of tool calls were appended. ``unstarted`` names skipped tools.

        The reported point is ``AT_ONCE`` if a ``now`` line cancelled calls, ``BEFORE_TOOL`` if calls were skipped, and
        otherwise ``AFTER_TOOLS``. Return ``None`` if the loop continues, otherwise the outcome.
        """
        if run.step.was_cut:
            self._record_cut(run, "tools", "line")
        if run.is_stop_requested:
            return self._end_normally(run)
        run.expectation = run.expectation.after_reply()
        point = Point.BEFORE_TOOL if was_skipped else Point.AFTER_TOOLS
        point = Point.AT_ONCE if run.step.was_cut else point
        self._deliver_midway(run, point, unstarted)
        return None

    def _append_reply(self, run: Run, message: Message, *, is_whole: bool = True) -> None:
        """Append a reply, and emit it.

        ``is_whole`` is false for the displayed part of a cancelled reply. Such a part never becomes the run's result.
        """
        recorded = self.context.append(message, is_cut=not is_whole)
        run.step.is_appended = True
        run.unanswered.clear()
        text = message.answer
        if is_whole and text:
            run.last_reply = text
        if is_whole and not message.calls:
            run.answer = run.answer if run.expectation.asides_only else text
        recorded.emit()

    # --------------------------------------------------------------------------------------------------- endings

    def _end_normally(self, run: Run) -> Outcome:
        """Return the outcome ``done``. After a stop, ``Run.outcome`` replaces it by the stop's outcome."""
        return Outcome("done", run.result)

    def _end_at_limit(self, run: Run, spent: str) -> Outcome:
        """Emit a notice that a budget is spent, and return the outcome ``limit_reached``. ``spent`` is the notice."""
        self.context.emit_notice(run.iteration, spent)
        return Outcome("limit_reached", run.result or spent)

    def _end_at_max_iterations(self, run: Run) -> Outcome:
        """Emit a notice that the iteration limit is reached, and return the outcome ``max_iterations``."""
        used = pluralize(run.iteration, "iteration")
        why = f"the run has used {used}, its limit; raise max_iterations for longer runs"
        self.context.emit_notice(run.iteration, why)
        return Outcome("max_iterations", run.last_reply or f"Stopped after {used} without a final answer.")

    def _end_with_error(self, run: Run, kind: str, message: str) -> Outcome:
        """Emit an error event, and return the outcome ``error``."""
        self._shared.emit(events.Error(agent=self.agent, iteration=run.iteration, message=message, kind=kind))
        return Outcome("error", message)

    def _retry_empty(self, run: Run) -> Outcome | None:
        """Deliver the waiting lines after an empty reply. If no lines wait, append a request to continue.

        The request is appended once per run: a second empty reply ends the run with ``empty``. Return ``None`` if the
        loop continues, otherwise the outcome.
        """
        twice = " twice" if run.was_nudged else ""
        empty = Outcome("empty", f"The model gave an empty reply{twice}. Try again, or rephrase the query.")
        outcome = self._continue_after_answer(run, empty)
        if outcome is not empty or run.was_nudged or run.iteration == self._limits.max_iterations:
            return outcome
        run.was_nudged = True
        self.context.append(user_text(PLEASE_CONTINUE))
        return None

    def _end_context_full(self, run: Run, text: str = "") -> Outcome:
        """Return the outcome ``context_full``, for a conversation that does not fit the window.

        The result is the incomplete reply ``text``, or an error message if ``text`` is empty. If the conversation has
        no reply that a compaction could summarize, also return the lines to the user.
        """
        why = text or self.compaction.too_full_message()
        if not self.compaction.has_reply:
            # Nothing can be compacted, so the lines would never fit.
            self._delivery.return_withdrawn(run, "context_full")
        return Outcome("context_full", why)
