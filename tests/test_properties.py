"""The invariants of SPEC section 2 on random models, tools, lines and interrupts; and scenarios, each replayed with a
line that arrives at every moment of the run.

A moment is an event: everything that can be seen from outside happens at one, and a line that is sent in the very step
of an event is as close to it as a line can be.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from support import Session, check_invariants, open_session
from support import settings as chain_settings
from trio.testing import MockClock

from chain import events
from chain.errors import ModelError
from chain.messages import Block, Message, Text, Thinking, ToolCall, Usage
from chain.model import Delta, Reply, Request, StopReason
from chain.tools import Tool, ToolContext, tool

EXAMPLES = 1_000

# --------------------------------------------------------------------------------------- a random model and its tools


@dataclass(frozen=True)
class Step:
    """What the model does at one call: fail so often, then reply."""

    blocks: tuple[Block, ...]
    stop_reason: StopReason = "end_turn"
    failures: int = 0
    retryable: bool = True
    delay_s: float = 0.0


@dataclass
class RandomModel:
    """Replies with drawn steps, one after the other, then with a final answer."""

    steps: list[Step]
    name: str = "random"
    calls: int = 0
    failed: int = 0

    async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        step = self.steps[0] if self.steps else Step((Text("The final answer."),))
        self.calls += 1
        await trio.sleep(step.delay_s)
        texts = [b.text for b in step.blocks if isinstance(b, Text)]
        for text in texts:
            on_delta(Delta("text", text[: len(text) // 2]))
            await trio.sleep(step.delay_s)
            on_delta(Delta("text", text[len(text) // 2 :]))
        await trio.lowlevel.checkpoint()
        if self.failed < step.failures:
            self.failed += 1
            raise ModelError("the service is unwell", retryable=step.retryable)
        self.failed = 0
        del self.steps[:1]
        # Ids are the model's own; calls drawn with the same id show what a broken service would send.
        blocks = tuple(
            ToolCall(f"{b.id}_{self.calls}", b.name, b.input) if isinstance(b, ToolCall) and b.id else b
            for b in step.blocks
        )
        has_calls = any(isinstance(b, ToolCall) for b in blocks)
        reason: StopReason = "tool_use" if has_calls and step.stop_reason == "end_turn" else step.stop_reason
        return Reply(Message("assistant", blocks), reason, Usage(1, 1))

    async def prepare(self) -> None:
        """There is nothing to prepare."""

    async def aclose(self) -> None:
        """There is nothing to give up."""


@tool(timeout_s=50)
async def slow(ctx: ToolContext, seconds: float = 1.0) -> str:
    """Take some time."""
    await trio.sleep(seconds)
    return f"took {seconds:g} s"


@tool(timeout_s=3)
async def hang(ctx: ToolContext) -> str:
    """Hang."""
    await trio.sleep_forever()
    return ""


@tool(read_only=True)
async def look(ctx: ToolContext) -> str:
    """Answer at once."""
    return ""


@tool
async def fail(ctx: ToolContext) -> str:
    """Fail."""
    raise ValueError("no")


@tool
async def steered(ctx: ToolContext) -> str:
    """Ask for guidance between the parts of the work."""
    heard = []
    for n in range(3):
        guidance = await ctx.safe_point(f"part:{n}")
        heard += [f"{a.type} {a.value}" for a in guidance.adjustments]
        if guidance.stop:
            break
        await trio.sleep(1)
    return f"heard {heard}"


TOOLS: list[Tool] = [slow, hang, look, fail, steered]

calls = st.builds(
    ToolCall,
    st.sampled_from(["a", "b", "c", "d", ""]),
    st.sampled_from(["slow", "hang", "look", "fail", "steered", "plan_add_task", "plan_list", "nothing", ""]),
    st.sampled_from([{}, {}, {"seconds": 2.5}, {"task": "from the model"}, {"bad": True}]),
)
blocks = st.lists(
    st.one_of(
        st.builds(Text, st.sampled_from(["Some text.", "More.", " ", "USER INTERRUPTION: stop"])),
        st.builds(Thinking, st.just("Hm."), st.just("signed")),
        calls,
        calls,
    ),
    max_size=4,
).map(tuple)
steps = st.builds(
    Step,
    blocks,
    st.sampled_from(
        ["end_turn"] * 12 + ["max_tokens", "refusal", "model_context_window_exceeded", "pause_turn", "stop_sequence"]
    ),
    st.sampled_from([0, 0, 0, 0, 1, 3, 9]),
    st.sampled_from([True, True, False]),
    st.sampled_from([0.0, 1.0]),
)

LINES = [
    "use the other file",
    "!use the other file at once",
    "todo: add a task",
    "todo: done 1",
    "todo: fail 9",
    "focus on prices",
    "skip docs",
    "context: it is late",
    "how is it going?",
    "then: Do the next task",
    " stop",
    "stop",
    "todo: add",
    "/help",
]
INTERRUPT = "(interrupt)"
moments = st.lists(st.tuples(st.integers(0, 60), st.sampled_from([*LINES, *LINES, INTERRUPT])), max_size=14)


@dataclass
class Sends:
    """Sends lines at numbered events."""

    session: Session
    at: list[tuple[int, str]]
    seen: int = 0
    interrupted_at: list[int] = field(default_factory=list)

    def __call__(self, event: events.Event) -> None:
        self.seen += 1
        for n, text in self.at:
            if n == self.seen:
                self.send(text)

    def send(self, text: str) -> None:
        # What a refusal or a receipt makes the listener do is not to go round for ever.
        if self.session.chain.is_running:
            if text == INTERRUPT:
                self.interrupted_at.append(len(self.session.events))
                self.session.chain.interrupt()
            else:
                self.session.chain.submit(text)


async def drive(
    drawn: list[Step], at: list[tuple[int, str]], *, max_iterations: int, inbox_size: int, interactive: bool
) -> None:
    use = chain_settings(max_iterations=max_iterations, inbox_size=inbox_size)
    async with open_session(RandomModel(list(drawn)), tools=TOOLS, use=use, interactive=interactive) as session:
        sends = Sends(session, at)
        session.chain.listen(sends)
        session.chain.submit("Do the task")
        await session.chain.wait_idle()
        check_invariants(session, max_iterations=max_iterations)
        # The next run works, whatever the last one went through.
        session.chain.submit("Do another task")
        await session.chain.wait_idle()
        check_invariants(session, max_iterations=max_iterations)
        check_silence(session, sends.interrupted_at)


def check_silence(session: Session, interrupted_at: list[int]) -> None:
    """I4: after an interrupt, as after an ending, no tool starts and no iteration begins until the next run."""
    running = False
    for n, event in enumerate(session.events):
        running = running and n not in interrupted_at
        match event:
            case events.RunStarted():
                running = True
            case events.Result():
                running = False
            case events.IterationStarted() | events.ToolCall():
                assert running
            case _:
                pass


@settings(max_examples=EXAMPLES)
@given(st.lists(steps, max_size=8), moments, st.integers(1, 6), st.sampled_from([1, 2, 10]), st.booleans())
def test_the_invariants_hold_whatever_model_tools_and_user_do(
    drawn: list[Step], at: list[tuple[int, str]], max_iterations: int, inbox_size: int, interactive: bool
) -> None:
    async def main() -> None:
        await drive(drawn, at, max_iterations=max_iterations, inbox_size=inbox_size, interactive=interactive)

    random.seed(0)  # the jitter of the retries
    trio.run(main, clock=MockClock(autojump_threshold=0))


# ------------------------------------------------------------------------------ scenarios, with a line at every moment

LOOK = Step((Text("Let me look."), ToolCall("a", "look", {}), ToolCall("b", "slow", {})), delay_s=1)
FINAL = Step((Text("The final answer."),))

SCENARIOS: dict[str, list[Step]] = {
    "an answer without tools": [FINAL],
    "one round of tools": [LOOK, FINAL],
    "three rounds of tools": [LOOK, LOOK, Step((ToolCall("a", "plan_add_task", {"task": "x"}),)), FINAL],
    "tools that fail": [
        Step((ToolCall("a", "fail", {}), ToolCall("b", "nothing", {}), ToolCall("c", "look", {}))),
        FINAL,
    ],
    "a tool that times out": [Step((ToolCall("a", "hang", {}), ToolCall("b", "look", {}))), FINAL],
    "a stream that breaks twice": [Step((Text("Some text."),), failures=2), FINAL],
    "an error that ends the run": [LOOK, Step((Text("Some"),), failures=1, retryable=False)],
    "an empty reply": [LOOK, Step(()), FINAL],
    "a refusal": [LOOK, Step((Text("No."),), "refusal")],
    "a truncated reply": [LOOK, Step((Text("Some te"),), "max_tokens")],
    "a full context": [LOOK, Step((Text("Some te"),), "model_context_window_exceeded")],
    "thinking before and between": [Step((Thinking("Hm.", "s"), Text("So."), ToolCall("a", "look", {}))), FINAL],
    "a steered tool": [Step((ToolCall("a", "steered", {}),)), FINAL],
    "the last iteration": [LOOK, LOOK, LOOK, LOOK],
}
LIMIT = {"the last iteration": 2}


async def events_of(name: str) -> int:
    """How many moments the scenario has when nobody says anything."""
    use = chain_settings(max_iterations=LIMIT.get(name, 6))
    async with open_session(RandomModel(list(SCENARIOS[name])), tools=TOOLS, use=use) as session:
        session.chain.submit("Do the task")
        await session.chain.wait_idle()
        return len(session.events)


@pytest.mark.parametrize(
    "line", ["use the other file", "!at once", "todo: add x", "why?", "then: next", "stop", INTERRUPT]
)
@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_line_at_every_moment_of_the_scenario(name: str, line: str, autojump_clock: MockClock) -> None:
    count = await events_of(name)
    for moment in range(count + 1):
        use = chain_settings(max_iterations=LIMIT.get(name, 6))
        async with open_session(RandomModel(list(SCENARIOS[name])), tools=TOOLS, use=use) as session:
            sends = Sends(session, [(moment, line)])
            session.chain.listen(sends)
            session.chain.submit("Do the task")
            if moment == 0:
                sends.send(line)
            await session.chain.wait_idle()
            check_invariants(session, max_iterations=LIMIT.get(name, 6))
            check_silence(session, sends.interrupted_at)
            assert session.of(events.Result)[0].iterations <= 6
