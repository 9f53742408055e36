"""Tools that wait at named gates, models that call them, and runs that receive lines while a tool waits."""

from __future__ import annotations

from collections import defaultdict

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.tools.tool import Tool, ToolContext, tool

from .checks import check_invariants
from .sessions import Session

THREE_TOOLS = """
rules:
  - when: {step: 1}
    text: Looking.
    tools: [{name: gate, input: {at: a}}, {name: gate, input: {at: b}}, {name: gate, input: {at: c}}]
  - {when: {interruption: '\\?$'}, text: It goes well.}
  - {when: {interruption: 'status'}, text: It goes well.}
  - {text: The answer.}
"""
"""The model calls three tools in one reply, then gives the answer. Questions and ``status`` get their own reply."""

THREE_ROUNDS = """
rules:
  - {when: {step: 1}, tools: [{name: gate, input: {at: a}}]}
  - {when: {step: 2}, tools: [{name: gate, input: {at: b}}]}
  - {when: {step: 3}, tools: [{name: gate, input: {at: c}}]}
  - {text: The answer.}
"""
"""The model calls the same tools in three replies, and ignores the user's lines."""

SLOW_ANSWER = """
rules:
  - {when: {interruption: .}, text: Noted.}
  - {text: The whole answer., pace: {chunk: 10, delay_s: 10}}
"""


class Gates:
    """Tools that wait at named gates until the test opens them, and the log of the gates.

    ``gate``, ``wait``, ``look`` and ``change`` wait at one gate, ``tour`` at a gate before each place. Only ``look`` is
    read-only. With ``is_open``, all gates are open.
    """

    def __init__(self, *names: str, is_open: bool = False) -> None:
        """Open the gates ``names``."""
        self._reached: defaultdict[str, trio.Event] = defaultdict(trio.Event)
        self._open: defaultdict[str, trio.Event] = defaultdict(trio.Event)
        self.is_open = is_open
        self.log: list[str] = []
        """The log of the gates, in order: ``+NAME`` reached, ``-NAME`` passed, ``!NAME`` cancelled there."""
        self.adjustments: list[tuple[str, str]] = []
        """The adjustments that ``tour`` received at its safe points, in order."""
        self.open(*names)

    def open(self, *names: str) -> None:
        """Open these gates."""
        for name in names:
            self._open[name].set()

    def open_all(self) -> None:
        """Open all gates, also future ones."""
        self.is_open = True
        self.open(*self._open)

    async def wait_reached(self, name: str) -> None:
        """Wait until a tool waits at this gate."""
        await self._reached[name].wait()
        await wait_all_tasks_blocked()

    @property
    def reached_names(self) -> list[str]:
        """The gates that were reached, in order."""
        return [entry.removeprefix("+") for entry in self.log if entry.startswith("+")]

    async def wait_at(self, at: str) -> str:
        """Wait at a gate, as a tool does."""
        self.log.append(f"+{at}")
        self._reached[at].set()
        try:
            if not self.is_open:
                await self._open[at].wait()
        except trio.Cancelled:
            self.log.append(f"!{at}")
            raise
        self.log.append(f"-{at}")
        return f"seen {at}"

    @property
    def tools(self) -> list[Tool]:
        @tool(timeout_s=10_000)
        async def gate(ctx: ToolContext, at: str) -> str:
            """Wait at a gate."""
            await self.wait_at(at)
            return f"{at} is done"

        @tool(timeout_s=10_000)
        async def tour(ctx: ToolContext, places: int) -> str:
            """Visit places, with a safe point before each."""
            for n in range(1, places + 1):
                await self.wait_at(f"place {n}")
                guidance = await ctx.safe_point(f"before_source:{n}")
                self.adjustments += [(a.type, a.value) for a in guidance.adjustments]
                if guidance.stop:
                    return f"[{n - 1} visited, {places - n + 1} skipped]"
            return f"[{places} visited, 0 skipped]"

        @tool
        async def wait(ctx: ToolContext, at: str) -> str:
            """Wait."""
            await self.wait_at(at)
            return f"waited {at}"

        @tool(read_only=True)
        async def look(ctx: ToolContext, at: str) -> str:
            """Look at something."""
            return await self.wait_at(at)

        @tool
        async def change(ctx: ToolContext, at: str) -> str:
            """Change something."""
            return await self.wait_at(at)

        return [gate, tour, wait, look, change]


async def start_run(session: Session, gates: Gates, gate: str, *lines: str) -> None:
    """Start a run, and queue lines while its tool waits at the gate."""
    assert session.chain.submit("Do the task").what == "started"
    await gates.wait_reached(gate)
    for line in lines:
        assert session.chain.submit(line).what == "queued"
    await wait_all_tasks_blocked()


async def finish_run(session: Session, gates: Gates, *, max_iterations: int = 20) -> events.Result:
    """Open the gates of the rules above, wait for the end of the run, check the invariants, and return the result."""
    gates.open("a", "b", "c", *(f"place {n}" for n in range(1, 4)))
    await session.chain.wait_idle()
    check_invariants(session, max_iterations=max_iterations)
    return session.result


def sent_results(session: Session) -> list[str]:
    """Return the tool results in the last request."""
    return [r.text for m in session.model.requests[-1].messages for r in m.results]


def started_gates(session: Session) -> list[str]:
    """Return the gates of the calls whose starts are recorded."""
    calls = {e.id: e.input["at"] for e in session.of(events.ToolCall)}
    return [calls[r["id"]] for r in session.records if r["type"] == "tool_started"]


async def advance(clock: MockClock, seconds: float = 10) -> None:
    """Advance the clock in one step."""
    await wait_all_tasks_blocked()
    clock.jump(seconds)
    await wait_all_tasks_blocked()
