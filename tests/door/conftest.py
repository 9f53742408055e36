"""A session with its side door, and clients. No time limit of the program decides how a test ends."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.doors import Client, OpenDoor, open_door
from support.gates import THREE_TOOLS, Gates, start_run
from support.sessions import Session, make_settings, open_session

from cli.door import client as door_client
from cli.door import server


@pytest.fixture(autouse=True)
def _without_time_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let both ends of a connection wait for each other as long as a test may take."""
    monkeypatch.setattr(server, "LAST_S", 60.0)
    monkeypatch.setattr(door_client, "GREETING_S", 60.0)


@pytest.fixture
def gates() -> Gates:
    return Gates()


@pytest.fixture
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the parameter of a test: the settings of its session."""
    return getattr(request, "param", {})


@pytest.fixture
async def session(gates: Gates, options: dict[str, Any]) -> AsyncIterator[Session]:
    """Yield a session whose run calls three tools, which wait at the gates ``a``, ``b`` and ``c``."""
    async with open_session(THREE_TOOLS, tools=gates.tools, settings=make_settings(**options)) as session:
        yield session


@pytest.fixture
async def door(session: Session, tmp_path: Path) -> AsyncIterator[OpenDoor]:
    async with open_door(session, tmp_path) as door:
        yield door


@pytest.fixture
async def client(door: OpenDoor) -> Client:
    return await door.connect()


@pytest.fixture
async def running(session: Session, gates: Gates, door: OpenDoor) -> Session:
    """Return the session with a run whose first tool waits at the gate ``a``."""
    await start_run(session, gates, "a")
    return session
