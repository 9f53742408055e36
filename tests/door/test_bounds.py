"""Limits of the side door: many clients, one after another and at once, and clients that send without end."""

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
from support.doors import Client, OpenDoor
from support.gates import Gates, finish_run, start_run
from support.sessions import Session
from trio.testing import wait_all_tasks_blocked

from cli.door import connection, server, sockets

CLIENTS = 1_000
"""Many times the clients that the door accepts at the same time."""
BATCH = 100
"""Clients that connect before the door can accept any. More than 128, the door's backlog, would block."""
CACHED_BLOCKS = CLIENTS // 2
"""Blocks of memory that Python may cache. A leak would be at least one block for each client."""

pytestmark = pytest.mark.parametrize("options", [{"inbox_size": 1}], indirect=True, ids=["room for 1"])


def descriptors() -> int:
    """Return the number of open descriptors."""
    return len(os.listdir("/proc/self/fd"))


def memory_blocks() -> int:
    gc.collect()
    return sys.getallocatedblocks()


@pytest.fixture
async def session_with_full_queue(session: Session, gates: Gates, door: OpenDoor) -> Session:
    await start_run(session, gates, "a", "use A")
    return session


@pytest.fixture
def _many_descriptors() -> Iterator[None]:
    """Raise the limit of descriptors: each client has one at its end, and the door one at the other end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 3 * CLIENTS)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
async def test_clients_that_left_use_nothing(door: OpenDoor) -> None:
    async def connect_and_leave(times: int) -> None:
        for _ in range(times):
            client = await door.connect()
            await client.send({"type": "hello", "answers": True}, {"type": "watch"})
            assert "init" in client.types
            await client.disconnect()
            client.rows.clear()
            door.clients.clear()

    await connect_and_leave(CLIENTS // 2)  # which fills the caches of Python
    descriptors_before, blocks_before = descriptors(), memory_blocks()
    await connect_and_leave(CLIENTS)
    assert descriptors() == descriptors_before
    assert memory_blocks() - blocks_before < CACHED_BLOCKS


@pytest.mark.usefixtures("_many_descriptors")
async def test_clients_above_the_limit_are_refused(
    session_with_full_queue: Session, gates: Gates, door: OpenDoor
) -> None:
    descriptors_before = descriptors()
    clients: list[socket.socket] = []
    for _ in range(CLIENTS // BATCH):
        clients += [sockets.connect(door.path) for _ in range(BATCH)]
        await wait_all_tasks_blocked()
        of_door = descriptors() - descriptors_before - len(clients)
        assert of_door <= server.MAX_CLIENTS + server.MAX_TURNED_AWAY
    received = Counter(json.loads(client.recv(65_536))["type"] for client in clients)
    assert received == {"init": server.MAX_CLIENTS, "error": CLIENTS - server.MAX_CLIENTS}
    await finish_run(session_with_full_queue, gates)
    for client in clients:
        client.close()
    await wait_all_tasks_blocked()
    later = await door.connect()
    await later.wait_for("init")
    await later.disconnect()
    await wait_all_tasks_blocked()
    assert descriptors() == descriptors_before


async def test_a_sender_that_never_reads_is_disconnected(
    session_with_full_queue: Session,
    gates: Gates,
    door: OpenDoor,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "MAX_BEHIND", 100_000)  # so that fewer rows suffice
    sender = await door.connect(reads=False)
    with suppress(trio.BrokenResourceError):
        while True:
            await sender.stream.send_all(b'{"type":"line","text":"use B"}\n')
    await client.send_line("use C", id="c")
    [receipt] = client.rows_of("receipt")
    assert receipt["state"] == "refused"
    await finish_run(session_with_full_queue, gates)
