"""The tool calls of a reply, one after the other, and a result for every one of them.

A call that has started is on record before its tool runs, so that whatever happens later it is known which calls may
have had effects. Point C stands before each: a stop or an urgent line that waits skips this call and all after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import trio

from chain import events
from chain.conversation import Conversation
from chain.endings import Found
from chain.errors import ToolError
from chain.inbox import Emit, Inbox, Record
from chain.messages import Message, ToolCall, ToolResult, tool_results
from chain.plan import Plan
from chain.run import Run
from chain.tools import Guidance, Registry, ToolContext, calling

CUT_OFF = "The input was cut off by max_tokens; ask again with a shorter one."


class ToolRunner:
    """Runs the tools of one agent. ``commit`` is the executor's door into the conversation."""

    def __init__(
        self,
        *,
        agent: str,
        registry: Registry,
        rules: calling.Rules,
        workspace: Path,
        plan: Plan,
        conversation: Conversation,
        commit: Callable[[Message], None],
        inbox: Inbox,
        journal: Record,
        emit: Emit,
    ) -> None:
        self._agent = agent
        self._registry = registry
        self._rules = rules
        self._workspace = workspace
        self._plan = plan
        self._conversation = conversation
        self._commit = commit
        self._inbox = inbox
        self._journal = journal
        self._emit = emit

    async def run(self, run: Run, calls: Sequence[ToolCall], cut: frozenset[str]) -> Sequence[ToolCall]:
        """Run the calls of a reply in turn and append the results. Returns the calls that were skipped."""
        run.step.in_tools = True
        skipped: Sequence[ToolCall] = ()
        for n, call in enumerate(calls):
            if run.stop_asked or self._inbox.has_urgent:
                skipped = calls[n:]
                break
            await trio.lowlevel.checkpoint_if_cancelled()
            await self._run_one(run, call, cut_off=call.id in cut)
        self.answer_open(run)
        run.step.in_tools = False
        return skipped

    async def _run_one(self, run: Run, call: ToolCall, *, cut_off: bool) -> None:
        begun = trio.current_time()
        self._journal.record("tool_started", {"id": call.id, "name": call.name, "agent": self._agent})
        run.step.started.add(call.id)
        self._emit(
            events.ToolCall(agent=self._agent, iteration=run.iteration, id=call.id, name=call.name, input=call.input)
        )
        try:
            if cut_off:
                raise ToolError(CUT_OFF)
            tool = calling.find(self._registry, call, self._rules)
            result = await calling.run(tool, call, self._context(run, call), self._rules)
        except ToolError as error:
            result = calling.failed(call, str(error))
        self._ended(run, call, result, trio.current_time() - begun)

    def _ended(self, run: Run, call: ToolCall, result: ToolResult, seconds: float) -> None:
        run.step.answered[call.id] = result
        if not result.is_error:
            run.found.append(Found(call.name, result.text))
        if call.id in run.step.started:
            fields = {"id": call.id, "agent": self._agent, "is_error": result.is_error, "seconds": seconds}
            self._journal.record("tool_finished", fields)
        self._emit(
            events.ToolResult(
                agent=self._agent,
                iteration=run.iteration,
                id=call.id,
                name=call.name,
                text=result.text,
                is_error=result.is_error,
                seconds=seconds,
            )
        )

    def answer_open(self, run: Run) -> None:
        """Append a result for every open call: its own, or one that says why there is none."""
        for call, stub in zip(self._conversation.open_calls, self._conversation.repair(run.step.started), strict=True):
            if call.id not in run.step.answered:
                run.skipped += call.id not in run.step.started
                self._ended(run, call, stub, 0.0)
        self._commit(tool_results(run.step.answered[c.id] for c in self._conversation.open_calls))

    def _context(self, run: Run, call: ToolCall) -> ToolContext:
        def report(text: str) -> None:
            self._emit(
                events.ToolProgress(agent=self._agent, iteration=run.iteration, id=call.id, name=call.name, text=text)
            )

        return ToolContext(self._workspace, self._plan, call.id, _Steering(run, self._inbox), report)


@dataclass(frozen=True, slots=True)
class _Steering:
    """What a running tool is told at its own safe points."""

    run: Run
    inbox: Inbox
    seen: set[str] = field(default_factory=set)

    def take_guidance(self) -> Guidance:
        return Guidance(self.inbox.adjustments(self.seen), self.run.stop_asked)
