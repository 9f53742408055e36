"""Compaction (SPEC section 15): shorten a conversation by a summary, or by stubs for the oldest results.

Compaction happens before a model call. The request for the summary contains the unchanged conversation, so that a
prompt cache is used. The conversation changes only when the record of the compaction is written, so a stop, an
interrupt or a crash loses nothing. The user's words are kept verbatim next to the summary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from chain import events
from chain.agent.model_call import ModelCalls
from chain.agent.spec import AgentContext
from chain.agent.state import Run
from chain.agent.window import (
    MAX_ESTIMATE_ERROR,
    WORDS_SHARE,
    CompactionRules,
    WindowView,
    count_latest_fitting,
    first_message,
    length_of,
    messages_after,
    oldest_results,
    shrink,
    view_of,
)
from chain.errors import ModelError
from chain.events import CompactedBy
from chain.journal.records import Compacted
from chain.messages import TOO_LONG, user_text
from chain.model import Reply, Window

SUMMARY_ATTEMPTS = 4
"""The limit of requests for one summary. If the service rejects a request as too long, the next one is shorter."""

STUBBED_SHARE = 0.5
"""The share of a conversation that is removed after the service has rejected the conversation as too long.

In a request for a summary, it is a share of the text of the tool results, and more is removed if the service reports a
larger excess. In a compaction by stubs, it is a share of the whole conversation.
"""

SPARE_SHARE = 0.02
"""The share of the window that stays free in a request for a summary, because the request's size is an estimate."""

GROWTH_SHARE = 0.1
"""The share of the window by which the conversation must grow before it is compacted again.

This condition applies only if the conversation still exceeded the limit after the previous compaction.
"""


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """The outcome of a compaction, with a ``sentence`` for the user.

    ``status`` is ``done``, ``failed``, or ``cut``: a stop or a ``now`` line cancelled the compaction.
    """

    status: Literal["done", "failed", "cut"]
    sentence: str = ""


