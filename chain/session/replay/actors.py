"""Who stands in for models and tools in a replay: each does what is on record, when it is given the cue.

What only takes its time without being on record (a disk, a look at what a call would do, the end of what was cancelled)
waits for its turn (``turns``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import trio

from chain import records
from chain.errors import ModelError, ParameterRefused, ToolError
from chain.messages import Message, Thinking, ToolResult
from chain.model import Delta, Model, Reply, Request
from chain.session.replay.script import SOME_TEXT, Call, Script
from chain.session.replay.tape import Tape
from chain.session.replay.turns import Turns
from chain.tools.calling import Rules
from chain.tools.tool import Preview, Tool, ToolContext


@dataclass(eq=False, slots=True)
class Cue:
    """What somebody waits for who has to come to an end by themselves; cancelling does not change that."""

    scope: trio.CancelScope = field(default_factory=lambda: trio.CancelScope(shield=True))
    given: trio.Event = field(default_factory=trio.Event)

    async def wait(self) -> None:
        """Wait until it is given."""
        with self.scope:
            await self.given.wait()


@dataclass(eq=False, slots=True)
class Asked:
    """A model call that is under way."""

    call: Call
    on_delta: Callable[[Delta], None]
    cue: Cue = field(default_factory=Cue)
    is_shown: bool = False

    def show(self) -> None:
        """Show what was shown of the reply."""
        if self.call.shown and not self.is_shown:
            self.is_shown = True
            self.on_delta(Delta("text", self.call.shown))

    def tell(self, kind: Literal["text", "thinking"]) -> None:
        """Show a piece of the reply."""
        if kind == "text" and not self.is_shown:
            self.is_shown = True
            self.on_delta(Delta("text", self.call.shown))
        else:
            self.on_delta(Delta(kind, ""))

    def end(self) -> None:
        """Let the call end as it did."""
        self.show()
        self.cue.given.set()


@dataclass(eq=False, slots=True)
class Running:
    """A tool that runs."""

    context: ToolContext
    cue: Cue = field(default_factory=Cue)


class Named(Protocol):
    """The definition of a model."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...


class Actors:
    """All who stand in, and what they wait for."""

    def __init__(self, script: Script) -> None:
        self.asked: dict[str, Asked] = {}
        """The model calls under way, by agents."""
        self.running: dict[str, Running] = {}
        """The tools that run, by calls."""
        self.begins: Callable[[Running | Asked], None] = lambda called: None
        self.turns = Turns(script)
        self.tape = Tape(script.entries, self.turns.sync)
        self._script = script
        self._is_over = False
        self._tools: list[RecordedTool] = []

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
        return tuple(tool if any(tool is each for each in real) else self._tool(tool) for tool in tools)

    def _tool(self, tool: Tool) -> RecordedTool:
        # A tool may be named twice, and is then one.
        known = next((each for each in self._tools if each.stands_for(tool)), None)
        if known is None:
            known = RecordedTool(tool, self)
            self._tools.append(known)
        return known

    def rules(self, rules: Rules) -> Rules:
        """The rules of tools where these stand in for some: nothing takes time, nor is shortened once more."""
        return replace(rules, timeout_s=math.inf, whole=frozenset(tool.name for tool in self._tools))

    # ------------------------------------------------------------------------------------------------ for the director

    def queue_up(self) -> bool:
        """Let one ask who will wait for the answer to another's question. Whether there was any."""
        return self.turns.queue_up(self._has_asked)

    def _has_asked(self, question: int) -> bool:
        """Whether a question was asked by a tool that is really run, which does so as it begins."""
        start = self._script.start_of(question)
        return start is not None and self.tape.is_done(start) and self._script.call_of(question) not in self.running

    def leave(self) -> None:
        """Keep nobody any more, and hear nothing that is written."""
        self._is_over = self.tape.is_off = True
        for cue in [*(asked.cue for asked in self.asked.values()), *(each.cue for each in self.running.values())]:
            cue.scope.shield = False
        self.turns.leave()

    # --------------------------------------------------------------------------------------------------- for the actors

    async def _cued(self, cue: Cue) -> None:
        """Wait for a cue. Nothing is waited for if it was given already: on record nothing came between."""
        if not cue.given.is_set():
            await cue.wait()
            if not cue.given.is_set():
                await trio.sleep_forever()  # it is over

    async def _until_cut(self, agent: str, call_id: str = "", *, at_once: Callable[[], None] = lambda: None) -> None:
        """Wait to be cancelled, and let all happen that did before that was over, some of it ``at_once``."""
        try:
            await trio.sleep_forever()
        finally:
            at_once()
            await self.turns.wait(agent, call_id)

    async def reply(self, agent: str, on_delta: Callable[[Delta], None]) -> Reply:
        """What the model replied to the request that this agent has just sent. Raises ``ModelError`` as it did."""
        sent = self.tape.sent.get(agent)
        if sent is None or self.tape.is_off or self.tape.difference is not None:
            await trio.sleep_forever()  # whatever this is, it is not on record
        assert sent is not None
        asked = self.asked[agent] = Asked(self._script.call(sent), on_delta)
        try:
            self.begins(asked)
            if asked.call.ended is None and asked.call.was_late:
                await self._until_cut(agent, at_once=asked.show)
            elif asked.call.ended is None:
                asked.show()
                await self._until_cut(agent)
            await self._cued(asked.cue)
        finally:
            del self.asked[agent]
        assert asked.call.ended is not None
        return _ended(asked.call.ended, asked.call.message)

    async def preview(self, context: ToolContext, *, is_second: bool) -> Preview | None:
        """What was shown of a call before it was allowed. Raises ``ToolError`` where it failed."""
        script, id = self._script, context.call_id
        question, fault = script.approval(id), script.fault(id)
        await self.turns.wait(context.agent, id, None if is_second or question is None else script.place_of(question))
        if fault and (is_second or question is None):
            await self.turns.wait_to_fail(context.agent, id)
            raise ToolError(fault)
        return None if question is None else script.preview(question)

    async def run_tool(self, context: ToolContext) -> str:
        """What a tool gave back. Raises ``ToolError`` with the text of an error result."""
        running = self.running[context.call_id] = Running(context)
        result = self._script.result(context.call_id)
        try:
            self.begins(running)
            await self._ask(context, result)
            if result is None or self._is_over:
                await self._until_cut(context.agent, context.call_id)
            await self._cued(running.cue)
        finally:
            del self.running[context.call_id]
        assert result is not None
        if result.is_error:
            raise ToolError(result.text)
        return result.text

    async def _ask(self, context: ToolContext, result: ToolResult | None) -> None:
        """Ask what the tool asked while it ran."""
        try:
            for question in self._script.questions(context.call_id):
                await self.turns.wait(context.agent, context.call_id, self._script.place_of(question))
                if question.kind == "approval":
                    await context.asking.approve(self._script.preview(question))
                else:
                    await _choose(context, question)
        except trio.Cancelled:
            if result is None or self._is_over:
                await self.turns.wait(context.agent, context.call_id)
                raise
            # It was cancelled, and had a result of its own all the same.


async def _choose(context: ToolContext, question: records.Question) -> None:
    with suppress(ToolError):  # what the tool made of that is in its result
        await context.asking.choose(question.text, question.options)


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
