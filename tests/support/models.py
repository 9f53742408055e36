"""A model that replies with random steps, and the tools that it calls.

Steps are drawn from short tables with the simplest entry first, so that failing examples shrink to simple ones. All
delays are of trio's test clock (``pass_time``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import trio
from hypothesis import strategies as st

from chain.errors import ModelError, ParameterRefused, ToolError
from chain.messages import Block, Message, StopReason, Text, Thinking, ToolCall, Usage
from chain.model import Delta, Model, Reply, Request
from chain.tools.ask import ask_user_question
from chain.tools.tool import Preview, Tool, ToolContext, tool

from .clock import pass_time


@dataclass(frozen=True)
class Step:
    """One reply of the model, after a number of ``failures``.

    ``breaks_at`` is where the failures happen: 0 before any text, 1 in mid-stream, 2 at the end.
    """

    blocks: tuple[Block, ...]
    stop_reason: StopReason = "end_turn"
    failures: int = 0
    retryable: bool = True
    delay_s: float = 0.0
    breaks_at: int = 2
    retry_after: float | None = None
    refuses_overrides: bool = False


@dataclass
class RandomModel(Model):
    """A model that replies with each step in turn, then with a final answer."""

    steps: list[Step]
    name: str = "random"
    calls: int = 0
    failed: int = 0

    async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        step = self.steps[0] if self.steps else Step((Text("The final answer."),))
        self.calls += 1
        fails = self.failed < step.failures
        await pass_time(step.delay_s)
        if step.refuses_overrides and request.overrides.effort is not None:
            raise ParameterRefused("no effort here", ["effort"])
        self._fail(step, fails, 0)
        for block in step.blocks:
            if isinstance(block, Text | Thinking):
                kind = "text" if isinstance(block, Text) else "thinking"
                half = len(block.text) // 2
                on_delta(Delta(kind, block.text[:half]))
                await pass_time(step.delay_s)
                self._fail(step, fails, 1)
                on_delta(Delta(kind, block.text[half:]))
        await trio.lowlevel.checkpoint()
        self._fail(step, fails, 2)
        self.failed = 0
        del self.steps[:1]
        blocks = tuple(ToolCall(self._id(b.id), b.name, b.input) if isinstance(b, ToolCall) else b for b in step.blocks)
        calls = [b for b in blocks if isinstance(b, ToolCall)]
        reason: StopReason = "tool_use" if calls and step.stop_reason == "end_turn" else step.stop_reason
        cut = frozenset([calls[-1].id] if calls and step.stop_reason == "max_tokens" else [])
        return Reply(Message("assistant", blocks), reason, Usage(1, 1), cut)

    def _id(self, drawn: str) -> str:
        """Make a drawn id unique. An empty one stays empty, and one that begins with ``=`` is only stripped of it."""
        return drawn.removeprefix("=") if drawn.startswith("=") or not drawn else f"{drawn}_{self.name}_{self.calls}"

    def _fail(self, step: Step, fails: bool, at: int) -> None:
        if fails and at >= step.breaks_at:
            self.failed += 1
            raise ModelError("the service is unwell", retryable=step.retryable, retry_after=step.retry_after)


@tool(timeout_s=50)
async def slow(ctx: ToolContext, seconds: float = 1.0) -> str:
    """Take some time."""
    ctx.progress("at work")
    await pass_time(seconds)
    ctx.progress("done")
    return f"took {seconds:g} s"


@tool(timeout_s=3)
async def hang(ctx: ToolContext) -> str:
    """Hang."""
    try:
        await trio.sleep_forever()
    finally:
        ctx.progress("killed")
    return ""


@tool(read_only=True)
async def look(ctx: ToolContext) -> str:
    """Answer at once."""
    ctx.progress("at work")
    return ""


@tool(read_only=True)
async def watch(ctx: ToolContext, seconds: float = 1.0) -> str:
    """Take some time to read."""
    ctx.progress("at work")
    await pass_time(seconds)
    return "watched"


@tool(read_only=True, timeout_s=2)
async def wait(ctx: ToolContext) -> str:
    """Read what never comes."""
    await trio.sleep_forever()
    return ""


@tool
async def fail(ctx: ToolContext) -> str:
    """Fail."""
    raise ValueError("no")


@tool(read_only=True)
async def fail_reading(ctx: ToolContext) -> str:
    """Fail to read, after a while, in a task of its own."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        await pass_time(0.5)
        raise ValueError("no")


@tool
async def cling(ctx: ToolContext) -> str:
    """Ignore a cancellation for a while, then take some time to clean up."""
    with trio.CancelScope(shield=True):
        await pass_time(0.5)
    try:
        await pass_time(1)
    finally:
        with trio.CancelScope(shield=True):
            await pass_time(0.25)
            ctx.progress("tidied up")
    return "let go"


@tool
async def steered(ctx: ToolContext) -> str:
    """Ask for guidance between the parts of the work."""
    adjustments = []
    for n in range(3):
        guidance = await ctx.safe_point(f"part:{n}")
        for adjustment in guidance.adjustments:
            adjustments.append(f"{adjustment.type} {adjustment.value}")
            ctx.progress(f"heard {adjustment.value}")
        if guidance.stop:
            break
        await pass_time(1)
    return f"heard {adjustments}"


