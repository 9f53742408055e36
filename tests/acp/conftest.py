"""Editors in memory: no time limit of the program decides how a test ends."""

import math

import pytest

from cli.acp import methods


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give sessions that close, and their last updates, all the time that they need."""
    for limit in ("CLOSING_S", "UPDATES_GRACE_S"):
        monkeypatch.setattr(methods, limit, math.inf)
