"""Bounds of the side door: many clients, one after another and at once, and clients that send without end."""

from __future__ import annotations

import gc
import json
import os
import resource
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import pytest
import trio
from support import Session
from support.doors import Client, Entrance
from support.gates import Gates, begin, finish
from trio.testing import wait_all_tasks_blocked

from cli.door import connection, server, sockets

MANY = 1_000
AT_ONCE = 100
"""Connections before the door can accept any: fewer than may wait at a socket."""
FEW = MANY // 2
"""Blocks of memory that Python may cache. A leak for each connection or row would be ``MANY``."""

pytestmark = pytest.mark.parametrize("use", [{"inbox_size": 1}], indirect=True, ids=[""])


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def allocated() -> int:
    gc.collect()
    return sys.getallocatedblocks()


@pytest.fixture
async def full(session: Session, gates: Gates, door: Entrance) -> Session:
    """Return a session with a run at gate ``a`` and a full queue."""
    await begin(session, gates, "a", "use A")
    return session


@pytest.fixture
def _many_descriptors() -> Iterator[None]:
    """Allow as many descriptors as the clients of a test need beside those of the door."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 3 * MANY)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
async def test_clients_that_left_use_nothing(door: Entrance) -> None:
    async def visit(count: int) -> None:
        for _ in range(count):
            client = await door.client()
            await client.send({"type": "hello", "answers": True}, {"type": "watch"})
            assert client.types[0] == "init"
            await client.leave()
            client.rows.clear()
            door.clients.clear()

    await visit(MANY // 2)
    before, memory = descriptors(), allocated()
    await visit(MANY)
    assert descriptors() == before
    assert allocated() - memory < FEW


@pytest.mark.usefixtures("_many_descriptors")
async def test_clients_above_the_limit_are_refused(full: Session, gates: Gates, door: Entrance) -> None:
    before = descriptors()
    clients: list[socket.socket] = []
    for _ in range(MANY // AT_ONCE):
        clients += [sockets.connect(door.path) for _ in range(AT_ONCE)]
        await wait_all_tasks_blocked()
        assert descriptors() - before - len(clients) <= server.MAX_CLIENTS + server.MAX_TURNED_AWAY
    received = Counter(json.loads(client.recv(65_536))["type"] for client in clients)
    assert received == {"init": server.MAX_CLIENTS, "error": MANY - server.MAX_CLIENTS}
    await finish(full, gates)
    for client in clients:
        client.close()
    await wait_all_tasks_blocked()
    later = await door.client()
    await later.until("init")
    await later.leave()
    await wait_all_tasks_blocked()
    assert descriptors() == before


async def test_a_sender_that_never_reads_is_disconnected(
    full: Session, gates: Gates, door: Entrance, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MAX_BEHIND", 100_000)
    sender = await door.client(reads=False)
    with suppress(trio.BrokenResourceError):
        while True:
            await sender.stream.send_all(b'{"type":"line","text":"use B"}\n')
    await client.say("use C", id="c")
    assert [row["state"] for row in client.of("receipt")] == ["refused"]
    await finish(full, gates)
