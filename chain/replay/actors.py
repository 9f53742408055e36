"""Who stands in for models and tools in a replay: each does what is on record, once its agent's course has come there.

Whatever is waited for is a condition, which holds at some time or never (what was cut). The player looks at them when
nothing else goes on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import trio

from chain.agent.tree import AgentTree, Node
from chain.errors import ModelError, ParameterRefused, ToolError
from chain.journal import records
from chain.journal.journal import Journal
from chain.messages import Message, Thinking
from chain.model import Delta, Model, Reply, Request
from chain.replay.script import SOME_TEXT, Script
from chain.replay.tape import Tape
from chain.tools.calling import Rules
from chain.tools.tool import Preview, Tool, ToolContext, delegates


@dataclass(eq=False, slots=True)
class _Wait:
    """Somebody who waits until something holds."""

    holds: Callable[[], bool]
    scope: trio.CancelScope
    event: trio.Event = field(default_factory=trio.Event)


class Named(Protocol):
    """The definition of a model."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...


class Actors:
    """All who stand in."""

    tree: AgentTree
    """The agents, once there are any."""
    journal: Journal

    def __init__(self, script: Script) -> None:
        self.tape = Tape(script)
        self.running: dict[str, ToolContext] = {}
        """The tools that run and are stood in for, by calls."""
        self.at_pause: Callable[[str], None] = lambda agent: None
        """Called where an agent may have waited for the disk before it asked its model."""
        self._script = script
        self._is_over = False
        self._waits: list[_Wait] = []
        self._tools: list[RecordedTool] = []
        self._real: list[RealTool] = []

    # ------------------------------------------------------------------------------------------------- for the wiring

    @property
    def path(self) -> str | None:
        """There is no trace."""
        return None

    def traced(self, agent: str, model: Model) -> Model:
        """The model of an agent, whatever it asks."""
        return RecordedModel(model.name, agent, self)

    def open_model(self, definition: Named) -> Model:
        """What stands in for the model of a definition; no key is needed for it."""
        return RecordedModel(definition.name)

    def tools(self, tools: Iterable[Tool], real: Sequence[Tool]) -> tuple[Tool, ...]:
        """What stands in for these tools, but for those that are ``real``."""
        for tool in real:
            if delegates(tool):
                self.tape.loose.add(tool.name)
        return tuple(self._tool(tool, is_real=any(tool is each for each in real)) for tool in tools)

    def _tool(self, tool: Tool, *, is_real: bool) -> Tool:
        if is_real and delegates(tool):
            return tool
        # A tool may be named twice, and is then one.
        known: list[RecordedTool | RealTool] = [*self._tools, *self._real]
        found = next((each for each in known if each.stands_for(tool)), None)
        if found is not None:
            return found
        if is_real:
            self._real.append(RealTool(tool, self))
            return self._real[-1]
        self._tools.append(RecordedTool(tool, self))
        return self._tools[-1]

    def rules(self, rules: Rules) -> Rules:
        """The rules of tools where these stand in for some: nothing takes time, nor is shortened once more."""
        return replace(rules, timeout_s=math.inf, whole=frozenset(tool.name for tool in self._tools))

    async def meanwhile(self, agent: str) -> None:
        """Do what was done while an agent waited for the disk; one that was ended just then waits for that."""
        if self._is_over:
            return
        self.at_pause(agent)
        node = self.node(agent)
        if node is not None and node.run is not None and not (node.run.stop_asked or node.run.interrupted):
            at = self.tape.head(agent)
            if at is not None and self._script.was_ended(agent, at - 1):
                await self._until(lambda: False)

    # ------------------------------------------------------------------------------------------------ for the player

    def node(self, agent: str) -> Node | None:
        """An agent that is at work."""
        return next((node for node in self.tree.main.all() if node.name == agent), None)

    def is_held_up(self, agent: str) -> bool:
        """Whether no call of an agent may start."""
        node = self.node(agent)
        return node is not None and (node.inbox.has_urgent or (node.run is not None and node.run.stop_asked))

    def stands_in(self, name: str) -> bool:
        """Whether a tool is stood in for."""
        return any(tool.name == name for tool in self._tools)

    def go_on(self) -> bool:
        """Let all go on whose condition holds. Whether there were any."""
        ready = [each for each in self._waits if not each.event.is_set() and each.holds()]
        for each in ready:
            each.event.set()
        return bool(ready)

    def leave(self) -> None:
        """Keep nobody any more, and hear nothing that is written."""
        self._is_over = self.tape.is_off = True
        for each in self._waits:
            each.scope.shield = False

    # --------------------------------------------------------------------------------------------------- for the actors

    async def _until(self, holds: Callable[[], bool], *, is_sure: bool = False) -> None:
        """Wait until something holds; if that is sure to come, cancelling does not change it."""
        if holds() and not self._is_over:
            return
        wait = _Wait(holds, trio.CancelScope(shield=is_sure and not self._is_over))
        self._waits.append(wait)
        try:
            with wait.scope:
                await wait.event.wait()
        finally:
            self._waits.remove(wait)

    async def _come_to(self, agent: str, n: int) -> None:
        """Wait until an agent's course has come to an entry."""
        await self._until(lambda: self.tape.has_come_to(agent, n), is_sure=True)
        with trio.CancelScope(shield=not self._is_over):
            await self.journal.flush()  # as what is done takes longer than the disk

    async def reply(self, agent: str, on_delta: Callable[[Delta], None]) -> Reply:
        """What the model replied to the request that this agent has just sent. Raises ``ModelError`` as it did."""
        sent = self.tape.sent.get(agent)
        if sent is None or self.tape.is_off or self.tape.difference is not None:
            await trio.sleep_forever()  # whatever this is, it is not on record
        assert sent is not None
        call = self._script.call(sent)

        def show() -> None:
            if call.shown:
                on_delta(Delta("text", call.shown))

        if call.was_answering or (call.ended is None and not call.was_late):
            show()
        if call.end is None or call.ended is None:
            try:
                await self._until(lambda: False)
            finally:
                if call.was_late:
                    show()
            raise AssertionError("it is never given")
        await self._come_to(agent, call.end)
        if not call.was_answering:
            show()
        return _ended(call.ended, call.message)

    async def preview(self, context: ToolContext, *, is_second: bool) -> Preview | None:
        """What was shown of a call before it was allowed. Raises ``ToolError`` where it failed."""
        script, agent, id = self._script, context.agent, context.call_id
        question, start, fault = script.approval(id), script.started.get(id), script.fault(id)
        if question is not None and not is_second:
            await self._until(lambda: self.tape.may_ask(agent, question), is_sure=True)
            return script.preview(question)
        if fault:
            raise ToolError(fault)
        if start is not None:
            await self._come_to(agent, start)
        else:
            await self._until(lambda: self.is_held_up(agent))  # it never began
        return None if question is None else script.preview(question)

    async def may_run(self, context: ToolContext) -> None:
        """Wait until a tool that is really run may ask what it asked, if it asked anything."""
        asked = self._script.questions(context.call_id)
        if asked:
            await self._until(lambda: self.tape.may_ask(context.agent, asked[0]))

    async def run_tool(self, context: ToolContext) -> str:
        """What a tool gave back. Raises ``ToolError`` with the text of an error result."""
        agent, id = context.agent, context.call_id
        self.running[id] = context
        result = self._script.result(id)
        try:
            await self._ask(context, is_kept=result is not None)
            if result is None:
                await self._until(lambda: False)
            else:
                await self._come_to(agent, self._script.finished[id])
            self.give_guidance(context)
        finally:
            del self.running[id]
        assert result is not None
        if result.is_error:
            raise ToolError(result.text)
        return result.text

    def give_guidance(self, context: ToolContext) -> None:
        """Let a tool hear of guidance that one acted on."""
        node = self.node(context.agent)
        if node is not None and any(each.on_record in self._script.heard for each in node.inbox.waiting()):
            context.steering.new_guidance()

    async def _ask(self, context: ToolContext, *, is_kept: bool) -> None:
        """Ask what the tool asked while it ran."""
        for n in self._script.questions(context.call_id):
            asked = self._script.question_at(n)
            try:
                await self._until(partial(self.tape.may_ask, context.agent, n), is_sure=is_kept)
                if asked.kind == "approval":
                    await context.asking.approve(self._script.preview(n))
                else:
                    with suppress(ToolError):  # what the tool made of that is in its result
                        await context.asking.choose(asked.text, asked.options)
            except trio.Cancelled:
                if not is_kept or self._is_over:
                    raise
                return  # it was cancelled, and had a result of its own all the same


