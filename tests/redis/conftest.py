"""A server for each test, and what is stored in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from support import redis

from chain.redis.redis_server import RedisServer
from chain.redis.redis_store import RedisStore


@pytest.fixture
def server(tmp_path: Path) -> Iterator[redis.OwnRedis]:
    """Start a server that stores changes before it acknowledges them."""
    with redis.own_redis(tmp_path / "redis") as found:
        yield found


@pytest.fixture
def store(server: redis.OwnRedis) -> RedisStore:
    """Return the sessions of the server."""
    return RedisStore(server.address)


@pytest.fixture
async def link(store: RedisStore) -> AsyncIterator[RedisServer]:
    """Open a connection to the server."""
    async with store.connect() as found:
        yield found
