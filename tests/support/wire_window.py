"""The strict double as a service with a small window that counts tokens in its own way, and a tool that fills it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from double import Say, Status, Step, calls, text

from chain.tools.tool import ToolContext, tool

from .small_window import ASKS, SUMMARY, Summary
from .wire_bench import FINAL

WINDOW = 20_000

_SUMMARIES: dict[Summary, Step] = {
    "good": text(SUMMARY),
    "empty": Say(()),
    "refused": text("No.", stop_reason="refusal"),
    "longer": text("long " * 20_000),
    "cut": text(SUMMARY[:20], stop_reason="max_tokens"),
    "with calls": calls(("read", {"length": 30_000}), say=SUMMARY),
    "calls alone": calls(("read", {"length": 30_000})),
    "fails": Status(400, message="No summary today."),
    "slow": replace(text(SUMMARY, text_chunk=4), delay_between=0.5),
}


@tool(read_only=True)
async def read(ctx: ToolContext, length: int) -> str:
    """Read this many characters."""
    return f"{ctx.call_id} ".ljust(length, "x")


@dataclass
class WireWindow:
    """A script that plays the steps, then final answers, and refuses requests that do not fit the window.

    ``counts`` is the number of tokens that are counted for one token of our estimate, which has 3.5 characters.
    """

    steps: list[Step]
    says: list[Summary]
    counts: float
    refused: list[str] = field(default_factory=list)
    """The digests of the conversations that were too long."""
    summaries: int = 0

    def __call__(self, body: Mapping[str, Any]) -> Step:
        read = {key: body.get(key) for key in ("system", "tools", "messages")}
        tokens = math.ceil(len(json.dumps(read, ensure_ascii=False)) / 3.5 * self.counts)
        if tokens > WINDOW:
            plain = json.dumps(body["messages"]).replace('"cache_control": {"type": "ephemeral"}', "")
            self.refused.append(hashlib.sha256(plain.encode()).hexdigest())
            return Status(400, message=f"prompt is too long: {tokens} tokens > {WINDOW} maximum")
        if ASKS in json.dumps(body["messages"][-1]):
            self.summaries += 1
            step = _SUMMARIES[self.says.pop(0) if self.says else "good"]
        else:
            step = self.steps.pop(0) if self.steps else FINAL
        if not isinstance(step, Say):
            return step
        usage = {"input_tokens": tokens, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
        return replace(step, usage=usage)
