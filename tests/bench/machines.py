"""What sessions in a Redis cost (SPEC section 17): ``python tests/bench/machines.py``; ``--quick`` tries every program.

It starts a Redis of its own, whose files are in the temporary folder. Figures that are compared are measured in turn.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent
sys.path[:0] = [str(TESTS.parent), str(TESTS)]

import trio  # noqa: E402 - the path comes first
from run import double, program  # noqa: E402
from support import redis  # noqa: E402
from workload import WARM_UP, replies  # noqa: E402

from chain.redis import scripts  # noqa: E402
from chain.redis.redis_server import RedisServer  # noqa: E402
from chain.redis.redis_store import RedisStore  # noqa: E402

QUICK = "--quick" in sys.argv
LINES, ROUNDS, ITERATIONS, SESSIONS = (20, 2, 8, 4) if QUICK else (1_000, 5, 100, 60)
LEASE_S = 3.0
RULES = TESTS / "support/redis_rules.yaml"
CONFIG = f"""
models: {{default: test, definitions: {{test: {{provider: scripted, script: {RULES}}}}}}}
chains: {{default: {{model: test, system_prompt: null, tools: [todo]}}}}
inbox: {{size: {LINES}}}
instructions: []
"""


def print_row(name: str, figure: str, goal: str = "") -> None:
    sys.stdout.write(f"| {name:<58} | {goal:<7} | {figure:<44} |\n")
    sys.stdout.flush()


async def submits(link: RedisServer, store: RedisStore) -> None:
    """Compare the sending of a line with a bare entry in a stream."""
    ratios, ours, bare = [], 0.0, 0.0
    for _ in range(ROUNDS):
        id = await store.create(link, "/")
        start = time.perf_counter()
        for n in range(LINES):
            await store.submit(link, id, {"id": f"{n}", "type": "line", "text": "a line"}, needs_room=False)
        ours = time.perf_counter() - start
        start = time.perf_counter()
        for _ in range(LINES):
            await link.ask((b"XADD", f"bare:{id}", b"*", b"id", b"1", b"text", b"a line"))
        bare = time.perf_counter() - start
        ratios.append(ours / bare)
        await link.ask((b"DEL", f"bare:{id}", *scripts.keys(id)[:6]), (b"ZREM", scripts.DUE, id))
    each = f"{ours / LINES * 1000:.2f} ms and {bare / LINES * 1000:.2f} ms"
    print_row("a submit, of a bare XADD", f"{statistics.median(ratios):.2f}  ({each})", "≤ 1.3")


def iterations(address: str) -> None:
    """Compare the CPU time of an iteration with Redis and with files."""
    ratios, files, shared = [], 0.0, 0.0
    with double({"steps": [*replies(WARM_UP), *replies(ITERATIONS)], "lean": True, "repeat": True}) as service:
        for _ in range(ROUNDS):
            os.environ.pop("CHAIN_BENCH_STATE", None)
            (files,) = json.loads(program("cpu_chain.py", service.url, ITERATIONS))
            os.environ["CHAIN_BENCH_STATE"] = address
            (shared,) = json.loads(program("cpu_chain.py", service.url, ITERATIONS))
            ratios.append(shared / files)
    each = f"{shared * 1000:.2f} ms and {files * 1000:.2f} ms"
    print_row("CPU per iteration with Redis, of files", f"{statistics.median(ratios):.2f}  ({each})", "≤ 1.5")


class Workers:
    """Worker processes."""

    def __init__(self, server: redis.OwnRedis, folder: Path, count: int, at_once: int = 10) -> None:
        (folder / "config.yaml").write_text(CONFIG)
        words = [server.address, folder, folder / "config.yaml", folder / "steps", LEASE_S, at_once]
        command = [sys.executable, str(TESTS / "support/redis_worker.py"), *map(str, words)]
        self.processes = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(count)]

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


async def all_done(link: RedisServer) -> None:
    while (await link.ask((b"ZCARD", scripts.DUE)))[0]:  # noqa: ASYNC110 - no event reports it
        await trio.sleep(0.01)


async def throughput(link: RedisServer, store: RedisStore, server: redis.OwnRedis, folder: Path) -> None:
    """Measure the sessions per second. Each is a run of four model calls and four calls of a tool of 0.1 s."""
    for count in (1, 2, 4):
        workers = Workers(server, folder, count)
        try:
            warm = await store.create(link, str(folder))
            await store.submit(link, warm, {"id": "warm", "type": "line", "text": "hello"}, needs_room=False)
            await all_done(link)
            start = time.perf_counter()
            for _ in range(SESSIONS):
                id = await store.create(link, str(folder))
                await store.submit(link, id, {"id": "one", "type": "line", "text": "work"}, needs_room=False)
            await all_done(link)
            seconds = time.perf_counter() - start
        finally:
            workers.kill()
        workers_of_10 = f"{count} worker{'s' if count > 1 else ''} of 10 at once"
        print_row(f"sessions a second, {workers_of_10}", f"{SESSIONS / seconds:.1f}")


async def count_openings(link: RedisServer, id: str) -> int:
    """Return how often a session has been opened."""
    (rows,) = await link.ask((b"XRANGE", scripts.key(id, "journal"), "-", "+"))
    return sum(b'"type":"session"' in fields[1] for _, fields in rows)


async def takeover(link: RedisServer, store: RedisStore, server: redis.OwnRedis, folder: Path) -> None:
    """Measure the time from the end of a worker to the moment when another one opens its session."""
    times = []
    for _ in range(ROUNDS):
        first = Workers(server, folder, 1)
        id = await store.create(link, str(folder))
        await store.submit(link, id, {"id": "one", "type": "line", "text": "work"}, needs_room=False)
        while await count_openings(link, id) < 1:  # noqa: ASYNC110 - no event reports it
            await trio.sleep(0.005)
        second = Workers(server, folder, 1)
        try:
            first.kill()
            start = time.perf_counter()
            while await count_openings(link, id) < 2:  # noqa: ASYNC110 - no event reports it
                await trio.sleep(0.01)
            times.append(time.perf_counter() - start)
            await all_done(link)
        finally:
            second.kill()
    print_row(f"takeover with a lease of {LEASE_S:.0f} s, at worst", f"{max(times):.2f} s", f"≤ {LEASE_S + 2:.0f} s")


async def memory(link: RedisServer, store: RedisStore, server: redis.OwnRedis, folder: Path) -> None:
    async def used_bytes() -> int:
        (info,) = await link.ask((b"INFO", b"memory"))
        return int(info.split(b"used_memory:")[1].split(b"\r")[0])

    before = await used_bytes()
    for _ in range(1_000):
        await store.create(link, str(folder))
    print_row("memory of a session that was never used", f"{(await used_bytes() - before) / 1_000 / 1024:.1f} KiB")
    workers = Workers(server, folder, 1)
    try:
        before = await used_bytes()
        id = await store.create(link, str(folder))
        for n in range(LINES):
            await store.submit(
                link, id, {"id": f"{n}", "type": "line", "text": "a line of some words"}, needs_room=False
            )
        await all_done(link)
        growth = await used_bytes() - before
        print_row(f"memory of a session with {LINES:,} lines that were answered", f"{growth / 1024:.0f} KiB")
    finally:
        workers.kill()


async def main() -> None:
    with tempfile.TemporaryDirectory() as name, redis.own_redis(Path(name) / "redis") as server:
        folder, store = Path(name), RedisStore(server.address)
        iterations(server.address)
        if "--cpu" in sys.argv:
            return
        async with store.connect() as link:
            await submits(link, store)
            await throughput(link, store, server, folder)
            await takeover(link, store, server, folder)
            await memory(link, store, server, folder)


if __name__ == "__main__":
    trio.run(main)
