"""Settings of the tests of the sandbox."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Return a folder on the disk: the sandbox lets commands write to shared memory."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
