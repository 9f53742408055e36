"""A model with a small context window: it counts tokens in its own way, and refuses longer requests."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Literal, TypeAlias

import trio

from chain.errors import ModelError
from chain.messages import Message, Text, ToolCall, Usage, assistant
from chain.model import Delta, Model, Reply, Request, Window

from .clock import pass_time

Summary: TypeAlias = Literal["good", "empty", "refused", "longer", "cut", "with calls", "calls alone", "fails", "slow"]
"""The kind of a reply to a request for a summary."""

SUMMARY_REQUEST = "The conversation is about to be shortened"
"""The start of a request for a summary."""
SUMMARY = "The goal is a test. Something was looked at."


@dataclass
class SmallWindow:
    """The model ``inner`` with a context window, which has ``room`` tokens more than the first request."""

    inner: Model
    room: int
    token_ratio: float = 1.0
    """How many tokens the model counts for each that the program estimates."""
    first_summaries: list[Summary] = field(default_factory=list)
    """The kinds of the first replies to requests for a summary. Later replies are good."""
    reports_length: bool = True
    """Whether the model reports the length of a request that is too long."""
    reports_window: bool = True
    """Whether the model reports its window."""
    total: int = 0
    """The tokens of the window; 0 before the first request."""
    refused: list[tuple[int, ...]] = field(default_factory=list)
    """The requests that were too long, as the identities of their messages."""
    summaries: int = 0
    _lengths: dict[int, tuple[object, int]] = field(default_factory=dict)
    """The lengths of tools and blocks as JSON by identity. Each has its object, so that no identity is reused."""

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def window(self) -> Window | None:
        return Window(self.total) if self.total and self.reports_window else None

    async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        tokens = self._tokens_of(request)
        self.total = self.total or tokens + self.room
        if tokens > self.total:
            await trio.lowlevel.checkpoint()
            self.refused.append(tuple(id(message) for message in request.messages))
            reported = tokens if self.reports_length else 0
            return Reply(Message("assistant", ()), "model_context_window_exceeded", asked_tokens=reported)
        if request.messages[-1].text.startswith(SUMMARY_REQUEST):
            return await self._summary(tokens)
        reply = await self.inner.reply(request, on_delta)
        return Reply(reply.message, reply.stop_reason, Usage(tokens, 1), reply.cut_calls)

    def _tokens_of(self, request: Request) -> int:
        parts = [*request.tools, *(block for message in request.messages for block in message.blocks)]
        for part in parts:
            if id(part) not in self._lengths:
                self._lengths[id(part)] = part, len(json.dumps(asdict(part), default=str))
        texts = len(request.system) + sum(map(len, request.tail))
        return math.ceil((texts + sum(self._lengths[id(part)][1] for part in parts)) / 3.5 * self.token_ratio)

    async def _summary(self, tokens: int) -> Reply:
        self.summaries += 1
        await pass_time(0.5)
        usage, call = Usage(tokens, 10), ToolCall(f"s{self.summaries}", "look", {})
        match self.first_summaries.pop(0) if self.first_summaries else "good":
            case "empty":
                return Reply(assistant([]), "end_turn", usage)
            case "refused":
                return Reply(assistant([Text("No.")]), "refusal", usage)
            case "longer":
                return Reply(assistant([Text("long " * 20_000)]), "end_turn", usage)
            case "cut":
                return Reply(assistant([Text(SUMMARY[:20])]), "max_tokens", usage)
            case "with calls":
                return Reply(assistant([Text(SUMMARY), call]), "tool_use", usage)
            case "calls alone":
                return Reply(assistant([call]), "tool_use", usage)
            case "fails":
                raise ModelError("no summary today")
            case "slow":
                await pass_time(3)
        return Reply(assistant([Text(SUMMARY)]), "end_turn", usage)

    async def prepare(self) -> None: ...

    async def aclose(self) -> None: ...
