"""A home and a folder to work in, for each test."""

from pathlib import Path

import pytest
from support.configuration import ConfigPlace


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture
def place(home: Path, work: Path) -> ConfigPlace:
    return ConfigPlace(home, work)
