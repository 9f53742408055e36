"""A tool that waits until the test opens it, and runs that receive lines while it waits."""

from __future__ import annotations

from dataclasses import dataclass, field

import trio
from trio.testing import wait_all_tasks_blocked

from chain.tools.tool import Tool, ToolContext, tool

from .checks import check_invariants
from .sessions import Session

TWO_STEPS = """
rules:
  - {when: {step: 1}, text: Looking., tools: [{name: wait, input: {}}]}
  - {when: {tool: wait}, text: The answer.}
  - {text: Noted.}
"""


@dataclass
class Gate:
    """A tool ``wait`` that waits until ``open`` is set. ``says`` is its description.

    With ``asks``, the tool first waits until ``asked`` is set, and reads guidance.
    """

    asks: bool = False
    says: str = "Wait."
    heard: list[str] = field(default_factory=list)
    started: trio.Event = field(default_factory=trio.Event)
    asked: trio.Event = field(default_factory=trio.Event)
    open: trio.Event = field(default_factory=trio.Event)

    @property
    def tool(self) -> Tool:
        async def wait(ctx: ToolContext) -> str:
            self.started.set()
            if self.asks:
                await self.asked.wait()
                self.heard += [a.value for a in (await ctx.safe_point("here")).adjustments]
            await self.open.wait()
            return "waited"

        wait.__doc__ = self.says
        return tool(wait)


async def begin(session: Session, gate: Gate, *lines: str) -> None:
    """Start a run and send lines while its tool runs."""
    assert session.chain.submit("Do the task").what == "started"
    await gate.started.wait()
    for line in lines:
        assert session.chain.submit(line).what == "queued"
    await wait_all_tasks_blocked()


async def finish(session: Session, gate: Gate, *, max_iterations: int = 20) -> None:
    gate.open.set()
    await session.chain.wait_idle()
    check_invariants(session, max_iterations=max_iterations)