def _ended(ended: records.RequestEnded, message: Message | None) -> Reply:
    """The reply of a call. Raises ``ModelError`` for one that failed."""
    if ended.stop_reason is not None and message is None:
        message = Message("assistant", (Thinking(SOME_TEXT),))  # it said nothing, so it was not appended
    if ended.stop_reason is None or message is None:
        error = ModelError(ended.error, retryable=ended.retryable, retry_after=ended.retry_after)
        if ended.parameters:
            error = ParameterRefused(ended.error, ended.parameters)
        used = ended.usage
        error.usage = (
            used.input_tokens,
            used.output_tokens,
            used.cache_read_tokens,
            used.cache_write_tokens,
            used.cost_usd,
        )
        raise error
    return Reply(message, ended.stop_reason, ended.usage, frozenset(ended.cut_calls))


class RecordedModel:
    """What one agent's model replied."""

    def __init__(self, name: str, agent: str = "", actors: Actors | None = None) -> None:
        """Without ``actors`` it is a name alone."""
        self.name = name
        self._agent = agent
        self._actors = actors

    async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        """Answer one request as it was answered. Raises ``ModelError``."""
        assert self._actors is not None
        return await self._actors.reply(self._agent, on_delta)

    async def prepare(self) -> None:
        """There is nothing to prepare."""

    async def aclose(self) -> None:
        """There is nothing to give up."""


