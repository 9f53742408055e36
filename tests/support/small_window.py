"""A model with a window: it counts tokens its own way, refuses what is longer, and is asked for summaries."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

import trio

from chain.errors import ModelError
from chain.messages import Message, Text, ToolCall, Usage, assistant
from chain.model import Delta, Model, Reply, Request, Window

from .clock import pass_time

Summary: TypeAlias = Literal["good", "empty", "refused", "longer", "cut", "with calls", "calls alone", "fails", "slow"]
"""What comes of a request for a summary."""

ASKS = "The conversation is about to be shortened"
SUMMARY = "The goal is a test. Something was looked at."


class Lengths:
    """How long tools and messages are as JSON, each measured once: a request has nearly all of the one before."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[object, int]] = {}

    def of(self, parts: Sequence[Any]) -> int:
        """The characters of such dataclasses, which are kept: another one could have the place of one that is gone."""
        for part in parts:
            if id(part) not in self._known:
                self._known[id(part)] = part, len(json.dumps(asdict(part), default=str))
        return sum(self._known[id(part)][1] for part in parts)

    def tokens_of(self, request: Request, counts: float) -> int:
        """The tokens of a request by a service that counts ``counts`` times as many as is usual."""
        blocks = [block for message in request.messages for block in message.blocks]
        said = len(request.system) + self.of(request.tools) + self.of(blocks) + sum(map(len, request.tail))
        return math.ceil(said / 3.5 * counts)


@dataclass
class SmallWindow:
    """Another model, with a window of ``room`` tokens beside the system prompt and the tools.

    ``says`` are what comes of its summaries, in turn, then good ones. ``tells``: it says how long a request is that is
    too long.
    """

    inner: Model
    room: int
    counts: float = 1.0
    says: list[Summary] = field(default_factory=list)
    tells: bool = True
    knows: bool = True
    """Whether the window is told."""
    total: int = 0
    refused: list[tuple[int, ...]] = field(default_factory=list)
    """The requests that were too long, as the identities of their messages."""
    summaries: int = 0
    lengths: Lengths = field(default_factory=Lengths)

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def window(self) -> Window | None:
        return Window(self.total) if self.total and self.knows else None

    async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        asks = request.messages[-1].text.startswith(ASKS)
        tokens = self.lengths.tokens_of(request, self.counts)
        self.total = self.total or tokens + self.room
        if tokens > self.total:
            await trio.lowlevel.checkpoint()
            self.refused.append(tuple(id(message) for message in request.messages))
            asked = tokens if self.tells else 0
            return Reply(Message("assistant", ()), "model_context_window_exceeded", asked_tokens=asked)
        if asks:
            return await self._summary(tokens)
        reply = await self.inner.reply(request, on_delta)
        return Reply(reply.message, reply.stop_reason, Usage(tokens, 1), reply.cut_calls)

    async def _summary(self, tokens: int) -> Reply:
        self.summaries += 1
        await pass_time(0.5)
        usage, call = Usage(tokens, 10), ToolCall(f"s{self.summaries}", "look", {})
        match self.says.pop(0) if self.says else "good":
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
