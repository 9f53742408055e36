"""The tool calls of a reply: run them batch after batch, and append a result for each of them.

A batch is one call, or several consecutive calls that may run concurrently because they only read or start agents. At
most ``MAX_CALLS_AT_ONCE`` calls of a batch run at the same time. Safe point C comes before each batch, and before each
call of a batch that had to wait for another call to end. At C, a stop or an urgent line skips all calls that have not
started.

The start of a call is recorded before its tool runs. So even if the program is killed, it is known which calls may have
had effects. A call that needs approval starts after the user has approved it. After the answer, the preview is made
again, and the call does not start if the new preview differs from the one that was shown. A call that cannot be run (an
unknown tool, invalid input) never starts.

After a tool has started, the following can happen to it:

- A stop or an urgent line lets the tool finish.
- An interrupt (Esc), the run's time limit, the end of the parent agent, or a full disk that another call of the batch
  meets cancels the tool.
- A ``now`` line cancels the whole batch.
- The tool's own time limit cancels the tool, and the result says so.

Then ``answer_open`` gives each call without a result a stub, outside the cancelled scope. The stub is
"[Interrupted: ...]" if the tool had started, otherwise "[Skipped: ...]".

On a full disk, a tool whose start cannot be recorded does not run. A result that cannot be recorded is emitted and
stored in memory. The run then ends with ``error``, and the next run appends results for the open calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Any, TypeAlias, TypeVar

import trio

from chain import events
from chain.agent.questions import Asker
from chain.agent.spec import AgentContext
from chain.agent.state import PartialResult, PausableDeadline, Run
from chain.errors import JournalError, ToolError
from chain.journal import records
from chain.journal.journal import RecordedEvents
from chain.lines.inbox import Inbox
from chain.messages import ToolCall, ToolResult, tool_results
from chain.text.modes import READ_ONLY_DENIAL
from chain.tools import calling
from chain.tools.file_versions import digest
from chain.tools.tool import Guidance, Tool, ToolContext, Verdict, can_run_in_parallel, kind_of

INPUT_CUT_OFF = "The input was cut off by max_tokens; call the tool again with a shorter input."

MAX_CALLS_AT_ONCE = 8
"""The limit of calls that run at the same time. A hundred could use up the threads or the open files."""

T = TypeVar("T")


def batches(calls: Iterable[T], may_join: Callable[[T], bool]) -> Iterator[tuple[T, ...]]:
    """Split the calls into batches, and keep their order.

    Consecutive calls for which ``may_join`` is true are one batch. Every other call is a batch of its own.
    """
    for is_joint, group in groupby(calls, may_join):
        if is_joint:
            yield tuple(group)
        else:
            yield from ((call,) for call in group)


_PlannedCall: TypeAlias = tuple[ToolCall, Tool | str]
"""A call, with its tool or with the reason why the call cannot be run."""


def _may_join(planned: _PlannedCall) -> bool:
    """Return whether a call may be in a batch with other calls. It is true also for a call that cannot be run."""
    _, tool = planned
    return isinstance(tool, str) or can_run_in_parallel(tool)


class ToolCalls:
    """The tool calls of one agent."""

    def __init__(self, context: AgentContext) -> None:
        self._context = context
        self._shared = context.shared
        self._inbox = context.inbox

    async def run(self, run: Run, calls: Sequence[ToolCall], cut_calls: frozenset[str]) -> tuple[bool, tuple[str, ...]]:
        """Run the tool calls of a reply and append the results.

        ``cut_calls`` has the ids of the calls whose input was cut off. These calls are not run. Return whether any
        calls were skipped or cancelled, and the names of the tools that were not started.
        """
        planned = [(call, INPUT_CUT_OFF if call.id in cut_calls else self._find_tool(call)) for call in calls]
        for batch in batches(planned, _may_join):
            if self._is_blocked(run) or run.step.was_cut:
                break
            try:
                with run.cut_scope("now") as scope:
                    await self._run_batch(run, batch)
                run.step.was_cut = scope.cancelled_caught
            finally:
                # Findings are added in the order of the calls, not in the order in which the calls end.
                for call, _ in batch:
                    run.add_results(_findings_of(run, call))
        skipped = [call for call in calls if call.id not in run.step.answered]
        unstarted = tuple(call.name for call in skipped if call.id not in self._context.state.started)
        self.answer_open(run)
        run.step.tools = "over"
        return bool(skipped), unstarted

    def _is_blocked(self, run: Run) -> bool:
        """Return whether no further tools may start: a stop was requested, or an urgent or ``now`` line waits."""
        return run.is_stop_requested or self._inbox.has_urgent

    def _find_tool(self, call: ToolCall) -> Tool | str:
        """Return the tool of a call, or the reason why the call cannot be run."""
        try:
            return calling.tool_for(self._context.spec.registry, call)
        except ToolError as error:
            return self._truncate(str(error))

    async def _run_batch(self, run: Run, batch: Sequence[_PlannedCall]) -> None:
        """Run the calls of a batch concurrently. Each call starts only after the previous one has started."""
        if len(batch) == 1:
            await self._run_one(run, batch[0])
            return
        room = trio.Semaphore(MAX_CALLS_AT_ONCE)

        async def run_one(planned: _PlannedCall, is_at_safe_point: bool, *, task_status: trio.TaskStatus[bool]) -> None:
            try:
                # Checked in the task, because a line may arrive between ``nursery.start`` and the task's first step.
                if is_at_safe_point and self._is_blocked(run):
                    task_status.started(False)
                    return
                await self._run_one(run, planned, on_start=lambda: task_status.started(True))
            finally:
                room.release()

        try:
            async with trio.open_nursery() as nursery:
                for n, planned in enumerate(batch):
                    await room.acquire()
                    # Waits until the call has started, so that calls start in order.
                    if not await nursery.start(run_one, planned, n == 0 or n >= MAX_CALLS_AT_ONCE):
                        break
        except BaseExceptionGroup as group:
            raise _unwrap(group) from None

    async def _run_one(self, run: Run, planned: _PlannedCall, *, on_start: Callable[[], None] = lambda: None) -> None:
        """Run one call and record its result. If the tool needs approval, first ask the user.

        ``on_start`` is called when the call starts. It is not called if the call is not approved.
        """
        call, tool = planned
        await trio.lowlevel.checkpoint_if_cancelled()
        if isinstance(tool, str):
            run.step.tools = "running"
            parent_id = self._context.spec.parent_id
            self._shared.emit(self._make_event(events.ToolCall, run, call, input=call.input, parent_id=parent_id))
            on_start()
            self._finish_call(run, call, calling.error_result(call, tool), 0.0, input={})
            return
        limit = trio.CancelScope()
        run.step.clocks[call.id] = PausableDeadline(limit)
        context = await self._approve(run, call, tool)
        if context is None:
            return
        # From here on, a cancellation gives the result "[Interrupted: ...]", even before the tool runs.
        started = self._shared.journal.record(records.ToolStarted(call.id, call.name, self._context.name))
        run.step.tools = "running"
        started.emit()
        on_start()
        await self._shared.journal.wait_written()
        # A listener of the event may have interrupted the run. The tool does not run then.
        await trio.lowlevel.checkpoint_if_cancelled()
        started_at = trio.current_time()
        result = await calling.run(tool, call, context, self._shared.tool_rules, limit)
        self._finish_call(run, call, result, trio.current_time() - started_at)

    async def _approve(self, run: Run, call: ToolCall, tool: Tool) -> ToolContext | None:
        """Return the context in which a call can start. If the tool needs approval, first ask the user.

        Return ``None`` if the call must not start. If the call was denied, its result is an error that says so.
        """
        context, rules = self._tool_context(run, call, tool), self._shared.tool_rules
        verdict: Verdict | None = None
        try:
            self._check_mode(tool)
            if not tool.needs_approval:
                return context
            shown = await calling.preview(tool, call, context, rules)
            if shown is not None:
                verdict = await context.asking.approve(shown)
                if verdict.withdrawn:
                    return None  # the call counts as skipped
                if not verdict.allowed:
                    raise ToolError(verdict.reason)
                if not verdict.by_configuration and await calling.preview(tool, call, context, rules) != shown:
                    raise ToolError(f"{tool.name} was not run: what it would do has changed since the user was asked.")
                self._check_mode(tool)  # the mode may have changed since the answer
        except ToolError as error:
            self._finish_call(run, call, calling.error_result(call, self._truncate(str(error))), 0.0)
            return None
        # A stop or an urgent line may have arrived since the answer.
        if self._is_blocked(run):
            return None
        await trio.lowlevel.checkpoint_if_cancelled()
        return replace(context, approved=shown, verdict=verdict)

    def _check_mode(self, tool: Tool) -> None:
        """Raise ``ToolError`` if the mode of the session denies calls of this tool."""
        if self._shared.questions.denies(tool):
            raise ToolError(READ_ONLY_DENIAL)

    def _truncate(self, text: str) -> str:
        return calling.truncate_middle(text, self._shared.tool_rules.result_limit)

    def _finish_call(
        self, run: Run, call: ToolCall, result: ToolResult, seconds: float, *, input: Mapping[str, Any] | None = None
    ) -> None:
        """Emit the result of a call, and record it if the call has started.

        If the call has not started and no ``input`` is given, the event contains the call's input. If the result cannot
        be recorded, emit it and raise ``JournalError``: a listener that saw the call start must see its end.
        """
        run.step.answered[call.id] = result
        has_started = call.id in self._context.state.started
        recorded: RecordedEvents | None = None
        try:
            if has_started:
                recorded = self._record_finished(run, call, result, seconds)
        finally:
            if recorded is not None and recorded.events:
                recorded.emit()
            else:
                shown = call.input if input is None and not has_started else {}
                text, is_error, exit_code, summary = result.text, result.is_error, result.exit_code, result.summary
                facts = {"is_error": is_error, "seconds": seconds, "exit_code": exit_code, "summary": summary}
                self._shared.emit(self._make_event(events.ToolResult, run, call, text=text, input=shown, **facts))

    def _record_finished(self, run: Run, call: ToolCall, result: ToolResult, seconds: float) -> RecordedEvents:
        """Record the end of a call.

        The record contains the result only if other calls are still open. Otherwise the message with the results of
        all calls is recorded immediately afterwards.
        """
        ended = records.ToolFinished(
            call.id,
            self._context.name,
            result.is_error,
            seconds,
            exit_code=result.exit_code,
            summary=result.summary,
        )
        # While other calls run, a crash would lose the result if it were not in this record.
        if not all(call.id in run.step.answered for call in self._context.conversation.open_calls):
            with suppress(JournalError):  # the disk may have room for the record without the result
                return self._shared.journal.record(replace(ended, text=result.text, images=result.images))
        return self._shared.journal.record(ended)

    def answer_open(self, run: Run) -> None:
        """Append a message with a result for each open call. For a call without a result, append a stub.

        The stub says whether the call was interrupted or skipped. Raise ``JournalError`` if a result cannot be
        recorded.
        """
        failure: JournalError | None = None
        conversation, state = self._context.conversation, self._context.state
        calls = conversation.open_calls
        results = state.results | run.step.answered  # recorded results may be of an earlier process
        for call, stub in zip(calls, conversation.stub_results(state.started), strict=True):
            if call.id not in results:
                run.skipped_calls += call.id not in state.started
                results[call.id] = stub
                try:
                    self._finish_call(run, call, stub, 0.0)
                except JournalError as error:
                    failure = error
        if failure is not None:
            raise failure
        self._context.append(tool_results(results[call.id] for call in calls)).emit()

    def _make_event(self, kind: Any, run: Run, call: ToolCall, **more: Any) -> Any:  # noqa: ANN401 - the fields of an event
        """Return an event of the class ``kind`` about a call. For events that no record produces."""
        agent = self._context.name
        return kind(agent=agent, iteration=run.iteration, id=call.id, name=call.name, **more)

    def _tool_context(self, run: Run, call: ToolCall, tool: Tool) -> ToolContext:
        shared, agent, n = self._shared, self._context.name, run.iteration
        clocks = run.clocks_of(call.id)

        def report(text: str) -> None:
            shared.emit(events.ToolProgress(agent=agent, iteration=n, id=call.id, name=call.name, text=text))

        def store_version(path: str, before: bytes | None, after: bytes) -> None:
            old = "" if before is None else digest(before)
            if before is not None:
                shared.journal.store_attachment(old, before)
            shared.journal.record(records.FileChanged(agent, call.id, path, old, digest(after)))

        return ToolContext(
            shared.workspace,
            shared.plan,
            call.id,
            _CallSteering(run, self._inbox),
            report,
            shared.known_files,
            Asker(shared.questions, agent, call, clocks, lambda: not self._is_blocked(run), kind_of(tool)),
            agent=agent,
            delegating=run.delegating,
            notice=partial(self._context.emit_notice, n),
            result_limit=shared.tool_rules.result_limit,
            file_changing=store_version,
            jobs=shared.jobs,
            added_directories=tuple(shared.added_directories),
        )


def _findings_of(run: Run, call: ToolCall) -> list[PartialResult]:
    """Return the result of a call as a finding.

    If the call failed or has no result, return the findings of the child agent that the call started, if any.
    """
    answer = run.step.answered.get(call.id)
    if answer is not None and not answer.is_error:
        return [PartialResult(call.name, answer.text)]
    return run.step.children_findings.get(call.id, [])


def _unwrap(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the exception to raise for the exceptions of a batch.

    A group of cancellations alone is returned. Otherwise cancellations are left out, because trio raises them again at
    the next checkpoint. A single error is returned without its group, because the executor handles errors by type.
    Several errors stay a group, but if all of them are ``JournalError``, the first is returned.
    """
    _, errors = group.split(trio.Cancelled)
    if errors is None:
        return group
    leaves = list(calling.exceptions_in(errors))
    is_one_fault = len(leaves) == 1 or all(isinstance(each, JournalError) for each in leaves)
    return leaves[0] if is_one_fault else errors


@dataclass(frozen=True, slots=True)
class _CallSteering:
    """The access of a running tool to the user's guidance: new adjustments, and whether the run is ending.

    ``seen`` has the ids of the lines whose adjustments the tool has already read.
    """

    run: Run
    inbox: Inbox
    seen: set[str] = field(default_factory=set)

    def new_guidance(self) -> Guidance:
        return Guidance(self.inbox.use_adjustments(self.seen), self.run.is_ending)
