"""Trees of agents for tests: a model that does what its task says, and a tool that waits until a test releases it.

A task is a list of steps and an answer, as JSON. A step is a list of calls, and a call is a tool's name and input. The
task of an agent contains the tasks of its children, so a test describes a whole tree in one expression.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import trio
from trio.testing import wait_all_tasks_blocked

from chain import events
from chain.config.load import Settings
from chain.messages import Block, Message, StopReason, Text, ToolCall, Usage
from chain.model import Delta, Model, Reply, Request
from chain.tools.tool import Tool, ToolContext, tool

from .checks import check_full_disk, check_invariants, check_no_late_starts
from .disks import FullDisk, MemoryFile
from .sessions import Session, make_settings, open_session

Call = list[Any]


def task_of(*steps: list[Call], answer: str = "The answer.", **ends: StopReason) -> str:
    """Return a task with these steps and this answer. ``ends`` may have the ``stop_reason`` of the answer."""
    return json.dumps({"steps": steps, "answer": answer, **ends})


def start(kind: str, *steps: list[Call], answer: str = "The answer.", **ends: StopReason) -> Call:
    """Return a call that starts an agent with a task."""
    return [kind, {"task": task_of(*steps, answer=answer, **ends)}]


def ask(agent: str, *steps: list[Call], answer: str = "The answer.", **ends: StopReason) -> Call:
    """Return a call that asks a finished agent again."""
    return ["agent_ask", {"agent": agent, "question": task_of(*steps, answer=answer, **ends)}]


WAIT: Call = ["wait", {}]


@tool(kind="delegate")
async def delegate_twice(ctx: ToolContext, task: str) -> str:
    """Start two agents with the same task."""
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(ctx.delegating.start, "agent", task, ctx.call_id)
    return "done twice"


@dataclass
class ObedientModel(Model):
    """A model that does the steps of the latest task, then answers. ``on_reply`` is awaited before each reply."""

    name: str = "obedient"
    calls: int = 0
    usage: Usage = field(default_factory=lambda: Usage(10, 1))
    on_reply: Callable[[Request], Any] | None = None

    async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        if self.on_reply is not None:
            await self.on_reply(request)
        await trio.lowlevel.checkpoint()
        task, done = progress(request)
        steps = task["steps"]
        if done >= len(steps):
            on_delta(Delta("text", task["answer"]))
            return Reply(Message("assistant", (Text(task["answer"]),)), task.get("stop_reason", "end_turn"), self.usage)
        blocks: list[Block] = [Text(f"Step {done + 1}.")]
        on_delta(Delta("text", f"Step {done + 1}."))
        for name, input in steps[done]:
            self.calls += 1
            blocks.append(ToolCall(f"call_{self.calls}", name, input))
        return Reply(Message("assistant", tuple(blocks)), "tool_use", self.usage)


def progress(request: Request) -> tuple[dict[str, Any], int]:
    """Return the latest task of a conversation, and the number of steps whose calls were made."""
    done = 0
    for message in reversed(request.messages):
        if message.role == "assistant":
            done += bool(message.calls)
        elif message.text.startswith('{"steps"'):
            task: dict[str, Any] = json.loads(message.text)
            return task, done
    return {"steps": [], "answer": "Done."}, 0


@dataclass
class Waiters:
    """A tool ``wait`` that waits until its agent is released."""

    started: dict[str, trio.Event] = field(default_factory=lambda: defaultdict(trio.Event))
    open: dict[str, trio.Event] = field(default_factory=lambda: defaultdict(trio.Event))
    adjustments: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    @property
    def tool(self) -> Tool:
        @tool(read_only=True, timeout_s=1_000)
        async def wait(ctx: ToolContext) -> str:
            """Wait for the test."""
            self.started[ctx.agent].set()
            await self.open[ctx.agent].wait()
            self.adjustments[ctx.agent] += [a.value for a in (await ctx.safe_point("here")).adjustments]
            return f"{ctx.agent} waited"

        return wait

    def release(self, *agents: str) -> None:
        for agent in agents:
            self.open[agent].set()


@dataclass
class AgentSession:
    """A session with a tree of agents, and the tool ``wait`` at which they wait."""

    session: Session
    waiters: Waiters

    async def start_run(self, *steps: list[Call], answer: str = "The answer.") -> None:
        """Start a run, and wait until all agents wait."""
        assert self.session.chain.submit(task_of(*steps, answer=answer)).what == "started"
        await self.wait_blocked()

    async def wait_blocked(self) -> None:
        """Wait until all tasks are blocked."""
        await wait_all_tasks_blocked(0.001)

    def send(self, text: str, to: str = "") -> str:
        """Send a line that is queued, and return its agent."""
        answer = self.session.chain.submit(text, to=to)
        assert answer.what == "queued", answer
        self.session.addressed[answer.id] = to
        return next(a.agent for a in self.session.chain.lines.waiting if a.id == answer.id)

    async def finish_run(self) -> events.Result:
        """Release all agents, and return the result of the run."""
        self.waiters.open.default_factory = _opened
        for gate in self.waiters.open.values():
            gate.set()
        await self.session.chain.wait_idle()
        return self.session.result

    def texts(self, agent: str) -> list[str]:
        """Return the recorded texts of the user's messages to an agent."""
        rows = [r for r in self.session.records if r["type"] == "message" and r["agent"] == agent]
        messages = [r["message"] for r in rows if r["message"]["role"] == "user"]
        return [b["text"] for m in messages for b in m["content"] if b["type"] == "text"]

    def results(self, agent: str) -> list[tuple[str, bool]]:
        """Return the texts of an agent's recorded tool results, and whether each is an error."""
        rows = [r for r in self.session.records if r["type"] == "message" and r["agent"] == agent]
        blocks = [b for r in rows for b in r["message"]["content"] if b["type"] == "tool_result"]
        return [(b["content"], bool(b.get("is_error"))) for b in blocks]

    def interruptions(self, agent: str) -> list[events.UserInterruption]:
        """Return the events of an agent's delivered lines."""
        return [e for e in self.session.of(events.UserInterruption) if e.agent == agent]

    @property
    def active(self) -> list[str]:
        """The names of the agents that work, in the order of their starts."""
        return [view.name for view in self.session.chain.agents if view.state == "executing"]


def _opened() -> trio.Event:
    event = trio.Event()
    event.set()
    return event


@asynccontextmanager
async def open_agents(
    *,
    settings: Settings | None = None,
    model: ObedientModel | None = None,
    tools: Iterable[Tool] = (),
    interactive: bool = False,
    file: MemoryFile | None = None,
) -> AsyncIterator[AgentSession]:
    """Yield a session whose model does what tasks say, and check the invariants at its end."""
    waiters = Waiters()
    chosen = settings or make_settings(agents=True)
    async with open_session(
        model or ObedientModel(), tools=[waiters.tool, *tools], settings=chosen, interactive=interactive, file=file
    ) as session:
        yield AgentSession(session, waiters)
    if isinstance(session.file, FullDisk):
        check_full_disk(session)
    else:
        check_invariants(session, max_iterations=chosen.chain().max_iterations)
    check_no_late_starts(session, session.interrupted_at)
