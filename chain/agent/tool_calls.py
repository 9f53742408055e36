"""The tool calls of a reply, batch after batch, and a result for every one of them.

A batch is one call, or several neighbours that may run at the same time (they only read, or start agents). At C, which
stands before each batch and before each call that had to wait for one of the ``MAX_AT_ONCE`` places, a stop or an
urgent line that waits skips everything that has not started; what has started finishes.

A call that needs approval is put to the user before it starts, with a preview of what it would do. After the answer the
preview is made again; if it differs, the call fails. One whose question was withdrawn never started.

A call that has started is on record before its tool runs, so that it is known which calls may have had effects, also
where the program is killed. One that cannot be run (an unknown tool, input that does not fit or was cut off) never
starts.

What becomes of a tool that has started: at a stop it finishes. An interrupt (Esc), the run's time limit, the end of the
agent above and a full disk that another call of the batch meets cancel it; a now line cancels its batch; its own time
limit gives a result that says so. A result that is there is kept. Each call that has none then gets one in
``answer_open``, outside the cancelled scope: "[Interrupted: ...]" if its tool had started, else "[Skipped: ...]".

Where the disk is full a tool whose start cannot be recorded does not run. A result that cannot be recorded is emitted
and kept in memory, the run ends with ``error``, and the next run answers the open calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, TypeAlias, TypeVar

import trio

from chain import events
from chain.agent.questions import Asker
from chain.agent.spec import AgentContext
from chain.agent.state import Clock, PartialResult, Run
from chain.errors import JournalError, ToolError
from chain.journal import records
from chain.journal.journal import Projected
from chain.lines.inbox import Inbox
from chain.messages import ToolCall, ToolResult, tool_results
from chain.tools import calling
from chain.tools.tool import Guidance, Tool, ToolContext, may_run_beside_others

CUT_OFF = "The input was cut off by max_tokens; ask again with a shorter one."

MAX_AT_ONCE = 8
"""Calls of a batch that run at the same time: enough to hide the waits of slow disks and servers, few enough that a
reply with a hundred of them uses up neither the threads nor the open files."""

T = TypeVar("T")


def batches(calls: Iterable[T], may_join: Callable[[T], bool]) -> Iterator[tuple[T, ...]]:
    """The calls in their order, cut into what may run at the same time: neighbours that may, or one other."""
    for is_joint, group in groupby(calls, may_join):
        if is_joint:
            yield tuple(group)
        else:
            yield from ((call,) for call in group)


_Planned: TypeAlias = tuple[ToolCall, Tool | str]
"""A call, and its tool or why it cannot be run."""


def _may_join(planned: _Planned) -> bool:
    """Whether a call's neighbours may run at the same time. One that is not run is as harmless as one that reads."""
    _, tool = planned
    return isinstance(tool, str) or may_run_beside_others(tool)


