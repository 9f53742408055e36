"""Objects that the tests of several tools need."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from chain.tools.processes.guarded import Guard


@pytest.fixture
async def guard() -> AsyncIterator[Guard]:
    """Return a guard. Check that neither its folder nor a process is left."""
    guard = Guard()
    yield guard
    await guard.close()
    assert not guard.folder.exists()
    assert not children()


def children() -> str:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text()
