"""A session that goes on after its process has ended: what is there again, and what a crash left out."""

from __future__ import annotations

import io
from typing import Any

import pytest

from chain.errors import SessionError
from chain.session.resume import read_back
from support import MemoryFile, open_session, settings

pytestmark = pytest.mark.trio

RULES = """
rules:
  - {when: {user: hello}, times: 1, text: I add it., tools: [{name: plan_add_task, input: {task: check the SKU}}]}
  - {text: The answer.}
"""


async def test_smoke() -> None:
    async with open_session(RULES) as session:
        await session.run("hello")
        await session.run("again")
        data = session.file.data
        before = list(session.events)
    file = MemoryFile()
    file.data = file.synced = data
    read = read_back(io.BytesIO(data))
    async with open_session("rules: [{text: More.}]", file=file, resume=read) as session:
        print([type(e).__name__ for e in session.chain.resumed.past])
        print([type(e).__name__ for e in before])
        print(session.chain.resumed.changes)
        await session.run("third")
        print(session.sent())
    for cut in range(len(data)):
        part = data[:cut]
        file = MemoryFile()
        file.data = file.synced = part if part.endswith(b"\n") or not part else part + b"\0\n"
        read = read_back(io.BytesIO(part))
        async with open_session("rules: [{text: More.}]", file=file, resume=read) as session:
            await session.run("third")
