"""Settings of the tests of processes, which run on Linux only."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

if sys.platform != "linux":
    collect_ignore_glob = ["test_*"]


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Return a folder on the disk: the sandbox lets commands write to shared memory."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
