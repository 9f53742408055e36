"""Stand-ins for models and tools in a replay: each gives what is on record, in the order of the record.

What was cut waits until it is cut again. All others wait for their turns, which the player gives when nothing else goes
on; one with nothing left before it on record does not wait.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, replace
from functools import partial, wraps
from typing import Any, Protocol

import trio

from chain.agent.spec import AgentSpec, Ask
from chain.agent.tree import AgentNode, AgentTree
from chain.errors import ModelError, ParameterRefused, ToolError
from chain.journal import records
from chain.journal.journal import Journal
from chain.messages import Message, Thinking
from chain.model import Delta, Model, Reply, Request, Window
from chain.replay.script import SOME_TEXT, Script
from chain.replay.tape import Tape
from chain.retries import Retries
from chain.text.wording import MAIN
from chain.tools.calling import Rules
from chain.tools.tool import FunctionTool, Preview, Tool, ToolContext, ToolOutput, delegates, may_run_beside_others


class Named(Protocol):
    """The definition of a model."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...


class Actors:
    """All stand-ins of a replay. ``tree`` and ``journal`` are those of its chain, once that is open."""

    tree: AgentTree
    journal: Journal
    path: str | None = None
    """There is no trace."""

    def __init__(self, script: Script) -> None:
        self.tape = Tape(script)
        self.running: dict[str, ToolContext] = {}
        """The contexts of the calls whose tools have a stand-in that runs, by their ids."""
        self.waits: dict[trio.Event, int] = {}
        """Who waits, and for the turn of which entry."""
        self._scopes: set[trio.CancelScope] = set()
        self.before_asking: Callable[[], None] = lambda: None
        """Called before a tool asks once more."""
        self.script = script
        self.read = script.attachments
        self._had_servers = any(isinstance(entry.record, records.ServerTools) for entry in script.entries)
        self._tools: dict[int, Tool] = {}

    # ------------------------------------------------------------------------------------------------- for the wiring

    def traced(self, agent: str, model: Model) -> Ask:
        """Answers the requests of an agent from the record."""
        return partial(self._reply, agent)

    def window(self, agent: str, model: Model) -> Window | None:
        """The window of an agent's model, as far as it was known then."""
        return self.tape.window(agent)

    def open_model(self, definition: Named) -> Model:
        """The stand-in for the model of a definition; no key is needed for it."""
        return RecordedModel(definition.name)

    def tools(self, tools: Iterable[Tool], real: Sequence[Tool]) -> tuple[Tool, ...]:
        """The stand-ins for these tools; those that are ``real`` are run, each call in its turn."""
        return tuple(self._tool(tool, is_real=any(tool is each for each in real)) for tool in tools)

    def unhurried(self, spec: AgentSpec) -> AgentSpec:
        """The spec with ``patient`` retries."""
        return replace(spec, limits=replace(spec.limits, retries=patient(spec.limits.retries)))

    def _tool(self, tool: Tool, *, is_real: bool) -> Tool:
        # A tool may be named twice, and is then one.
        if id(tool) not in self._tools:
            if not may_run_beside_others(tool):
                self.tape.alone.add(tool.name)
            if is_real and isinstance(tool, FunctionTool):
                self._tools[id(tool)] = self._in_turn(tool)
            else:
                self._tools[id(tool)] = RecordedTool(tool, self)
        return self._tools[id(tool)]

    def rules(self, rules: Rules) -> Rules:
        """The rules of tools without a time limit; the results on record are not shortened once more."""
        whole = frozenset(tool.name for tool in self._tools.values() if isinstance(tool, RecordedTool))
        return replace(rules, timeout_s=math.inf, whole=whole)

    def _in_turn(self, tool: FunctionTool) -> FunctionTool:
        """A tool that is really run, when it is the turn of the first thing that it did."""

        @wraps(tool.function)
        async def run(context: ToolContext, **input: Any) -> str:  # noqa: ANN401
            call = self.script.tool_calls[context.call_id]
            with self._kept(call.result is not None and not delegates(tool)):
                await self.turn(call.did_first)
                return await tool.function(context, **input)

        return replace(tool, function=run)

    async def instructions(self, latest: records.InstructionsRead) -> records.InstructionsRead:
        """The project's instructions as they were: what is on record here, if it was another text than the latest."""
        recorded = self.tape.next_of(MAIN)
        return recorded if isinstance(recorded, records.InstructionsRead) else latest

    async def server_tools(self, latest: records.ServerTools) -> records.ServerTools:
        """The tools of servers as they were; no server is started. It takes as long as it did to wait for them."""
        if latest.tools or self._had_servers:
            head = self.tape.head(MAIN)
            await self.turn(None if math.isinf(head) else int(head))
        recorded = self.tape.next_of(MAIN)
        return recorded if isinstance(recorded, records.ServerTools) else latest

    # ------------------------------------------------------------------------------------------------ for the player

    def node(self, agent: str) -> AgentNode | None:
        """An agent that is at work."""
        return next((node for node in self.tree.main.all() if node.name == agent), None)

    def leave(self) -> None:
        """End the replay: shield nobody from cancellation any more, and compare nothing."""
        self.tape.is_off = True
        if self.tape.synced is not None:
            self.tape.synced.set()
        for scope in self._scopes:
            scope.shield = False

    # --------------------------------------------------------------------------------------------------- for the actors

    @contextmanager
    def _kept(self, is_sure: bool) -> Iterator[None]:
        """Shield from cancellation what ``is_sure`` to have completed on record, until the replay ends."""
        with trio.CancelScope(shield=is_sure and not self.tape.is_off) as scope:
            self._scopes.add(scope)
            try:
                yield
            finally:
                self._scopes.remove(scope)

    async def turn(self, at: int | None, *, is_sure: bool = False) -> None:
        """Wait for the turn of an entry, for ever without one; ``is_sure`` as in ``_kept``."""
        if at is None or self.tape.is_off:
            await trio.sleep_forever()
        elif self.tape.first < at:
            turn = trio.Event()
            self.waits[turn] = at
            try:
                with self._kept(is_sure):
                    await turn.wait()
            finally:
                del self.waits[turn]

    async def _reply(self, agent: str, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        """What was replied to the request that the agent has just sent. Raises the ``ModelError`` on record."""
        sent = self.tape.sent.get(agent)
        if sent is None or self.tape.is_over:
            await trio.sleep_forever()  # whatever this is, it is not on record
        assert sent is not None
        call = self.script.call(sent)
        is_sure = call.end is not None
        try:
            if call.shown and call.silent_until is not None:
                await self.turn(call.silent_until + 1, is_sure=is_sure)
        finally:  # also if it is cut just then
            if call.shown:
                on_delta(Delta("text", call.shown))
        await self.turn(call.end, is_sure=is_sure)
        assert call.ended is not None
        return _ended(call.ended, call.message)


def _ended(ended: records.RequestEnded, message: Message | None) -> Reply:
    """The reply of a call. Raises ``ModelError`` for one that failed."""
    if ended.stop_reason is not None and message is None:
        message = Message("assistant", (Thinking(SOME_TEXT),))  # it said nothing, so it was not appended
    if ended.stop_reason is None or message is None:
        asks_again, pause = ended.retryable, ended.retry_after
        error = ModelError(ended.error, retryable=asks_again, retry_after=pause, cause=ended.cause)
        if ended.parameters:
            error = ParameterRefused(ended.error, ended.parameters)
        error.refused = ended.refused
        error.usage = astuple(ended.usage)
        raise error
    return Reply(message, ended.stop_reason, ended.usage, frozenset(ended.cut_calls), ended.asked_tokens)


def patient(retries: Retries) -> Retries:
    """The retries without a time limit: whether time was left for another attempt is on record."""
    return replace(retries, retry_s=math.inf)


class RecordedModel:
    """A model of which there is only the name: ``Actors.traced`` answers what an agent asks."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        """Nobody asks it."""
        raise NotImplementedError

    async def prepare(self) -> None:
        """There is nothing to prepare."""

    async def aclose(self) -> None:
        """There is nothing to give up."""


class RecordedTool:
    """A tool that is described as today's, and whose calls give the results on record."""

    timeout_s = math.inf  # if it was too slow, that is its result

    def __init__(self, tool: Tool, actors: Actors) -> None:
        self.name = tool.name
        self.description = tool.description
        self.read_only = tool.read_only
        self.needs_approval = tool.needs_approval
        self.check = tool.check
        self._tool = tool
        self._actors = actors
        self._shown: set[str] = set()

    @property
    def input_schema(self) -> Mapping[str, Any]:
        """The JSON schema of the input."""
        return self._tool.input_schema

    async def preview(self, context: ToolContext, input: Mapping[str, Any]) -> Preview | None:
        """What was shown of a call before it was allowed. Raises ``ToolError`` with the reason why it never started."""
        script, id = self._actors.script, context.call_id
        call = script.tool_calls[id]
        if call.approval is not None and id not in self._shown:
            self._shown.add(id)
            await self._actors.turn(call.approval, is_sure=True)
            return script.preview(call.approval)
        if call.fault:
            raise ToolError(call.fault)
        # One that never began was looked at until something kept it from beginning.
        has_begun = call.started is not None
        await self._actors.turn(call.started if has_begun else call.answered, is_sure=has_begun)
        return None if call.approval is None else script.preview(call.approval)

    async def run(self, context: ToolContext, input: Mapping[str, Any]) -> ToolOutput:
        """What a call gave back. Raises ``ToolError`` with the text of an error result."""
        actors, id = self._actors, context.call_id
        call = actors.script.tool_calls[id]
        result = call.result
        actors.running[id] = context
        try:
            await self._ask(context, call.questions, is_kept=result is not None)
            await actors.turn(None if result is None else call.finished, is_sure=True)
        finally:
            del actors.running[id]
        assert result is not None
        if result.is_error:
            raise ToolError(result.text)
        return ToolOutput(result.text, result.images)

    async def _ask(self, context: ToolContext, questions: Iterable[int], *, is_kept: bool) -> None:
        actors = self._actors
        for n in questions:
            asked = actors.script.asked[n]
            try:
                await actors.turn(n, is_sure=is_kept)
                actors.before_asking()
                if asked.kind == "approval":
                    await context.asking.approve(actors.script.preview(n))
                else:
                    with suppress(ToolError):  # what the tool made of that is in its result
                        await context.asking.choose(asked.text, asked.options)
            except trio.Cancelled:
                if not is_kept or actors.tape.is_off:
                    raise
                return  # it was cancelled, and had a result all the same
