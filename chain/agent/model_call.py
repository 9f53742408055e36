"""A model call with its retries.

No other module retries model calls. A ``ModelError`` says whether a retry makes sense, and when.

Nothing of a failed reply is appended to the conversation. So a retry sends the same conversation again, and only the
text that was already displayed has to be discarded.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence, Set
from dataclasses import replace
from functools import reduce

import trio

from chain import events
from chain.agent.refusals import apply_removal, removal_of_excess_images, suspected_removal
from chain.agent.spec import AgentContext, tools_text
from chain.agent.state import Run
from chain.config.retries import Retries
from chain.errors import ConversationError, ModelError, ParameterRefused
from chain.journal import records
from chain.messages import TOO_LONG, Message, Overrides, Text, Usage, assistant
from chain.model import Delta, Reply, Request, Window, window_of
from chain.text.wording import with_cause
from chain.tools import calling

MAX_UNUSABLE = 4
"""The limit of unusable replies to one request: each costs as much as a usable one. ``max_attempts`` overrides it."""

FIRST_DELAY_S = 0.5
"""The delay before the first retry, in seconds. It doubles with each retry, and is randomly shortened by up to half."""

LONGEST_DELAY_S = 30.0
"""The limit of the delay before a retry, in seconds. A longer delay that the service asks for is still used."""

SUSPECT_AFTER = 2
"""The number of retryable failures after which suspected content is omitted: some servers answer 500 to an image."""

_NOT_APPENDED = frozenset({"refusal", "pause_turn", TOO_LONG})
"""The stop reasons of replies that are not appended to the conversation, or only in part."""


class ModelCalls:
    """The model calls of one agent."""

    def __init__(self, context: AgentContext) -> None:
        self._context = context
        self._shared = context.shared
        self._conversation = context.conversation
        self._removals: list[records.Removed] = []
        """The content that the current call omits."""
        self._prepare(context.shared.refused_tools)

    def use_spec(self) -> None:
        """Use the agent's current spec for all later requests, if it has changed."""
        if self._spec is not self._context.spec:
            self._prepare(self._shared.refused_tools)

    def _prepare(self, omitted: Set[str]) -> None:
        """Build the parts that all requests share: the system prompt, and the tools that ``omitted`` does not name."""
        spec, tracer = self._context.spec, self._shared.tracer
        self._spec, self._omitted_tools = spec, frozenset(omitted)
        self._ask_model = spec.model.reply if tracer is None else tracer(spec.name, spec.model)
        self._system = spec.whole_system
        self._system_digest = records.text_digest(self._system)
        self._tools = spec.offered_tools(omitted)
        tools = tools_text(self._tools)
        self._tools_digest = records.text_digest(tools)
        self._context.window_usage.overhead = len(self._system) + len(tools)

    async def reply(
        self, run: Run, messages: Sequence[Message], tail: tuple[str, ...] = (), *, compacts: bool = False
    ) -> Reply | None:
        """Send these messages to the model, with retries, and return the reply.

        Return ``None`` if a stop or a ``now`` line cancelled the call. ``tail`` has texts that are sent after the
        messages. ``compacts``: the messages ask for a summary, so the reply is not displayed. Raise ``ModelError`` if
        the last attempt fails, and ``BudgetSpent`` if no budget is left for another attempt.
        """
        self.use_spec()
        self._removals = removal_of_excess_images(
            self._spec.name, run.iteration, messages, self._context.window_usage.image_bytes
        )
        doubted: list[records.Removed] = []
        overrides = Overrides() if compacts else run.expectation.overrides
        if not (compacts or run.is_effort_refused):
            overrides = self._spec.with_effort(overrides)
        reply: Reply | None = None
        calls = 0
        attempts = _Attempts(self._spec.limits.retries, run)
        with run.cut_scope("stop", "now") as scope:
            while reply is None and not run.is_stop_requested:
                # Other agents may have spent the budget during a pause.
                if spent := self._spec.limits.exceeded_budget(run.tree_usage):
                    raise BudgetSpent(spent)
                omitted = self._shared.refused_tools.union(*(r.names for r in self._removals if r.what == "tools"))
                if omitted != self._omitted_tools:
                    self._prepare(omitted)
                sent, memory = self.without_omitted(messages), self._conversation.memory
                request = Request(self._system, sent, self._tools, tail, overrides, memory)
                await trio.lowlevel.checkpoint_if_cancelled()
                calls += 1
                try:
                    reply = await self._ask(run, request, calls, attempts, compacts=compacts)
                except (ParameterRefused, _HandlerLimit) as error:
                    if scope.cancel_called:
                        break
                    overrides = self._drop_refused_settings(run, overrides, error)
                    await self._retry_after(run, attempts.failed + 1, 0.0, str(error))
                except ModelError as error:
                    if error.usage is not None and any(error.usage[:4]):
                        self._count(run, Usage(*error.usage))
                    if scope.cancel_called:
                        break
                    found = None if doubted else self._suspect(run, sent, error, attempts.failed)
                    if found is not None:
                        self._removals.append(found)
                        doubted = [found] if error.cause else []
                        await self._retry_after(run, attempts.failed + 1, 0.0, str(error))
                        continue
                    # The service also fails without the suspected content, so that content is not the cause.
                    self._removals = [each for each in self._removals if each not in doubted]
                    if not error.retryable:
                        raise
                    await self._retry_after(run, attempts.failed, attempts.delay_s, with_cause(error.cause, str(error)))
        return reply

    def without_omitted(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the messages, with stubs in place of the content that the current call omits."""
        return reduce(apply_removal, self._removals, messages)

    def _suspect(self, run: Run, sent: Sequence[Message], error: ModelError, failed: int) -> records.Removed | None:
        """Return the content that may have caused a failure, so that the next request omits it.

        Return ``None`` if no content is suspected. ``sent`` are the messages of the failed request, and ``failed`` is
        the number of retryable failures so far.
        """
        if not error.refused or (error.retryable and failed < SUSPECT_AFTER):
            return None
        found = suspected_removal(self._spec.name, run.iteration, sent, error, self._removals)
        is_tool = found.what == "tools" and not self._omitted_tools.issuperset(found.names)
        return found if is_tool or apply_removal(sent, found) is not sent else None

    async def _ask(self, run: Run, request: Request, call: int, attempts: _Attempts, *, compacts: bool) -> Reply:
        """Make a single attempt: call the model, record the call, and return the reply. ``call`` is the attempt number.

        Raise ``ModelError`` if the call fails or the reply is unusable. Raise ``_HandlerLimit`` if the handler prompt's
        ``max_tokens`` cut the reply off.
        """
        agent, n, limit = self._spec.name, run.iteration, request.overrides.max_tokens
        journal, system, tools = self._shared.journal, self._system_digest, self._tools_digest
        most = self._spec.limits.max_iterations
        tail, overrides = request.tail, request.overrides
        window, overhead = self._window_tokens, self._context.window_usage.overhead
        journal.record(
            records.RequestSent(agent, n, system, tools, most, call, tail, overrides, compacts, window, overhead)
        )
        await journal.wait_written()
        # A ``now`` line may have cancelled the scope meanwhile.
        await trio.lowlevel.checkpoint_if_cancelled()
        run.step.is_asking = True
        try:
            reply = await self._reply(run, request, compacts=compacts)
        except ModelError as error:
            attempts.count(error)
            # If the disk is full too, the error of the service is the more important one.
            journal.record_if_possible(_failure_record(agent, run, error, attempts.delay_s))
            raise
        self._count(run, reply.usage)
        if compacts:
            return reply  # ``Compactor`` records the end of the call
        kept = False
        try:
            if reply.stop_reason == "max_tokens" and limit is not None:
                raise _HandlerLimit(f"the handler's max_tokens ({limit}) cut the reply off")
            reply = self._make_sendable(reply)
            kept = bool(reply.message.blocks) and reply.stop_reason not in _NOT_APPENDED
        except ModelError as error:
            attempts.count(error)
            raise
        finally:
            self.record_end(run, reply, is_recorded_elsewhere=kept)
        return reply

    def record_end(self, run: Run, reply: Reply, *, is_recorded_elsewhere: bool) -> None:
        """Record the end of a call. Then replace the content that its request omitted by stubs in the conversation.

        If the service rejected the conversation as too long, the content stays. ``is_recorded_elsewhere``: another
        record contains the reply's message, so this record does not repeat the message.
        """
        self._shared.journal.record(
            records.RequestEnded(
                self._spec.name,
                run.iteration,
                reply.stop_reason,
                reply.usage,
                message=None if is_recorded_elsewhere else reply.message,
                asked_tokens=reply.asked_tokens,
                window=self._window_tokens,
            )
        )
        if reply.stop_reason != TOO_LONG:
            for removed in self._removals:
                self._context.remove(removed)

    @property
    def window(self) -> Window | None:
        """The window of the model, or ``None`` if it is unknown."""
        return window_of(self._context.spec.model)

    @property
    def _window_tokens(self) -> int:
        return 0 if self.window is None else self.window.tokens

    async def _reply(self, run: Run, request: Request, *, compacts: bool) -> Reply:
        """Call the model and return its reply.

        Raise ``ModelError`` for every exception of the model, except a cancellation of the current scope.
        """
        try:
            return await self._ask_model(request, lambda delta: self._on_delta(run, delta, is_shown=not compacts))
        except ModelError:
            raise
        except BaseException as error:
            if calling.contains_cancelled(error):
                await trio.lowlevel.checkpoint_if_cancelled()  # as for tools
            raise ModelError(calling.failure_message(f"the model {self._spec.model.name}", error)) from error

    def _make_sendable(self, reply: Reply) -> Reply:
        """Return the reply in a form that later requests can contain: without blank texts, and with usable call ids.

        Raise a retryable ``ModelError`` if the reply cannot be used.
        """
        if any(isinstance(block, Text) and not block.text.strip() for block in reply.message.blocks):
            reply = replace(reply, message=assistant(reply.message.blocks))
        if reply.stop_reason in _NOT_APPENDED or not reply.message.blocks:
            return reply
        try:
            message = self._shared.call_ids.claim(reply.message)
            self._conversation.check(message)
        except ConversationError as error:
            raise ModelError(f"the model sent a reply that cannot be used: {error}", retryable=True) from None
        if message is reply.message:
            return reply
        pairs = zip(reply.message.calls, message.calls, strict=True)
        cut = frozenset(new.id for old, new in pairs if old.id in reply.cut_calls)
        return replace(reply, message=message, cut_calls=cut)

    def _drop_refused_settings(
        self, run: Run, overrides: Overrides, error: ParameterRefused | _HandlerLimit
    ) -> Overrides:
        """Return ``overrides`` without the settings that the service refused, and emit a notice about the refusal.

        ``overrides`` has the settings of the handler prompt and the user's effort. Raise ``error`` if none of the
        refused settings is in ``overrides``. After a ``_HandlerLimit``, remove ``max_tokens`` without a notice.
        """
        if isinstance(error, _HandlerLimit):
            return overrides.without("max_tokens")
        ours = [p for p in error.parameters if p in overrides.values]
        if not ours:
            raise error
        if "effort" in ours and run.expectation.overrides.effort is None:
            run.is_effort_refused = True
            refused = (
                f"the service refused the effort {overrides.effort}, so this run continues without it; see /effort"
            )
            self._shared.emit(events.Notice(agent=self._spec.name, message=refused))
            rest = overrides.without("effort")
            return rest if len(ours) == 1 else self._drop_refused_settings(run, rest, error)
        source = run.expectation.source.removeprefix("yaml:")
        why = f"{source}: config: the service refused {', '.join(ours)}, so it is not sent; remove it from the file"
        self._shared.emit(events.Notice(agent=self._spec.name, message=why, file=source))
        return overrides.without(*ours)

    async def _retry_after(self, run: Run, attempt: int, delay_s: float, reason: str) -> None:
        """Discard the displayed text, emit a ``retry`` event, and wait ``delay_s`` seconds.

        Raise ``BudgetSpent`` without waiting if no budget is left.
        """
        was_shown = bool(run.step.shown)
        run.step.shown.clear()
        if spent := self._spec.limits.exceeded_budget(run.tree_usage):
            raise BudgetSpent(f"{spent} The incomplete reply was discarded." if was_shown else spent)
        self.emit_retry(run, attempt, delay_s, reason)
        run.step.is_asking = False
        await trio.sleep(delay_s)

    def emit_retry(self, run: Run, attempt: int, delay_s: float, reason: str) -> None:
        """Emit a ``retry`` event, so that front ends discard the displayed part of the reply."""
        agent, n = self._spec.name, run.iteration
        self._shared.emit(events.Retry(agent=agent, iteration=n, attempt=attempt, delay_s=delay_s, reason=reason))

    def _on_delta(self, run: Run, delta: Delta, *, is_shown: bool) -> None:
        """Process a piece of a streamed reply: count its usage, or emit its text if ``is_shown`` is true."""
        agent, n = self._spec.name, run.iteration
        if delta.kind == "usage":
            run.step.cut_usage += delta.usage
            self._count(run, delta.usage)
        elif not is_shown:
            pass
        elif delta.kind == "thinking":
            self._shared.emit(events.ThinkingDelta(agent=agent, iteration=n, text=delta.text))
        else:
            run.step.shown.append(delta.text)
            self._shared.emit(events.TextDelta(agent=agent, iteration=n, text=delta.text))

    def _count(self, run: Run, usage: Usage) -> None:
        run.add_usage(usage)
        if usage == Usage():
            return  # a request that the service refused
        common = {"agent": self._spec.name, "iteration": run.iteration}
        self._shared.emit(events.UsageReport.of(usage, self._window_tokens, **common))


class BudgetSpent(Exception):
    """Raised if no budget is left for another model call. The message says which budget is spent."""


class _HandlerLimit(Exception):
    """Raised if the reply was cut off by ``max_tokens`` of the handler prompt."""


def _failure_record(agent: str, run: Run, error: ModelError, delay_s: float) -> records.RequestEnded:
    """Return the record of a failed attempt. ``delay_s`` is the delay before the next attempt."""
    return records.RequestEnded(
        agent,
        run.iteration,
        usage=Usage() if error.usage is None else Usage(*error.usage),
        error=str(error),
        cause=error.cause,
        parameters=error.parameters if isinstance(error, ParameterRefused) else (),
        refused=error.refused,
        delay_s=delay_s if error.retryable else 0.0,
    )


class _Attempts:
    """The failed attempts of one model call, and the delay before the next attempt.

    Errors with a ``cause``, such as a lost connection, may last for minutes. So they are retried for ``retry_s``
    seconds. All other errors are unusable replies, of which only a limited number is allowed.
    """

    def __init__(self, retries: Retries, run: Run) -> None:
        self.failed = 0
        self.delay_s = 0.0
        """Seconds until the next attempt."""
        self._retries = retries
        self._run = run
        self._unusable = 0
        self._retry_until = math.inf

    def count(self, error: ModelError) -> None:
        """Count a retryable failure, and set ``delay_s`` for the next attempt.

        If a limit allows no further attempt, clear ``error.retryable``. If the delay would be longer than the time
        that is left, also say so in the error's message.
        """
        if not error.retryable:
            return
        now, left_s, retries = trio.current_time(), math.inf, self._retries
        self.failed += 1
        if error.cause:
            self._retry_until = min(self._retry_until, now + retries.retry_s)  # counted from the first such error
            left_s = self._retry_until - now
        else:
            self._unusable += 1
        longest = min(FIRST_DELAY_S * 2.0 ** min(self.failed - 1, 16), LONGEST_DELAY_S)
        own, asked = longest * random.uniform(0.5, 1.0), error.retry_after
        self.delay_s = min(own, left_s) if asked is None else asked
        if (
            left_s <= 0
            or self._unusable >= (retries.max_attempts or MAX_UNUSABLE)
            or self.failed == retries.max_attempts
        ):
            error.retryable = False
        elif now + self.delay_s >= self._run.deadline:
            self._give_up(error, "the run has left")
        elif self.delay_s > left_s:
            self._give_up(error, f"is left of retry_s ({retries.retry_s:g} s)")

    def _give_up(self, error: ModelError, longer_than: str) -> None:
        """Clear ``error.retryable`` and extend the message: "… longer than", and the words in ``longer_than``."""
        error.retryable = False
        who = "the next attempt would" if error.retry_after is None else "the service asks to"
        error.args = (f"{error}; {who} wait {self.delay_s:g} s, longer than {longer_than}",)
