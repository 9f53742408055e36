"""A tool that waits until the test opens it, and sessions that are finished, killed or left while it waits."""

from __future__ import annotations

from dataclasses import dataclass, field

import trio
from trio.testing import wait_all_tasks_blocked

from chain.tools.tool import Tool, ToolContext, tool

from .checks import check_invariants
from .sessions import Session, open_session, wait_quiet

TWO_STEPS = """
rules:
  - {when: {step: 1}, text: Looking., tools: [{name: wait, input: {}}]}
  - {when: {tool: wait}, text: The answer.}
  - {text: Noted.}
"""
"""The model calls the tool, then gives the answer. It answers "Noted." to any other line."""

REFUSES_RESULT = "rules: [{when: {tool: wait}, text: No., stop_reason: refusal}, {text: Wait., tools: [{name: wait}]}]"
"""The model calls the tool, and refuses to reply to its result."""


@dataclass
class Gate:
    """A tool ``wait`` that waits until ``open`` is set. ``description`` is its docstring.

    With ``reads_guidance``, the tool waits for ``may_read``, then stores its guidance in ``adjustments``.
    """

    reads_guidance: bool = False
    description: str = "Wait."
    adjustments: list[str] = field(default_factory=list)
    started: trio.Event = field(default_factory=trio.Event)
    may_read: trio.Event = field(default_factory=trio.Event)
    open: trio.Event = field(default_factory=trio.Event)

    @property
    def tool(self) -> Tool:
        async def wait(ctx: ToolContext) -> str:
            self.started.set()
            if self.reads_guidance:
                await self.may_read.wait()
                self.adjustments += [a.value for a in (await ctx.safe_point("here")).adjustments]
            await self.open.wait()
            return "waited"

        wait.__doc__ = self.description
        return tool(wait)


async def start_run(session: Session, gate: Gate, *lines: str) -> None:
    """Start a run, and queue lines while its tool runs."""
    assert session.chain.submit("Do the task").what == "started"
    await gate.started.wait()
    for line in lines:
        assert session.chain.submit(line).what == "queued"
    await wait_all_tasks_blocked()


async def finish_run(session: Session, gate: Gate, *, max_iterations: int = 20) -> None:
    """Open the gate, wait for the end of the run, and check the invariants."""
    gate.open.set()
    await session.chain.wait_idle()
    check_invariants(session, max_iterations=max_iterations)


async def kill_session(*lines: str) -> bytes:
    """Return the journal of a session that was killed while a tool ran and these lines waited."""
    gate = Gate()
    async with open_session(TWO_STEPS, tools=[gate.tool], interactive=True) as session:
        await start_run(session, gate)
        for line in lines:
            session.chain.submit(line)
        await wait_all_tasks_blocked()
        data = session.file.data
        gate.open.set()
        await wait_quiet(session)
    return data


async def leave_session(*lines: str, draft: str = "") -> Session:
    """Return a session whose user left it while a tool ran and these lines waited, with a draft in the editor."""
    gate = Gate()
    async with open_session(TWO_STEPS, tools=[gate.tool], interactive=True) as session:
        await start_run(session, gate, *lines)
        session.chain.leave()
        await session.chain.wait_idle()
        assert session.chain.submit("too late").what == "refused"
        session.chain.record_draft(draft)
    return session
