"""What those cost who watch a run that streams: ``python watching.py URL ROUNDS WATCHERS...``.

It prints a list: for each round and each number of watchers the seconds that the run took, the CPU seconds that it cost
the chain's process, and its events. The chain and those who watch it, whom the chain must not have started, are
processes of their own, ``watching.py chain URL`` and ``watching.py watch SOCKET WATCHERS``. All runs are of one chain,
and the numbers of watchers take turns.
"""

from __future__ import annotations

import json
import selectors
import socket
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from cli.door import sockets

if TYPE_CHECKING:
    from chain.chain import Chain

_CHUNK = 65_536
_WATCH = b'{"type":"watch"}\n{"type":"drop","id":"-"}\n'
"""The drop is an error, which says that the watch was done."""


# ---- the chain


async def chain_process(url: str) -> None:
    """Do a run for each line of the input."""
    import trio
    from workload import ready_chain

    from cli.door.server import side_door

    with TemporaryDirectory() as folder:
        async with ready_chain(Path(folder), url, 1) as chain, side_door(chain, Path(folder), {}) as problem:
            assert not problem
            say(str(Path(folder, sockets.FALLBACK, chain.session_id)))
            told: list[object] = []
            chain.listen(told.append)
            while await trio.to_thread.run_sync(sys.stdin.readline):
                told.clear()
                say(json.dumps([*await one_run(chain), len(told)]))


async def one_run(chain: Chain) -> tuple[float, float]:
    """The seconds and the CPU seconds of a run."""
    from workload import run  # those who watch do without what takes a second to import

    begun, used = time.perf_counter(), time.process_time()
    await run(chain)
    return time.perf_counter() - begun, time.process_time() - used


# ---- those who watch


def watch_process(path: Path, count: int) -> None:
    """Watch until each has heard of a result."""
    waiting = selectors.DefaultSelector()
    for _ in range(count):
        client = sockets.connect(path)
        client.sendall(_WATCH)
        read_until(client, b'"type":"error"')
        waiting.register(client, selectors.EVENT_READ, bytearray())
    say("ready")
    while waiting.get_map():
        for key, _ in waiting.select():
            assert isinstance(key.fileobj, socket.socket)
            chunk = key.fileobj.recv(_CHUNK)
            assert chunk, "it was cut off"
            key.data[:-20] = b""
            key.data.extend(chunk)
            if b'"type":"result"' in key.data:
                waiting.unregister(key.fileobj)
                key.fileobj.close()


def read_until(client: socket.socket, what: bytes) -> None:
    found = b""
    while what not in found:
        found += client.recv(_CHUNK)


# ---- both


def measure(url: str, rounds: int, counts: list[int]) -> list[list[list[float]]]:
    """The figures of all runs."""
    found = []
    with started("chain", url) as chain:
        path = hear(chain)
        for warm in (True, *[False] * rounds):
            figures = [watched(chain, path, count) for count in counts]
            if not warm:
                found.append(figures)
        assert chain.stdin is not None
        chain.stdin.close()
    return found


def watched(chain: subprocess.Popen[str], path: str, count: int) -> list[float]:
    """The figures of a run that so many watch."""
    with started("watch", path, str(count)) as watchers:
        hear(watchers)
        assert chain.stdin is not None
        chain.stdin.write("run\n")
        chain.stdin.flush()
        figures: list[float] = json.loads(hear(chain))
    assert watchers.returncode == 0
    return figures


def started(*arguments: str) -> subprocess.Popen[str]:
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, __file__, *arguments], **pipes)


def hear(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["chain", url]:
            import trio

            trio.run(chain_process, url)
        case ["watch", path, count]:
            watch_process(Path(path), int(count))
        case [url, rounds, *counts]:
            say(json.dumps(measure(url, int(rounds), [int(each) for each in counts])))
