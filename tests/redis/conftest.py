"""A Redis server for each test, its session store, and a connection to it."""

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
    with redis.own_redis(tmp_path / "redis") as own_redis:
        yield own_redis


@pytest.fixture
def store(server: redis.OwnRedis) -> RedisStore:
    return RedisStore(server.address)


@pytest.fixture
async def connection(store: RedisStore) -> AsyncIterator[RedisServer]:
    async with store.connect() as opened:
        yield opened