class Compactor:
    """The compaction of one agent's conversation."""

    def __init__(self, context: AgentContext, model: ModelCalls) -> None:
        self._context = context
        self._model = model
        self._tokens_after_last = 0
        """The size after the last compaction, in tokens; 0 if this size did not exceed the limit."""

    @property
    def _rules(self) -> CompactionRules:
        return self._context.spec.compaction

    def reason(self, run: Run) -> CompactedBy | None:
        """Return the reason for a compaction before the next model call, or ``None`` if none is due.

        The reason is ``user`` for a request by the user and ``fill`` for a full window. A compaction is due at most
        once per iteration.
        """
        if run.compacted_at == run.iteration or not self.has_reply:
            return None
        if run.focus is not None:
            return "user"
        is_due = self._rules.at is not None and self._exceeds_limit(self._context.window_usage.tokens)
        return "fill" if is_due and (self._has_grown or self.exceeds_window()) else None

    def is_worthwhile(self, run: Run, reply: Reply) -> bool:
        """Return whether ``reply`` rejects the conversation as too long, and a compaction can help.

        A rejection that reports no size is not trusted if the estimated size is far below the model's window.
        """
        if reply.stop_reason != TOO_LONG or self._rules.at is None or run.compacted_at == run.iteration:
            return False
        tokens, window = self._context.window_usage.tokens, self._model.window
        is_believed = bool(reply.asked_tokens) or window is None or tokens * MAX_ESTIMATE_ERROR >= window.tokens
        return is_believed and self.has_reply

    @property
    def has_reply(self) -> bool:
        """Whether the conversation contains a reply. Without a reply, there is nothing to summarize."""
        return any(message.role == "assistant" for message in self._context.conversation.messages)

    @property
    def _has_grown(self) -> bool:
        """Whether the conversation has grown enough since the last compaction to be compacted again.

        True also if there was no compaction, or if the last one brought the conversation below the limit.
        """
        grown = self._context.window_usage.tokens - self._tokens_after_last
        return not self._tokens_after_last or grown < 0 or grown > self._window.tokens * GROWTH_SHARE

    async def make_room(self, run: Run, by: CompactedBy) -> CompactionResult:
        """Compact the conversation if possible, emit events of the start and the end, and return the outcome.

        Raise ``JournalError`` if the compaction cannot be recorded, and ``BudgetSpent`` if no budget is left.
        """
        before = self._context.window_usage.tokens
        self._emit_state(run, "started", by, before)
        is_done = False
        try:
            attempt = await self._attempt(run, by, before)
            is_done = attempt.status == "done"
        finally:
            if not is_done:
                self._emit_state(run, "failed", by, before)
        if attempt.status != "cut":
            tokens = self._context.window_usage.tokens
            self._tokens_after_last = tokens if self._exceeds_limit(tokens) else 0
        return attempt

    async def _attempt(self, run: Run, by: CompactedBy, before: int) -> CompactionResult:
        """Compact the conversation by a summary, or by stubs if there is no usable summary, and return the outcome.

        ``before`` is the estimated size of the conversation in tokens. Stubs are used only if this size exceeds the
        limit, or if the service has rejected the conversation as too long.
        """
        notice = partial(self._context.emit_notice, run.iteration)
        focus, run.focus = run.focus or "", None
        was_at, run.compacted_at = run.compacted_at, run.iteration
        reply: Reply | None = None
        summary, why = "", "there is nothing to summarize yet"
        if self.has_reply:
            try:
                reply = await self._ask(run, self._rules.prompt_for(focus))
            except ModelError as error:
                why = str(error)
            else:
                if reply is None:
                    # The compaction stays due. A focus that the user has given meanwhile replaces the old one.
                    run.compacted_at = was_at
                    run.focus = focus if by == "user" and run.focus is None else run.focus
                    return CompactionResult("cut")
                summary, why = _extract_summary(reply)
        # No await from here to the end.
        record = self._build_with_summary(run, by, summary) if summary else None
        if record is not None and record.tokens_after >= before:
            record, why = None, "the summary is no shorter than the messages it replaces"
        if reply is not None:
            self._model.record_end(run, reply, is_recorded_elsewhere=record is not None)
        if record is None:
            notice(f"The conversation could not be summarized: {why}.")
            record = self._build_with_stubs(run, by) if by == "service" or self._exceeds_limit(before) else None
        if record is None:
            return CompactionResult("failed", f"The conversation was not compacted: {why}.")
        recorded = self._context.compact(record)
        if record.left_out:
            notice(f"The compaction removed {record.left_out:,} of your earlier lines to make room.")
        if record.images:
            names = ", ".join(record.images)
            notice(f"The compaction removed these images to make room: {names}. Send those again that you still need.")
        recorded.emit()
        return CompactionResult("done", f"Compacted from {record.tokens_before:,} to {record.tokens_after:,} tokens.")

    def too_full_message(self) -> str:
        """Return the error message for a conversation that does not fit the window."""
        view = self.view()
        window = f" of {view.window:,} tokens" if view.window else ""
        hint = "Start a new conversation with /new" if self.has_reply else "Your lines were returned: shorten them"
        return f"The conversation does not fit the model's window{window}: {view.sentence}. {hint}."

    def exceeds_window(self) -> bool:
        """Return whether the next request is estimated to exceed the model's window. False if the window is unknown."""
        window = self._model.window
        return window is not None and self._context.window_usage.tokens > window.tokens

    def view(self) -> WindowView:
        """Return the parts of the next request with their sizes in tokens."""
        spec, usage, history = self._context.spec, self._context.window_usage, self._context.state.history
        tools = max(usage.overhead - len(spec.whole_system), 0)
        overhead = [("system prompt", len(spec.system)), ("instructions", len(spec.instructions)), ("tools", tools)]
        return view_of(history.conversation.messages, usage, self._model.window, overhead, history.compacted)

    async def _ask(self, run: Run, prompt: str) -> Reply | None:
        """Ask the model for a summary, and return the reply, or ``None`` if the request was cancelled.

        While the service rejects the request as too long, send a request with a shorter copy of the conversation, up to
        ``SUMMARY_ATTEMPTS`` requests in all. The conversation itself does not change.
        """
        usage, window, messages = self._context.window_usage, self._model.window, self._context.conversation.messages
        ask = user_text(prompt)
        if window is not None:
            needed = usage.tokens + usage.estimate(length_of(ask)) + self._rules.room_for_reply(window)
            messages = shrink(messages, int((needed - window.tokens * (1 - SPARE_SHARE)) * usage.ratio))
        for _ in range(SUMMARY_ATTEMPTS - 1):
            reply = await self._model.reply(run, [*messages, ask], compacts=True)
            if reply is None or reply.stop_reason != TOO_LONG:
                return reply
            chars = sum(map(length_of, messages))
            sent = chars + length_of(ask) + usage.overhead
            ratio = sent / reply.asked_tokens if reply.asked_tokens else usage.ratio
            over = int((reply.asked_tokens - self._limit) * ratio)
            in_results = sum(len(result.text) for message in messages for result in message.results)
            fewer = shrink(messages, max(over, int((in_results or chars) * STUBBED_SHARE)))
            if sum(map(length_of, fewer)) >= chars:
                return reply
            self._model.record_end(run, reply, is_recorded_elsewhere=False)
            messages = fewer
        return await self._model.reply(run, [*messages, ask], compacts=True)

    def _build_with_summary(self, run: Run, by: CompactedBy, summary: str) -> Compacted:
        """Return the record of a compaction that keeps the latest messages that fit, and ``summary`` for the others."""
        context, usage = self._context, self._context.window_usage
        chars, plan = self._window.tokens * usage.ratio, context.shared.plan
        words, left_out = context.state.history.words.select_rows(int(chars * WORDS_SHARE))
        record = Compacted(context.name, run.iteration, by, summary, words, left_out)
        record = replace(record, plan=plan.render() if plan.tasks else "")
        # If the conversation is far from full, fewer messages are kept, otherwise nothing would be gained.
        share = min(chars, usage.tokens * usage.ratio) * self._rules.keep
        room = self._limit * usage.ratio - usage.overhead - length_of(first_message(record))
        messages = self._model.without_omitted(context.conversation.messages)
        kept = count_latest_fitting(messages, int(min(share, room)))
        images = dict.fromkeys(image.name for m in messages[: len(messages) - kept] for image in m.images)
        return self._measure(replace(record, kept=kept, images=tuple(images)))

    def _build_with_stubs(self, run: Run, by: CompactedBy) -> Compacted | None:
        """Return the record of a compaction without a summary, which replaces the oldest tool results by stubs.

        Return ``None`` if there are no results to replace.
        """
        context, usage, messages = self._context, self._context.window_usage, self._context.conversation.messages
        over = usage.tokens - self._limit
        if by == "service":
            over = max(over, int(usage.tokens * STUBBED_SHARE))
        ids = oldest_results(messages, int(over * usage.ratio))
        return self._measure(Compacted(context.name, run.iteration, by, stubbed=ids)) if ids else None

    def _measure(self, record: Compacted) -> Compacted:
        """Return a copy of the record with the estimated tokens before and after the compaction."""
        usage, messages = self._context.window_usage, messages_after(self._context.conversation.messages, record)
        chars = sum(map(length_of, messages)) + usage.overhead
        return replace(record, tokens_before=usage.tokens, tokens_after=usage.estimate(chars))

    @property
    def _window(self) -> Window:
        """The model's window, or a window as large as the conversation if the model's window is unknown."""
        return self._model.window or Window(self._context.window_usage.tokens)

    @property
    def _limit(self) -> int:
        return self._rules.limit(self._window)

    def _exceeds_limit(self, tokens: int) -> bool:
        return self._model.window is not None and tokens > self._limit

    def _emit_state(self, run: Run, state: events.CompactionState, by: CompactedBy, tokens: int) -> None:
        name, iteration = self._context.name, run.iteration
        event = events.Compaction(agent=name, iteration=iteration, state=state, by=by, tokens_before=tokens)
        self._context.shared.emit(event)


def _extract_summary(reply: Reply) -> tuple[str, str]:
    """Return the summary in a reply, and the reason why there is none. One of the two is always empty.

    A truncated summary counts as a summary. Tool calls in the reply are ignored.
    """
    text = reply.message.text.strip()
    if reply.stop_reason == "refusal":
        return "", "the model refused"
    if reply.stop_reason == TOO_LONG:
        return "", "the service rejected the request as too long"
    return text, "" if text else "the model's reply was empty"