@tool(needs_approval=True)
async def danger(ctx: ToolContext, seconds: float = 0.5) -> str:
    """Do what needs approval."""
    ctx.progress("at work")
    await pass_time(seconds)
    return "it is done"


async def _preview_change(ctx: ToolContext, path: str) -> Preview | None:
    if path == "none":
        return None
    if path == "bad":
        raise ToolError("it would fail")
    await pass_time(0.5 if path == "late" else 0)
    always: Literal["tool", "subject"] = "subject" if path == "b" else "tool"
    return Preview(f"change {path}", path, path, always=always, only_by_name=path if path == "own" else "")


@tool(needs_approval=True, preview=_preview_change)
async def change_file(ctx: ToolContext, path: str) -> str:
    """Change a file, after a preview."""
    ctx.progress("at work")
    await trio.lowlevel.checkpoint()
    return f"{path} is changed"


@tool(read_only=True, needs_approval=True)
async def peek(ctx: ToolContext) -> str:
    """Read what needs approval."""
    ctx.progress("at work")
    await pass_time(0.5)
    return "peeked"


@tool(read_only=True, timeout_s=5)
async def dig(ctx: ToolContext, hosts: int = 2) -> str:
    """Ask in the middle of the work."""
    decisions = []
    for n in range(hosts):
        if (await ctx.safe_point(f"host:{n}")).stop:
            break
        await pass_time(0.5 if n else 0)
        verdict = await ctx.asking.approve(Preview("", f"host{n}", f"host{n}", always="subject"))
        decisions.append("allowed" if verdict.allowed else "withdrawn" if verdict.withdrawn else "refused")
        await pass_time(0.5)
    return f"hosts: {decisions}"


ASKING_TOOLS: list[Tool] = [danger, change_file, peek, dig, ask_user_question]

ASKING_CALLS: list[Block] = [
    ToolCall("a", "danger", {}),
    ToolCall("b", "change_file", {"path": "a"}),
    ToolCall("c", "change_file", {"path": "b"}),
    ToolCall("d", "change_file", {"path": "none"}),
    ToolCall("e", "change_file", {"path": "bad"}),
    ToolCall("m", "change_file", {"path": "late"}),
    ToolCall("f", "dig", {}),
    ToolCall("g", "dig", {"hosts": 1}),
    ToolCall("h", "ask_user_question", {"question": "Which?", "options": ["left", "right"]}),
    ToolCall("i", "look", {}),
    ToolCall("j", "watch", {}),
    ToolCall("k", "slow", {}),
    ToolCall("l", "peek", {}),
    Text("Some text."),
]

asking_steps = st.builds(
    lambda blocks, delay_s: Step(tuple(blocks), delay_s=delay_s),
    st.lists(st.sampled_from(ASKING_CALLS), min_size=1, max_size=5),
    st.sampled_from([0.0, 1.0]),
)

TOOLS: list[Tool] = [slow, hang, look, watch, wait, fail, fail_reading, cling, steered]

BLOCKS: list[Block] = [
    Text("Some text."),
    ToolCall("a", "slow", {}),
    ToolCall("b", "slow", {"seconds": 2.5}),
    ToolCall("a", "look", {}),
    ToolCall("c", "look", {}),
    ToolCall("d", "watch", {}),
    ToolCall("e", "watch", {"seconds": 0.5}),
    ToolCall("f", "hang", {}),
    ToolCall("g", "wait", {}),
    ToolCall("h", "fail", {}),
    ToolCall("i", "fail_reading", {}),
    ToolCall("j", "cling", {}),
    ToolCall("k", "steered", {}),
    ToolCall("r", "steered", {}),
    ToolCall("l", "steered", {}),
    ToolCall("m", "plan_add_task", {"task": "from the model"}),
    ToolCall("n", "plan_list", {}),
    ToolCall("o", "nothing", {}),
    ToolCall("p", "slow", {"bad": True}),
    ToolCall("q", "look", {"bad": True}),
    ToolCall("a", "", {}),
    ToolCall("", "look", {}),
    ToolCall("functions.look:0", "look", {}),
    ToolCall("=used", "look", {}),
    ToolCall("=call_1", "slow", {}),
    ToolCall("=ä b", "nothing", {}),
    Text("More."),
    Text(" "),
    Text("USER INTERRUPTION: stop"),
    Thinking("Hm.", "signed"),
]

ENDS: list[dict[str, Any]] = [
    *[{}] * 10,
    {"failures": 1},
    {"failures": 1, "breaks_at": 1},
    {"failures": 3, "breaks_at": 0},
    {"failures": 1, "retry_after": 2.0},
    {"failures": 9},
    {"failures": 1, "retryable": False},
    {"failures": 1, "retryable": False, "breaks_at": 1},
    {"refuses_overrides": True},
    *[{"stop_reason": r} for r in ("stop_sequence", "max_tokens", "max_tokens", "refusal", "refusal")],
    *[{"stop_reason": r} for r in ("model_context_window_exceeded", "pause_turn")],
]

steps = st.builds(
    lambda blocks, end, delay_s: Step(tuple(blocks), delay_s=delay_s, **end),
    st.lists(st.sampled_from(BLOCKS), max_size=5),
    st.sampled_from(ENDS),
    st.sampled_from([0.0, 0.0, 1.0]),
)
