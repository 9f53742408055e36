"""The one loop: model call, tool calls, and between them the safe points where the user's lines come in.

::

    append the query
    A     deliver the lines carried over
    for each iteration:
          ask the model              nothing is delivered while it answers
          append the reply
          no tool calls?        B    deliver what waits and go on; nothing waits: done
          for each batch:       C    an urgent line or a stop waits: skip the rest
          append the results
                                D    deliver what waits
    N     wherever a now line finds it: cut the reply or the tools, deliver what waits, go on

Delivery is one step without an ``await`` (``delivery``). Before the next request ``_flush`` waits until the lines in it
are acknowledged. Where the conversation is compacted (``_make_room``) what came meanwhile is delivered after that.

Where the user may find a run, which is any step that awaits or emits, and what each act does there::

                                         now line                  stop                   interrupt
    before A                             enters at A               the run ends           cancels the run
    from a safe point to the request     N, nothing is cut         the run ends           cancels the run
    while the model is asked             N, the reply is cut       the reply is cut       cancels the run
    in a pause between two requests      N, the pause ends         the pause ends         cancels the run
    from the reply to its first tool     C, all are skipped        all are skipped        cancels the run
    while its tools run                  N, they are cancelled     the rest is skipped    cancels the run
    after its last tool, until D         enters there              the run ends           cancels the run
    after a reply without tools, until B enters there              the run ends           cancels the run
    from the ending on                   waits, or goes back       as in ``state``        as in ``state``

All of this also holds for a listener that acts in the very step in which it hears of an event. A now line cancels only
scopes that are open. So between the last check of the inbox and ``cut_by``, which opens one, nothing is awaited or
emitted: a line that came there would cut nothing.

``Run`` exists from the moment a line starts the run, so that no stop and no interrupt is lost that comes before the
loop's first step. What either leaves half done is completed outside the cancelled scope, in ``_finish``, so that the
history is valid again before anybody hears of the ending. What becomes of a started tool is in ``tool_calls``.

Where the disk is full, which may pass (a sync that fails is final, see ``Journal.failure``):

- A line is refused.
- What has to be on record before it happens (a message, a request, the start of a call) raises ``JournalError``, and
  the run ends with ``error``.
- What only tells of an ending (a cut, a receipt, the run's result) is emitted also where it cannot be recorded. A
  tool's result is emitted, too, but then the run ends with ``error``, as where the end of a request is not recorded.
- Calls whose results could not be written stay open, and the next run answers them first; so with the note that says
  what cut a run short (``_left``).
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
    """Runs one agent's loop."""

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
        """A run whose end could not be written, and its status."""

    @property
    def _limits(self) -> Limits:
        return self.context.spec.limits

    def use_spec(self) -> None:
        """Follow a change of the agent's spec, so that what a request would fill is known before the next one."""
        self._model.use_spec()

    def end_here(self) -> None:
        """Make the history of a run valid whose process has ended, and say so in it. Raises ``JournalError``."""
        self._catch_up()
        note, messages = user_text(PROGRAM_ENDED), self.conversation.messages
        if messages and messages[-1] != note:
            self.context.append(note)

    async def run(self, run: Run) -> Outcome:
        """Take a run to its end. The history is valid after it, and nothing was awaited since the outcome stood.

        It is valid as well where the call itself is cancelled, as by what ends an agent above.
        """
        try:
            ending = await self._run(run)
        except (trio.Cancelled, BaseExceptionGroup):
            self._end(run, None)
            raise
        return self._end(run, ending)

    def _end(self, run: Run, ending: Outcome | None) -> Outcome:
        outcome = run.outcome(ending, self._limits.timeout_s)
        self._finish(run, outcome)
        return outcome

    async def _run(self, run: Run) -> Outcome | None:
        """How the loop ends by itself; ``None`` if its scope was cancelled."""
        outcome: Outcome | None = None
        try:
            self._catch_up()
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
            # A service may fail in the very step of an interrupt, or because of it: the user's word is the reason then.
            return None if run.interrupted else self._failed(run, "model", str(error))
        except JournalError as error:
            return self._failed(run, "journal", str(error))
        if outcome is None and not run.interrupted:
            self._record_cut(run, run.step.phase, "time")
        return outcome

    def _finish(self, run: Run, outcome: Outcome) -> None:
        """Make the history whole. Where the disk is full the next run does."""
        if self._left is None:  # else this run did not even begin
            try:
                self._make_whole(run, outcome.status)
            except JournalError:
                run.step.shown.clear()  # a reply would be told as one of the next run
                self._left = run, outcome.status

    def _make_whole(self, run: Run, status: str) -> None:
        """Answer the open calls, and note what cut the run short. Raises ``JournalError``; done again, it goes on."""
        was_stopped, was_interrupted = status.startswith("cancelled"), status == "interrupted"
        if self.conversation.open_calls:
            self._tools.answer_open(run)
        shown = "".join(run.step.shown)
        if (was_stopped or was_interrupted or status == "limit_reached") and shown.strip() and not run.step.appended:
            self._append_reply(run, assistant([Text(shown)]))
        if run.only_compacts:
            pass  # the conversation is as it was
        elif was_stopped:
            self.context.append(user_text(STOP_NOTE))
        elif was_interrupted:
            self.context.append(user_text(INTERRUPT_NOTE))

    def _catch_up(self) -> None:
        """Make whole what an earlier run, or an earlier process, could not. Raise ``JournalError``."""
        if self._left is not None:
            self._make_whole(*self._left)
            self._left = None
        elif self.conversation.open_calls:
            self._tools.answer_open(Run())

    # ------------------------------------------------------------------------------------------------- the loop

    async def _loop(self, run: Run) -> Outcome:
        # A run that is over before its first step delivers no lines: they are given back.
        await trio.lowlevel.checkpoint_if_cancelled()
        if run.only_compacts:
            return await self._compact_alone(run)
        if not run.stop_asked and not self._delivery.deliver(run, "A") and not run.asked_for:
            return self._done(run)  # the lines that the run was to begin with were dropped at the last moment
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
        """Compact the conversation, then deliver what came meanwhile. ``None``: the next request may fit."""
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
            point: Point = "N" if was_cut else "D" if run.iteration else "A"
            left = self._limits.max_iterations - run.iteration + (by == "service")
            if self._limits.spent(run.used):
                self._delivery.settle_todos(run)  # no call is left to answer the others
            else:
                self._delivery.deliver(run, point, calls_left=left)
            await self._flush()
            if not was_cut or by != "service":
                return None

    async def _compact_alone(self, run: Run) -> Outcome:
        """A run that the user began for a compaction alone. Lines that come meanwhile begin the next one."""
        await self._flush()
        if run.stop_asked:
            return self._done(run)
        attempted = await self.compaction.make_room(run, "user")
        if attempted.what == "cut":
            self._record_cut(run, "thinking", "line")
        return Outcome("done", attempted.sentence)

    async def _ask(self, run: Run) -> Reply | None:
        """The reply of this iteration; ``None`` when a stop or a now line cut it.

        A now line that finds the model not asked yet, or in a pause before it is asked again, goes along with the call.
        """
        while True:
            await trio.lowlevel.checkpoint_if_cancelled()
            while self.inbox.has_now and not run.stop_asked and not self._limits.spent(run.used):
                self._delivery.deliver(run, "N", calls_left=self._limits.max_iterations - run.iteration + 1)
                await self._flush()
            # No await from here to the scope that a now line cancels.
            news = self.context.state.news.pending(self._shared.plan, self.agent)
            tail = tuple(text for text in (run.expectation.post_prompt, news) if text)
            reply = await self._model.reply(run, self.conversation.request(), tail)
            if reply is not None or run.stop_asked or run.step.is_asking:
                return reply

    async def _flush(self) -> None:
        """Wait until the lines that the next request holds are acknowledged.

        Only one wait for each request: one costs as much as a whole step of the loop.
        """
        await self._shared.journal.flush()
        await trio.lowlevel.checkpoint_if_cancelled()

    def _after_cut(self, run: Run) -> Outcome | None:
        """Point N, after a reply that was cut: what was shown of it is kept as the assistant's, and is no answer."""
        self._record_cut(run, run.step.phase, "line")
        if run.stop_asked:
            return self._done(run)
        shown = "".join(run.step.shown)
        if shown.strip():
            self._append_reply(run, assistant([Text(shown)]), is_whole=False)
            run.expectation = run.expectation.after_reply()
        return self._deliver_midway(run, "N")

    def _record_cut(self, run: Run, what: events.Phase, by: Literal["line", "time"]) -> None:
        # A full disk must not keep anybody from cutting.
        cut = records.Interrupted(self.agent, run.iteration, what, by, run.step.cut_usage)
        self._shared.journal.record_if_possible(cut)

    def _deliver_midway(self, run: Run, point: Point, skipped: tuple[str, ...] = ()) -> Outcome | None:
        """Deliver in mid-task, if a call is left to answer. ``None``: the loop goes on, to its end if none is left."""
        if run.iteration == self._limits.max_iterations or self._limits.spent(run.used):
            self._delivery.settle_todos(run)
        elif not self._delivery.deliver(run, point, skipped) and self.conversation.state == "REPLIED":
            # The line that cut the reply was dropped in the same step.
            self.context.append(user_text(PLEASE_CONTINUE))
        return None

    async def _apply(self, run: Run, reply: Reply) -> Outcome | None:
        """Append a reply and do what it asks for. ``None``: the loop goes on."""
        message, text = reply.message, reply.message.answer
        if reply.stop_reason == "refusal":
            # The service would refuse every later request for it too.
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
        """Point B, and the way back after an aside. ``no_answer``: how it ends if the reply was cut off, or empty."""
        if run.stop_asked:
            return self._done(run)
        spent = self._limits.spent(run.used)
        if spent or run.iteration == self._limits.max_iterations:
            # No call is left to answer what would be delivered.
            self._delivery.settle_todos(run)
            waits = any(a.line.kind != "follow-up" for a in self.inbox.waiting())
            if not waits and (no_answer or run.expectation.resume is None):
                return no_answer or self._done(run)
            return self._limit_reached(run, spent) if spent else self._at_limit(run)
        if self._delivery.deliver(run, "B"):
            return None
        if no_answer:
            return no_answer
        resume, run.expectation = run.expectation.resume, run.expectation.after_reply()
        if resume is None:
            return self._done(run)
        self.context.append(user_text(resume))
        return None

    def _after_tools(self, run: Run, unstarted: tuple[str, ...], *, was_skipped: bool) -> Outcome | None:
        """Point D, reported as C when an urgent line skipped tools, and as N when a now line cut some."""
        if run.step.was_cut:
            self._record_cut(run, "tools", "line")
        if run.stop_asked:
            return self._done(run)
        run.expectation = run.expectation.after_reply()
        point: Point = "N" if run.step.was_cut else "C" if was_skipped else "D"
        return self._deliver_midway(run, point, unstarted)

    def _append_reply(self, run: Run, message: Message, *, is_whole: bool = True) -> None:
        """Append a reply. One that was cut (not ``is_whole``) is no answer, so it is no result either."""
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
        # A stop that was asked for takes its place, as every ending of the loop is put to the table in ``state``.
        return Outcome("done", run.result)

    def _limit_reached(self, run: Run, spent: str) -> Outcome:
        self._shared.emit(events.Notice(agent=self.agent, iteration=run.iteration, message=spent))
        return Outcome("limit_reached", run.result or spent)

    def _at_limit(self, run: Run) -> Outcome:
        why = f"the run has used {counted(run.iteration, 'iteration')}, its limit; raise max_iterations for longer runs"
        self._shared.emit(events.Notice(agent=self.agent, iteration=run.iteration, message=why))
        unanswered = f"Stopped after {counted(run.iteration, 'iteration')} without a final answer."
        return Outcome("max_iterations", run.last_reply or unanswered)

    def _failed(self, run: Run, kind: str, message: str) -> Outcome:
        self._shared.emit(events.Error(agent=self.agent, iteration=run.iteration, message=message, kind=kind))
        return Outcome("error", message)

    def _empty(self, run: Run) -> Outcome | None:
        """A reply without content: where no line goes on from there, ask once for more, then give up."""
        twice = " twice" if run.was_nudged else ""
        empty = Outcome("empty", f"The model gave an empty reply{twice}; put it differently, or try again.")
        outcome = self._after_answer(run, empty)
        if outcome is not empty or run.was_nudged or run.iteration == self._limits.max_iterations:
            return outcome
        run.was_nudged = True
        self.context.append(user_text(PLEASE_CONTINUE))
        return None

    def _context_full(self, run: Run, text: str = "") -> Outcome:
        """The conversation does not fit; ``text`` is what there was of a reply."""
        why = text or self.compaction.too_full()
        if not self.compaction.has_past:
            self._delivery.give_back(run, "context_full")  # there is nothing to compact, so it would never fit
        return Outcome("context_full", why)
