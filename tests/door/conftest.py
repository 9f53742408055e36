"""A session with its side door, and clients. No time limit of the program decides how a test ends."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support import Session, open_session, settings
from support.doors import Client, Entrance, open_door
from support.gates import THREE_TOOLS, Gates, begin

from cli.door import client as door_client
from cli.door import server


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no wait for the other end of a connection time out."""
    monkeypatch.setattr(server, "LAST_S", 60.0)
    monkeypatch.setattr(door_client, "GREETING_S", 60.0)


@pytest.fixture
def gates() -> Gates:
    return Gates()


@pytest.fixture
def use(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the settings of the session: the parameter of a test."""
    return getattr(request, "param", {})


@pytest.fixture
async def session(gates: Gates, use: dict[str, Any]) -> AsyncIterator[Session]:
    """Yield a session whose run calls three tools that wait at gates."""
    async with open_session(THREE_TOOLS, tools=gates.tools, use=settings(**use)) as session:
        yield session


@pytest.fixture
async def door(session: Session, tmp_path: Path) -> AsyncIterator[Entrance]:
    """Yield the side door of the session."""
    async with open_door(session, tmp_path) as door:
        yield door


@pytest.fixture
async def client(door: Entrance) -> Client:
    """Return a client of the door."""
    return await door.client()


@pytest.fixture
async def running(session: Session, gates: Gates, door: Entrance) -> Session:
    """Return the session with a run whose first tool is at gate ``a``."""
    await begin(session, gates, "a")
    return session
