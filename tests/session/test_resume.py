"""A session that goes on after its process has ended: what is there again, and what a crash left out."""

from __future__ import annotations

import io

import pytest
from support import MemoryFile, open_session

from chain import events
from chain.session.resume import ReadBack, read_back

pytestmark = pytest.mark.trio

RULES = """
rules:
  - {when: {user: hello}, times: 1, text: I add it., tools: [{name: plan_add_task, input: {task: check the SKU}}]}
  - {text: The answer.}
"""

_LIVE_ONLY = events.TextDelta | events.ThinkingDelta | events.UsageReport | events.Init


def reopened(data: bytes) -> tuple[MemoryFile, ReadBack]:
    """The journal as a file of which a crash left so much, and what it says."""
    file = MemoryFile()
    # What ``DiskFile`` puts before the next record.
    file.data = file.synced = data if data.endswith(b"\n") or not data else data + b"\0\n"
    return file, read_back(io.BytesIO(data))


async def test_what_was_is_there_again() -> None:
    async with open_session(RULES) as session:
        await session.run("hello")
        await session.run("again")
        told = [type(event) for event in session.events if not isinstance(event, _LIVE_ONLY)]
        data, plan, usage = session.file.data, session.chain.plan.tasks, session.chain.usage
    file, read = reopened(data)
    async with open_session("rules: [{text: More.}]", file=file, resume=read) as session:
        resumed = session.chain.resumed
        assert resumed is not None
        assert [type(event) for event in resumed.past if not isinstance(event, _LIVE_ONLY)] == told
        assert resumed.changes == []
        assert (session.chain.plan.tasks, session.chain.usage) == (plan, usage)
        await session.run("third")
        assert session.sent().splitlines()[0] == "user: hello"
        assert session.sent().splitlines()[-2:] == ["assistant: The answer.", "user: third"]
