"""Workers, the server and the network between them are killed all the time, and no line is lost or done twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
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
"""How long it may take after the storm until all is done, on a machine that does other things too."""

KINDS = ["work {}"] * 3 + ["note {}"] * 6
KINDS += ["!urgent {}", "!!now {}", "context: {}", "todo: add {}", "then: work {}"]
FINAL = {"delivered", "handled", "returned", "dropped"}


Steps: TypeAlias = dict[str, list[str]]


class Storm:
    def __init__(self, folder: Path, server: redis.OwnRedis) -> None:
        self.folder = folder
        self.redis = server
        self.workers: list[subprocess.Popen[bytes]] = []
        self.taken: dict[str, dict[str, str]] = {}
        """The lines that were acknowledged, by session and id."""
        self.refused = self.kills = self.stops = 0
        self.random = random.Random(7)
        (folder / "config.yaml").write_text(redis.CONFIG)

    def steps(self) -> Steps:
        """The calls of the tool that began, by the names of the workspaces."""
        found: Steps = {}
        for row in (self.folder / "steps").read_text().splitlines():
            _, where, call = row.split()
            found.setdefault(where, []).append(call)
        return found

    def start_worker(self) -> subprocess.Popen[bytes]:
        program = Path(__file__).parents[1] / "support/redis_worker.py"
        arguments = [self.redis.address, self.folder, self.folder / "config.yaml", self.folder / "steps", LEASE_S, 15]
        return subprocess.Popen(
            [sys.executable, str(program), *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stderr=(self.folder / "workers").open("ab"),
        )

    async def stop_workers(self) -> None:
        """Stop a worker for longer than its lease, again and again."""
        while True:
            await trio.sleep(2 * LEASE_S)
            worker = self.random.choice(self.workers)
            worker.send_signal(signal.SIGSTOP)
            self.stops += 1
            await trio.sleep(LEASE_S + 1)
            worker.send_signal(signal.SIGCONT)

    async def rage(self) -> None:
        """Kill a worker each second, and the server now and then."""
        until = trio.current_time() + DURATION_S
        redis_at = [DURATION_S * (n + 0.5) / REDIS_KILLS for n in range(REDIS_KILLS)]
        begun = trio.current_time()
        while trio.current_time() < until:
            await trio.sleep(1)
            victim = self.random.randrange(WORKERS)
            self.workers[victim].kill()
            self.workers[victim].wait()
            self.workers[victim] = self.start_worker()
            self.kills += 1
            if redis_at and trio.current_time() - begun > redis_at[0]:
                redis_at.pop(0)
                self.redis.kill()
                await trio.sleep(0.3)
                await trio.to_thread.run_sync(self.redis.start)

    async def client(self, number: int, server: RedisServer, store: RedisStore, ids: list[str]) -> None:
        choose = random.Random(number)
        count = 0
        while True:
            session = choose.choice(ids)
            count += 1
            line = f"c{number}-{count:05}"
            text = choose.choice(KINDS).format(line)
            if choose.random() < 0.02:
                text = "stop"
            row = {"type": "line", "id": line, "text": text}
            while True:
                try:
                    said = await store.submit(server, session, row, needs_room=not text.startswith(("stop", "!!")))
                except Unreachable:
                    await trio.sleep(0.2)
                    continue
                break
            if said.state == "refused":
                self.refused += 1
            else:
                self.taken[session][line] = text
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
async def test_every_line_that_was_acknowledged_ends_in_one_state_whatever_is_killed(tmp_path: Path) -> None:
    with redis.own_redis(tmp_path / "redis") as server:
        async with storm(tmp_path, server) as raging:
            store = RedisStore(server.address)
            async with store.connected() as link:
                ids = []
                for n in range(SESSIONS):
                    (tmp_path / f"w{n}").mkdir()
                    ids.append(await store.create(link, str(tmp_path / f"w{n}")))
                raging.taken = {id: {} for id in ids}
                raging.workers = [raging.start_worker() for _ in range(WORKERS)]
                async with trio.open_nursery() as nursery:
                    for n in range(CLIENTS):
                        nursery.start_soon(raging.client, n, link, store, ids)
                    nursery.start_soon(raging.stop_workers)
                    await raging.rage()
                    nursery.cancel_scope.cancel()
                begun = time.monotonic()
                await settle(link, store, raging)
                lines = sum(map(len, raging.taken.values()))
                told = f"{raging.kills} kills, {raging.stops} stops, {lines} lines, {raging.refused} refused"
                sys.stderr.write(f"\n{told}, settled in {time.monotonic() - begun:.1f} s\n")
                opened, steps = 0, raging.steps()
                for id in ids:
                    opened += await check_session(store, link, id, raging.taken[id], steps)
                sys.stderr.write(f"{opened} openings of {SESSIONS} sessions\n")
                assert opened > SESSIONS


async def settle(link: RedisServer, store: RedisStore, raging: Storm) -> None:
    """Wait until nothing is left to do."""
    while True:
        with suppress(SessionError):
            left = [id for id in raging.taken if not await is_done(link, id)]
            if not left:
                return
        await trio.sleep(0.5)


async def is_done(link: RedisServer, id: str) -> bool:
    due, unread, token = await link.ask(
        (b"ZSCORE", scripts.DUE, id),
        (b"XLEN", scripts.key(id, "lines")),
        (b"HGET", scripts.key(id, "meta"), b"token"),
    )
    return due is None and unread == 0 and token is None


async def check_session(store: RedisStore, link: RedisServer, id: str, taken: dict[str, str], steps: Steps) -> int:
    """I1, I2, I6, I9 of one session, from its journal alone; how often it was opened."""
    rows = await trio.to_thread.run_sync(lambda: read_rows(store, id))
    read = load_journal(rows)
    assert not read.complaints, id
    check_conversations(read)
    records: list[dict[str, Any]] = [json.loads(row) for row in rows]
    lines = Counter(each["id"] for each in records if each["type"] == "line")
    receipts: dict[str, list[str]] = {}
    for each in records:
        if each["type"] == "receipt" and each["state"] in FINAL:
            receipts.setdefault(each["id"], []).append(each["state"])
    entered = [line for each in records if each["type"] == "message" for line in each["line_ids"]]
    for line, text in taken.items():
        became = await store.status(link, id, line)
        assert became.state in FINAL, (id, line, text, became)
        assert receipts.get(line, ["handled"]) == [became.state], (id, line, text, became, receipts.get(line))
        assert entered.count(line) == (became.state == "delivered"), (id, line, text, became)
        if line not in lines:  # a stop where nothing ran is no line of the session
            assert text == "stop"
            assert became.state == "handled", (id, line, became)
    for client in range(CLIENTS):
        plain = [each for each in entered if each.startswith(f"c{client}-") and is_plain(taken.get(each, "stop"))]
        assert plain == sorted(plain), (id, plain)
    begun = {each["id"] for each in records if each["type"] == "tool_started"}
    workspace = records[0]["workspace"].rpartition("/")[2]
    called = steps.get(workspace, [])
    assert len(called) == len(set(called)), "no call of a tool is made twice"
    assert set(called) <= begun, "no tool starts before that is on record"
    return sum(each["type"] == "session" for each in records)


def is_plain(text: str) -> bool:
    return not text.startswith(("then:", "todo:", "!", "stop"))


def read_rows(store: RedisStore, id: str) -> list[bytes]:
    with store.rows(id) as rows:
        return list(rows)
