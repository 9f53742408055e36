"""Servers that flood a connection delay no key, and memory stays bounded. Times are CPU time of this process."""

from __future__ import annotations

import gc
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from support.servers import remove_time_limits, run_servers, server

from chain.errors import ToolError

_no_time_limits = pytest.fixture(autouse=True)(remove_time_limits)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # streams that are cut
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

PROGRAM = Path(__file__).parents[2] / "support" / "flooding_server.py"
FLOOD_S = 1.0
MAX_DELAY_S = 0.1
"""CPU time that this process may use between two looks at the keyboard: more would be noticed."""
MAX_GROWTH = 200 * 2**20
"""Bytes. Several messages of the largest size fit, but not the flood of a second."""

# What flooding_server.py sends.
ACTS = ["text", "escapes", "quotes", "wide", "lists", "objects", "results", "requests", "progress", "junk"]
STDIO, HTTP = [("stdio", act) for act in ACTS], [("http", act) for act in (*ACTS, "chunks")]


def resident_bytes() -> int:
    _, resident_pages, *_ = Path("/proc/self/statm").read_text().split()
    return int(resident_pages) * resource.getpagesize()


@pytest.fixture(params=[*STDIO, *HTTP], ids="-".join)
def flooding_server(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """Return the configuration of a server that floods the connection when it is called."""
    transport, act = request.param
    argv = [sys.executable, "-S", str(PROGRAM), transport, act]
    if transport == "stdio":
        yield {"command": argv[0], "args": argv[1:]}
        return
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as web:
        assert web.stdout is not None
        yield {"url": f"http://127.0.0.1:{int(web.stdout.readline())}/mcp"}
        web.kill()


async def test_flood_delays_no_key_and_is_not_stored(tmp_path: Path, flooding_server: dict[str, Any]) -> None:
    gc.collect()
    gc.freeze()  # a collection that walks the objects of other tests takes as long as the allowed delay
    bytes_before = resident_bytes()
    delays, sizes = list[float](), list[int]()

    async def call() -> None:
        with suppress(ToolError):
            await servers.call("h__t")

    async with run_servers(tmp_path, server(flooding_server)) as servers:
        await servers.tools()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            end, last = trio.current_time() + FLOOD_S, time.process_time()
            while trio.current_time() < end:
                await trio.sleep(0.001)  # another task, such as the one that reads keys, runs after this time
                delays.append(time.process_time() - last)
                sizes.append(resident_bytes())
                last = time.process_time()
            nursery.cancel_scope.cancel()  # Esc
        delays.append(time.process_time() - last)
    assert max(delays) < MAX_DELAY_S
    assert max(sizes) - bytes_before < MAX_GROWTH
