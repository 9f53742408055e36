"""A home and a folder to work in, for each test."""

from pathlib import Path

import pytest
from support.configuration import ConfigPlace


@pytest.fixture
def place(tmp_path: Path) -> ConfigPlace:
    return ConfigPlace(tmp_path)