class ToolCalls:
    """Runs the tool calls of one agent."""

    def __init__(self, context: AgentContext) -> None:
        self._context = context
        self._shared = context.shared
        self._inbox = context.inbox

    async def run(self, run: Run, calls: Sequence[ToolCall], cut: frozenset[str]) -> tuple[bool, tuple[str, ...]]:
        """Run the calls of a reply and append the results.

        Return whether calls have no result of their own, and the names of the tools that did not start.
        """
        planned = [(call, CUT_OFF if call.id in cut else self._find(call)) for call in calls]
        for batch in batches(planned, _may_join):
            if self._is_held_up(run) or run.step.was_cut:
                break
            try:
                with run.cut_by("now") as scope:
                    await self._run_batch(run, batch)
                run.step.was_cut = scope.cancelled_caught
            finally:
                # What was found keeps the order of the calls, whichever ended first.
                for call, _ in batch:
                    run.add_found(_found_by(run, call))
        skipped = [call for call in calls if call.id not in run.step.answered]
        unstarted = tuple(call.name for call in skipped if call.id not in self._context.state.started)
        self.answer_open(run)
        run.step.tools = "over"
        return bool(skipped), unstarted

    def _is_held_up(self, run: Run) -> bool:
        """Whether a line waits that keeps tools from starting."""
        return run.stop_asked or self._inbox.has_urgent

    def _find(self, call: ToolCall) -> Tool | str:
        try:
            return calling.find(self._context.spec.registry, call)
        except ToolError as error:
            return self._shortened(str(error))

    async def _run_batch(self, run: Run, batch: Sequence[_Planned]) -> None:
        if len(batch) == 1:
            await self._run_one(run, batch[0])
            return
        room = trio.Semaphore(MAX_AT_ONCE)

        async def run_one(planned: _Planned, is_at_c: bool, *, task_status: trio.TaskStatus[bool]) -> None:
            try:
                # Here and not before: a task begins a moment later, and a line may come in that moment.
                if is_at_c and self._is_held_up(run):
                    task_status.started(False)
                    return
                await self._run_one(run, planned, on_start=lambda: task_status.started(True))
            finally:
                room.release()

        try:
            async with trio.open_nursery() as nursery:
                for n, planned in enumerate(batch):
                    await room.acquire()
                    # Each waits for the one before, so they start in order.
                    if not await nursery.start(run_one, planned, n == 0 or n >= MAX_AT_ONCE):
                        break
        except BaseExceptionGroup as group:
            raise _unwrapped(group) from None

    async def _run_one(self, run: Run, planned: _Planned, *, on_start: Callable[[], None] = lambda: None) -> None:
        call, tool = planned
        await trio.lowlevel.checkpoint_if_cancelled()
        limit = trio.CancelScope()
        run.step.clocks[call.id] = Clock(limit)
        context = self._tool_context(run, call)
        if not isinstance(tool, str) and tool.needs_approval:
            approved = await self._approved(run, call, tool, context)
            if approved is None:
                return
            context = approved
        if isinstance(tool, str):
            run.step.tools = "running"
            self._shared.emit(self._event(events.ToolCall, run, call, input=call.input, parent_id=self._parent_id))
            on_start()
            self._ended(run, call, calling.failed(call, tool), 0.0, input={})
            return
        # If it is cut from here on, even before its tool runs, its result is "[Interrupted: ...]".
        started = self._shared.journal.record(records.ToolStarted(call.id, call.name, self._context.name))
        run.step.tools = "running"
        started.emit()
        on_start()
        await self._shared.journal.wait_written()
        # Whoever heard of the start may have interrupted the run in the same step. The tool does not run then.
        await trio.lowlevel.checkpoint_if_cancelled()
        begun = trio.current_time()
        result = await calling.run(tool, call, context, self._shared.tool_rules, limit)
        self._ended(run, call, result, trio.current_time() - begun)

    async def _approved(self, run: Run, call: ToolCall, tool: Tool, context: ToolContext) -> ToolContext | None:
        """The context with what the user approved; ``None`` if the call does not start."""
        rules = self._shared.tool_rules
        try:
            shown = await calling.preview(tool, call, context, rules)
            if shown is not None:
                verdict = await context.asking.approve(shown)
                if verdict.withdrawn:
                    return None  # it is answered as all that was skipped
                if not verdict.allowed:
                    raise ToolError(verdict.reason)
                if await calling.preview(tool, call, context, rules) != shown:
                    raise ToolError(f"{tool.name} was not run: what it would do has changed since the user was asked.")
        except ToolError as error:
            self._ended(run, call, calling.failed(call, self._shortened(str(error))), 0.0)
            return None
        # A stop or an urgent line may have come since the answer.
        if self._is_held_up(run):
            return None
        await trio.lowlevel.checkpoint_if_cancelled()
        return replace(context, approved=shown)

    def _shortened(self, text: str) -> str:
        return calling.shortened(text, self._shared.tool_rules.result_limit)

    def _ended(
        self, run: Run, call: ToolCall, result: ToolResult, seconds: float, *, input: Mapping[str, Any] | None = None
    ) -> None:
        """Record and emit a result; ``input`` as in its event, by default that of a call that never started.

        It is emitted even if this raises ``JournalError``: whoever saw the call start must see it end.
        """
        run.step.answered[call.id] = result
        has_started = call.id in self._context.state.started
        told: Projected | None = None
        try:
            if has_started:
                told = self._record_finished(run, call, result, seconds)
        finally:
            if told is not None and told.events:
                told.emit()
            else:
                shown = call.input if input is None and not has_started else {}
                text, is_error, exit_code, summary = result.text, result.is_error, result.exit_code, result.summary
                facts = {"is_error": is_error, "seconds": seconds, "exit_code": exit_code, "summary": summary}
                self._shared.emit(self._event(events.ToolResult, run, call, text=text, input=shown, **facts))

    def _record_finished(self, run: Run, call: ToolCall, result: ToolResult, seconds: float) -> Projected:
        """Record that a call has ended, with the result unless it follows at once with those of the other calls."""
        ended = records.ToolFinished(
            call.id,
            self._context.name,
            result.is_error,
            seconds,
            exit_code=result.exit_code,
            summary=result.summary,
        )
        # The results of a reply are appended together. Until then this one would be lost with the program.
        if not all(call.id in run.step.answered for call in self._context.conversation.open_calls):
            with suppress(JournalError):  # the disk may still have room without it
                return self._shared.journal.record(replace(ended, text=result.text, images=result.images))
        return self._shared.journal.record(ended)

    def answer_open(self, run: Run) -> None:
        """Append a result for every open call: its own, or one that says why there is none."""
        failure: JournalError | None = None
        conversation, state = self._context.conversation, self._context.state
        calls = conversation.open_calls
        results = state.results | run.step.answered  # those on record may be of an earlier process
        for call, stub in zip(calls, conversation.repair(state.started), strict=True):
            if call.id not in results:
                run.skipped += call.id not in state.started
                results[call.id] = stub
                try:
                    self._ended(run, call, stub, 0.0)
                except JournalError as error:
                    failure = error
        if failure is not None:
            raise failure
        self._context.append(tool_results(results[call.id] for call in calls)).emit()

    @property
    def _parent_id(self) -> str:
        return self._context.spec.parent_id

    def _event(self, kind: Any, run: Run, call: ToolCall, **more: Any) -> Any:  # noqa: ANN401 - the fields of an event
        """Return an event of a call that is not on record."""
        agent = self._context.name
        return kind(agent=agent, iteration=run.iteration, id=call.id, name=call.name, **more)

    def _tool_context(self, run: Run, call: ToolCall) -> ToolContext:
        shared, agent, n = self._shared, self._context.name, run.iteration
        clocks = run.clocks_of(call.id)

        def report(text: str) -> None:
            shared.emit(events.ToolProgress(agent=agent, iteration=n, id=call.id, name=call.name, text=text))

        return ToolContext(
            shared.workspace,
            shared.plan,
            call.id,
            _CallSteering(run, self._inbox),
            report,
            shared.seen,
            Asker(shared.questions, agent, call, clocks, lambda: not self._is_held_up(run)),
            agent=agent,
            delegating=run.delegating,
            notice=lambda text: shared.emit(events.Notice(agent=agent, iteration=n, message=text)),
            result_limit=shared.tool_rules.result_limit,
        )


def _found_by(run: Run, call: ToolCall) -> list[PartialResult]:
    """The call's result, if it is none of an error; else what its agent had found."""
    answer = run.step.answered.get(call.id)
    if answer is not None and not answer.is_error:
        return [PartialResult(call.name, answer.text)]
    return run.step.children_findings.get(call.id, [])


def _unwrapped(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What a batch raises: an error of our own as what it is, since the executor knows it by its type.

    A cancellation beside it strikes again at the next checkpoint. Errors of several calls stay a group, unless all are
    of one full disk.
    """
    _, errors = group.split(trio.Cancelled)
    if errors is None:
        return group
    leaves = list(calling.leaves_of(errors))
    is_one_fault = len(leaves) == 1 or all(isinstance(each, JournalError) for each in leaves)
    return leaves[0] if is_one_fault else errors


@dataclass(frozen=True, slots=True)
class _CallSteering:
    """The guidance for a running tool at its own safe points."""

    run: Run
    inbox: Inbox
    seen: set[str] = field(default_factory=set)

    def new_guidance(self) -> Guidance:
        return Guidance(self.inbox.adjustments(self.seen), self.run.is_ending)
