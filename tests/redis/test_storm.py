"""Workers, the server and the connections between them are killed for a time, and no line is lost or done twice."""

from __future__ import annotations

import itertools
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
SESSIONS_AT_ONCE = 15
"""Sessions that one worker runs at the same time."""
REDIS_KILLS = 5
SETTLE_S = 120.0
"""Seconds after the storm in which all work must be done, on a busy machine."""

LINES = ["work {}"] * 3 + ["note {}"] * 6  # the most frequent ones
LINES += ["!urgent {}", "!!now {}", "context: {}", "todo: add {}", "then: work {}"]
FINAL = {"delivered", "handled", "returned", "dropped"}

Calls: TypeAlias = dict[str, list[str]]
"""The ids of the started calls of the tool ``step``, by the names of the workspaces."""


class Storm:
    """Processes of workers, and the lines that were accepted."""

    def __init__(self, folder: Path, server: redis.OwnRedis) -> None:
        self.folder = folder
        self.redis = server
        self.redis_is_up = trio.Event()
        self.redis_is_up.set()
        self.outage_noticed = trio.Event()
        self.workers: list[subprocess.Popen[bytes]] = []
        self.accepted: dict[str, dict[str, str]] = defaultdict(dict)
        """The texts of accepted lines, by session and id."""
        self.random = random.Random(7)
        (folder / "config.yaml").write_text(redis.CONFIG)

    def calls(self) -> Calls:
        calls: Calls = defaultdict(list)
        for row in (self.folder / "steps").read_text().splitlines():
            _, workspace, call = row.split()
            calls[workspace].append(call)
        return calls

    def start_worker(self) -> subprocess.Popen[bytes]:
        program = Path(__file__).parents[1] / "support/redis_worker.py"
        arguments = [self.redis.address, self.folder, self.folder / "config.yaml", self.folder / "steps", LEASE_S]
        command = [sys.executable, str(program), *map(str, arguments), str(SESSIONS_AT_ONCE)]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=(self.folder / "workers").open("ab"))

    async def stop_workers(self) -> None:
        """Stop workers for longer than their leases, one after another."""
        while True:
            await trio.sleep(2 * LEASE_S)
            worker = self.random.choice(self.workers)
            worker.send_signal(signal.SIGSTOP)
            await trio.sleep(LEASE_S + 1)
            worker.send_signal(signal.SIGCONT)

    async def kill_processes(self) -> None:
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
                await self.restart_redis()

    async def restart_redis(self) -> None:
        self.redis_is_up, self.outage_noticed = trio.Event(), trio.Event()
        self.redis.kill()
        await self.outage_noticed.wait()
        await trio.to_thread.run_sync(self.redis.start)
        self.redis_is_up.set()

    async def run_client(self, number: int, server: RedisServer, store: RedisStore, ids: list[str]) -> None:
        """Send numbered lines to random sessions, each until the server answers."""
        choose = random.Random(number)
        for count in itertools.count(1):
            session = choose.choice(ids)
            line = f"c{number}-{count:05}"
            text = "stop" if choose.random() < 0.02 else choose.choice(LINES).format(line)
            row = {"type": "line", "id": line, "text": text}
            status = None
            while status is None:
                try:
                    status = await store.submit(server, session, row, needs_room=not text.startswith(("stop", "!!")))
                except Unreachable:
                    self.outage_noticed.set()
                    await self.redis_is_up.wait()
            if status.state != "refused":
                self.accepted[session][line] = text
            await trio.sleep(choose.uniform(0, 0.15))


@asynccontextmanager
async def start_storm(folder: Path, server: redis.OwnRedis) -> AsyncIterator[Storm]:
    """Start the workers, and kill them at the end of the block."""
    storm = Storm(folder, server)
    storm.workers = [storm.start_worker() for _ in range(WORKERS)]
    try:
        yield storm
    finally:
        for worker in storm.workers:
            with suppress(OSError):
                worker.send_signal(signal.SIGCONT)
            worker.kill()
            worker.wait()


@pytest.mark.timeout(DURATION_S + SETTLE_S)
async def test_accepted_lines_survive_a_storm(tmp_path: Path, server: redis.OwnRedis) -> None:
    store = RedisStore(server.address)
    async with start_storm(tmp_path, server) as storm, store.connect() as connection:
        ids = []
        for n in range(SESSIONS):
            (tmp_path / f"w{n}").mkdir()
            ids.append(await store.create(connection, str(tmp_path / f"w{n}")))
        async with trio.open_nursery() as nursery:
            for n in range(CLIENTS):
                nursery.start_soon(storm.run_client, n, connection, store, ids)
            nursery.start_soon(storm.stop_workers)
            await storm.kill_processes()
            nursery.cancel_scope.cancel()
        for id in ids:
            await wait_settled(connection, id)
        calls = storm.calls()
        openings = [await check_session(store, connection, id, storm.accepted[id], calls) for id in ids]
        assert sum(openings) > SESSIONS, "some sessions were opened by a second worker"


async def wait_settled(connection: RedisServer, id: str) -> None:
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
        await trio.sleep(0.5)  # a poll, since no command waits for the end of a lease


async def check_session(
    store: RedisStore, connection: RedisServer, id: str, accepted: dict[str, str], calls: Calls
) -> int:
    """Check that no line was lost, repeated or moved, and no call repeated. Return how often a chain was opened."""
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
    recorded = {each["id"] for each in records if each["type"] == "tool_started"}
    started = calls[Path(records[0]["workspace"]).name]
    assert len(started) == len(set(started)), "no call of a tool is made twice"
    assert set(started) <= recorded, "no tool starts before its record is stored"
    return sum(each["type"] == "session" for each in records)


def is_plain(text: str) -> bool:
    return not text.startswith(("then:", "todo:", "!", "stop"))


def read_rows(store: RedisStore, id: str) -> list[bytes]:
    with store.rows(id) as rows:
        return list(rows)
