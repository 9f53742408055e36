"""The bounds of the side door: many clients in a row and at once, and clients that send without end."""

from __future__ import annotations

import gc
import json
import os
import resource
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from support import Session, open_session, settings
from support.doors import Client, Entrance, open_door
from support.gates import THREE_TOOLS, Gates, begin, finish
from trio.testing import wait_all_tasks_blocked

from cli.door import connection, server, sockets

ANSWER = "rules: [{text: The answer.}]"
MANY = 1_000
AT_ONCE = 100
"""Connections that are made before the door can do anything: less than a socket lets wait."""
FEW = MANY // 2
"""Pieces of memory that Python may keep to use them again; whatever is kept of each connection or row is ``MANY``."""


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def held() -> int:
    """The pieces of memory in use."""
    gc.collect()
    return sys.getallocatedblocks()


@pytest.fixture
def _many_descriptors() -> Iterator[None]:
    """As many descriptors as the clients of a test need beside those of the door."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 3 * MANY)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@asynccontextmanager
async def at_work(folder: Path) -> AsyncIterator[tuple[Session, Gates, Entrance]]:
    """A run that stands, with an inbox that is full, and the door."""
    gates = Gates()
    use = settings(inbox_size=1)
    async with open_session(THREE_TOOLS, tools=gates.tools, use=use) as session, open_door(session, folder) as door:
        await begin(session, gates, "a", "use A")
        yield session, gates, door


async def visit(door: Entrance) -> None:
    """Connect, answer and watch for a moment, and leave."""
    client = await door.client()
    await client.send({"type": "hello", "answers": True}, {"type": "watch"})
    assert client.types[0] == "init"
    await client.leave()
    client.rows.clear()
    door.clients.clear()


@pytest.mark.slow
async def test_a_thousand_clients_in_a_row_leave_nothing_behind(tmp_path: Path) -> None:
    async with open_session(ANSWER) as session, open_door(session, tmp_path) as door:
        for _ in range(MANY // 2):
            await visit(door)
        before, memory = descriptors(), held()
        for _ in range(MANY):
            await visit(door)
        assert descriptors() == before
        assert held() - memory < FEW
        await session.run("Do the task")


@pytest.mark.usefixtures("_many_descriptors")
async def test_of_a_thousand_at_once_each_is_told_and_nobody_is_held_up(tmp_path: Path) -> None:
    async with at_work(tmp_path) as (session, gates, door):
        before = descriptors()
        clients: list[socket.socket] = []
        for _ in range(MANY // AT_ONCE):
            clients += [sockets.connect(door.path) for _ in range(AT_ONCE)]
            await wait_all_tasks_blocked()
            most = server.MAX_CLIENTS + server.MAX_TURNED_AWAY
            assert descriptors() - before - len(clients) <= most, "no time has passed"
        told = Counter(json.loads(client.recv(65_536))["type"] for client in clients)
        assert told == {"init": server.MAX_CLIENTS, "error": MANY - server.MAX_CLIENTS}
        await finish(session, gates)
        for client in clients:
            client.close()
        await wait_all_tasks_blocked()
        later = await door.client()
        await later.until("init")
        await later.leave()
        await wait_all_tasks_blocked()
        assert descriptors() == before


@pytest.mark.slow
async def test_what_is_refused_without_end_makes_nothing_grow(tmp_path: Path) -> None:
    async with at_work(tmp_path) as (session, gates, door):
        client, watcher = await door.client(), await door.client()
        await client.send({"type": "hello", "answers": True})
        await watcher.send({"type": "watch"})

        async def send(begin: int) -> None:
            for n in range(begin, begin + MANY):
                asked = ("line", "nonsense", "drop", "answer")
                await client.send(*({"id": f"{type} {n}", "text": f"use {n}", "type": type} for type in asked))
                assert client.rows[-1]["id"] == f"answer {n}"
                for told in (client.rows, watcher.rows, session.events, session.marks):
                    told.clear()

        await send(0)
        memory = held()
        await send(MANY)
        assert held() - memory < FEW
        gates.let_all()
        await session.chain.wait_idle()


async def test_who_sends_without_end_and_never_reads_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MAX_BEHIND", 100_000)
    async with at_work(tmp_path) as (session, gates, door):
        client, other = await door.client(reads=False), await door.client()
        row = {"type": "line", "text": "use B"}
        with pytest.raises(trio.BrokenResourceError):
            await send_without_end(client, row)
        await other.say("use C", id="c")
        assert [told["state"] for told in other.of("receipt")] == ["refused"]
        await finish(session, gates)


async def send_without_end(client: Client, row: dict[str, str]) -> None:
    while True:
        await client.stream.send_all(json.dumps(row).encode() + b"\n")
