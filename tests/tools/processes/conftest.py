"""Settings of the tests of processes, which run on Linux only."""

import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from chain.tools.processes.guarded import Guard

if sys.platform != "linux":
    collect_ignore_glob = ["test_*"]


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Return a folder on the disk: the sandbox lets commands write to shared memory."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
async def guard() -> AsyncIterator[Guard]:
    guard = Guard()
    yield guard
    await guard.close()
    assert not guard.folder.exists()