class RealTool:
    """A tool that is really run, and asks in the order of the record."""

    def __init__(self, tool: Tool, actors: Actors) -> None:
        self.name = tool.name
        self.description = tool.description
        self.input_schema = tool.input_schema
        self.timeout_s = tool.timeout_s
        self.read_only = tool.read_only
        self.needs_approval = tool.needs_approval
        self.check = tool.check
        self._tool = tool
        self._actors = actors

    def stands_for(self, tool: Tool) -> bool:
        """Whether it is this tool that it runs."""
        return tool is self._tool

    async def run(self, context: ToolContext, input: Mapping[str, Any]) -> str:
        """Run it. Raises what it raises."""
        await self._actors.may_run(context)
        return await self._tool.run(context, input)


class RecordedTool:
    """A tool that the model knows as today's, and that does nothing but give back what is on record."""

    timeout_s = math.inf  # if it was too slow, that is its result

    def __init__(self, tool: Tool, actors: Actors) -> None:
        self.name = tool.name
        self.description = tool.description
        self.read_only = tool.read_only
        self.needs_approval = tool.needs_approval
        self._tool = tool
        self._actors = actors
        self._shown: set[str] = set()

    def stands_for(self, tool: Tool) -> bool:
        """Whether it is this tool that it stands in for."""
        return tool is self._tool

    @property
    def input_schema(self) -> Mapping[str, Any]:
        """The JSON schema of the input."""
        return self._tool.input_schema

    def check(self, input: Mapping[str, Any]) -> object:
        """Raises ``ToolError`` for input that does not fit the schema."""
        return self._tool.check(input)

    async def preview(self, context: ToolContext, input: Mapping[str, Any]) -> Preview | None:
        """What the call would have done. Raises ``ToolError`` where it would have failed."""
        is_second = context.call_id in self._shown
        self._shown.add(context.call_id)
        return await self._actors.preview(context, is_second=is_second)

    async def run(self, context: ToolContext, input: Mapping[str, Any]) -> str:
        """Give back the text of the result. Raises ``ToolError``."""
        return await self._actors.run_tool(context)
