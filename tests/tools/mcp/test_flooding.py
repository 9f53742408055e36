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
from support.servers import running, server, without_time_limits

from chain.errors import ToolError

_patient = pytest.fixture(autouse=True)(without_time_limits)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # streams that are cut
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

PROGRAM = Path(__file__).parents[2] / "support" / "flooding_server.py"
FLOOD_S = 1.0
MAX_DELAY_S, MAX_GROWTH = 0.1, 200 * 2**20
ACTS = ["text", "escapes", "quotes", "wide", "lists", "objects", "results", "asks", "reports", "junk"]


def memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.fixture
def flooding(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """The entry of a flooding server."""
    transport, act = request.param
    argv = [sys.executable, "-S", str(PROGRAM), transport, act]
    if transport == "stdio":
        yield {"command": argv[0], "args": argv[1:]}
        return
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as web:
        assert web.stdout is not None
        yield {"url": f"http://127.0.0.1:{int(web.stdout.readline())}/mcp"}
        web.kill()


CASES = [*(("stdio", act) for act in ACTS), *(("http", act) for act in (*ACTS, "chunks"))]


@pytest.mark.parametrize("flooding", CASES, indirect=True, ids="-".join)
async def test_flood_delays_no_key_and_is_not_stored(tmp_path: Path, flooding: dict[str, Any]) -> None:
    gc.collect()
    gc.freeze()  # a collection that walks the objects of other tests takes as long as the allowed delay
    delays, sizes = list[float](), [memory()]

    async def call() -> None:
        with suppress(ToolError):
            await made.call("h__t")

    async with running(tmp_path, server(flooding)) as made:
        await made.tools()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            until, last = trio.current_time() + FLOOD_S, time.process_time()
            while trio.current_time() < until:
                await trio.sleep(0.001)  # as a key that comes now
                delays.append(time.process_time() - last)
                sizes.append(memory())
                last = time.process_time()
            nursery.cancel_scope.cancel()  # Esc
        delays.append(time.process_time() - last)
    assert max(delays) < MAX_DELAY_S
    assert max(sizes) - sizes[0] < MAX_GROWTH
