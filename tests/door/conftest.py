"""Side doors: no time limit of the program decides how a test ends."""

import pytest

from cli.door import client, server


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no wait for the other end of a connection time out."""
    monkeypatch.setattr(server, "LAST_S", 60.0)
    monkeypatch.setattr(client, "GREETING_S", 60.0)
