"""Workers, the server and the connections between them are killed for a time, and no line is lost or done twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import trio
from support import redis
from support.crashes import check_conversations

from chain.errors import SessionError
from chain.redis import scripts
from chain.redis.redis_server import RedisServer, Unreachable
from chain.redis.redis_store import RedisStore
from chain.session.resume import load_journal

pytestmark = [pytest.mark.slow, *redis.MARKS]

DURATION_S = float(os.environ.get("CHAIN_STORM_S", "60"))
WORKERS, SESSIONS, CLIENTS, LEASE_S = 3, 30, 5, 3.0
REDIS_KILLS = 5
SETTLE_S = 120.0
"""Seconds after the storm in which all work must be done, on a busy machine."""

LINES = ["work {}"] * 3 + ["note {}"] * 6
LINES += ["!urgent {}", "!!now {}", "context: {}", "todo: add {}", "then: work {}"]
FINAL = {"delivered", "handled", "returned", "dropped"}

Steps: TypeAlias = dict[str, list[str]]


class Storm:
    """Processes of workers, and the lines that were accepted."""

    def __init__(self, folder: Path, server: redis.OwnRedis) -> None:
        self.folder = folder
        self.redis = server
        self.workers: list[subprocess.Popen[bytes]] = []
        self.accepted: dict[str, dict[str, str]] = defaultdict(dict)
        """The texts of accepted lines, by session and id."""
        self.random = random.Random(7)
        (folder / "config.yaml").write_text(redis.CONFIG)

    def steps(self) -> Steps:
        """Return the started calls of the tool, by the names of the workspaces."""
        found: Steps = defaultdict(list)
        for row in (self.folder / "steps").read_text().splitlines():
            _, where, call = row.split()
            found[where].append(call)
        return found

    def start_worker(self) -> subprocess.Popen[bytes]:
        program = Path(__file__).parents[1] / "support/redis_worker.py"
        arguments = [self.redis.address, self.folder, self.folder / "config.yaml", self.folder / "steps", LEASE_S, 15]
        command = [sys.executable, str(program), *map(str, arguments)]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=(self.folder / "workers").open("ab"))

    async def stop_workers(self) -> None:
        """Stop workers for longer than their leases, one after another."""
        while True:
            await trio.sleep(2 * LEASE_S)
            worker = self.random.choice(self.workers)
            worker.send_signal(signal.SIGSTOP)
            await trio.sleep(LEASE_S + 1)
            worker.send_signal(signal.SIGCONT)

    async def rage(self) -> None:
        """Kill a worker each second, and the server a few times."""
        start, redis_kills = trio.current_time(), 0
        while (passed := trio.current_time() - start) < DURATION_S:
            await trio.sleep(1)
            victim = self.random.randrange(WORKERS)
            self.workers[victim].kill()
            self.workers[victim].wait()
            self.workers[victim] = self.start_worker()
            if passed > DURATION_S * (redis_kills + 0.5) / REDIS_KILLS:
                redis_kills += 1
                self.redis.kill()
                await trio.sleep(0.3)
                await trio.to_thread.run_sync(self.redis.start)

    async def client(self, number: int, server: RedisServer, store: RedisStore, ids: list[str]) -> None:
        """Send numbered lines to random sessions, each until the server answers."""
        choose, count = random.Random(number), 0
        while True:
            session = choose.choice(ids)
            count += 1
            line = f"c{number}-{count:05}"
            text = "stop" if choose.random() < 0.02 else choose.choice(LINES).format(line)
            row = {"type": "line", "id": line, "text": text}
            said = None
            while said is None:
                try:
                    said = await store.submit(server, session, row, needs_room=not text.startswith(("stop", "!!")))
                except Unreachable:
                    await trio.sleep(0.2)
            if said.state != "refused":
                self.accepted[session][line] = text
            await trio.sleep(choose.uniform(0, 0.15))


@asynccontextmanager
async def storm(folder: Path, server: redis.OwnRedis) -> AsyncIterator[Storm]:
    found = Storm(folder, server)
    try:
        yield found
    finally:
        for worker in found.workers:
            with suppress(OSError):
                worker.send_signal(signal.SIGCONT)
            worker.kill()
            worker.wait()


@pytest.mark.timeout(DURATION_S + SETTLE_S)
async def test_accepted_lines_survive_a_storm(tmp_path: Path, server: redis.OwnRedis) -> None:
    store = RedisStore(server.address)
    async with storm(tmp_path, server) as raging, store.connect() as connection:
        ids = []
        for n in range(SESSIONS):
            (tmp_path / f"w{n}").mkdir()
            ids.append(await store.create(connection, str(tmp_path / f"w{n}")))
        raging.workers = [raging.start_worker() for _ in range(WORKERS)]
        async with trio.open_nursery() as nursery:
            for n in range(CLIENTS):
                nursery.start_soon(raging.client, n, connection, store, ids)
            nursery.start_soon(raging.stop_workers)
            await raging.rage()
            nursery.cancel_scope.cancel()
        for id in ids:
            await settled(connection, id)
        steps = raging.steps()
        opened = [await check_session(store, connection, id, raging.accepted[id], steps) for id in ids]
        assert sum(opened) > SESSIONS


async def settled(connection: RedisServer, id: str) -> None:
    """Wait until a session has no work and no holder."""
    while True:
        with suppress(SessionError):
            due, unread, token = await connection.ask(
                (b"ZSCORE", scripts.DUE, id),
                (b"XLEN", scripts.key(id, "lines")),
                (b"HGET", scripts.key(id, "meta"), b"token"),
            )
            if due is None and unread == 0 and token is None:
                return
        await trio.sleep(0.5)


async def check_session(
    store: RedisStore, connection: RedisServer, id: str, accepted: dict[str, str], steps: Steps
) -> int:
    """Check I1, I2, I6 and I9 in the journal of a session. Return how often the session was opened."""
    rows = await trio.to_thread.run_sync(lambda: read_rows(store, id))
    read = load_journal(rows)
    assert not read.complaints, id
    check_conversations(read)
    records: list[dict[str, Any]] = [json.loads(row) for row in rows]
    lines = Counter(each["id"] for each in records if each["type"] == "line")
    receipts: dict[str, list[str]] = defaultdict(list)
    for each in records:
        if each["type"] == "receipt" and each["state"] in FINAL:
            receipts[each["id"]].append(each["state"])
    delivered = [line for each in records if each["type"] == "message" for line in each["line_ids"]]
    for line, text in accepted.items():
        status = await store.status(connection, id, line)
        assert status.state in FINAL, (id, line, text, status)
        assert receipts.get(line, ["handled"]) == [status.state], (id, line, text, status)
        assert delivered.count(line) == (status.state == "delivered"), (id, line, text, status)
        # A stop while nothing runs is no line of the session.
        assert line in lines or (text, status.state) == ("stop", "handled"), (id, line, text, status)
    for client in range(CLIENTS):
        plain = [each for each in delivered if each.startswith(f"c{client}-") and is_plain(accepted.get(each, "stop"))]
        assert plain == sorted(plain), (id, plain)
    started = {each["id"] for each in records if each["type"] == "tool_started"}
    called = steps[records[0]["workspace"].rpartition("/")[2]]
    assert len(called) == len(set(called)), "no call of a tool is made twice"
    assert set(called) <= started, "no tool starts before its record is stored"
    return sum(each["type"] == "session" for each in records)


def is_plain(text: str) -> bool:
    return not text.startswith(("then:", "todo:", "!", "stop"))


def read_rows(store: RedisStore, id: str) -> list[bytes]:
    with store.rows(id) as rows:
        return list(rows)
