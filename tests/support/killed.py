"""Sessions whose program was killed during a run, or left by its user."""

from __future__ import annotations

from trio.testing import wait_all_tasks_blocked

from .gate import TWO_STEPS, Gate
from .sessions import Session, open_session, wait_quiet


async def killed(*lines: str, model: str = TWO_STEPS, id: str = "") -> bytes:
    """Return the journal of a session that was killed while a tool ran and these lines waited."""
    gate = Gate()
    async with open_session(model, tools=[gate.tool], interactive=True) as session:
        session.chain.submit("Do the task")
        await gate.started.wait()
        for line in lines:
            session.chain.submit(line, id=id)
        await wait_all_tasks_blocked()
        data = session.file.data
        gate.open.set()
        await wait_quiet(session)
    return data


async def departed(*lines: str, draft: str = "") -> Session:
    """Return a session whose user left it while a tool ran and these lines waited, with a draft in the editor."""
    gate = Gate()
    async with open_session(TWO_STEPS, tools=[gate.tool], interactive=True) as session:
        session.chain.submit("Do the task")
        await gate.started.wait()
        for line in lines:
            session.chain.submit(line)
        session.chain.leave()
        await session.chain.wait_idle()
        assert session.chain.submit("too late").what == "refused"
        session.chain.record_draft(draft)
    return session
