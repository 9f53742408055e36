"""The CPU time of calls of an MCP server's tool: ``server_calls.py ours|bare COUNT FOLDER``.

It prints the seconds of COUNT calls of a session, or of the bare client, without the CPU time of the server.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent), str(HERE.parent)]

import trio  # noqa: E402 - the path comes first
from support.contexts import tool_context  # noqa: E402
from support.servers import entry_of, hostile_server, run_servers  # noqa: E402

WARM_UP = 50
INPUT = {"text": "hello"}


@asynccontextmanager
async def ours(folder: Path) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    """Yield a function that makes a call like a session, with the server under the guard."""
    async with run_servers(folder, hostile_server(folder / "log")) as servers:
        await servers.tools()
        at = tool_context(folder)
        yield lambda: servers.manager.by_name["h"].call("echo", at, INPUT)


@asynccontextmanager
async def bare(folder: Path) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    """Yield a function that makes a call with the client's own transport and ``call_tool``."""
    from mcp.client.session import ClientSession
    from mcp.client.stdio import StdioServerParameters, stdio_client

    entry = entry_of(folder / "log")
    parameters = StdioServerParameters(command=entry["command"], args=entry["args"])
    async with stdio_client(parameters) as streams, ClientSession(*streams) as session:
        await session.initialize()
        await session.list_tools()
        yield lambda: session.call_tool("echo", INPUT)


async def main(who: str, count: int, folder: Path) -> None:
    async with {"ours": ours, "bare": bare}[who](folder) as call:
        for _ in range(WARM_UP):
            await call()
        start = time.process_time()
        for _ in range(count):
            await call()
        sys.stdout.write(f"{time.process_time() - start}\n")


if __name__ == "__main__":
    trio.run(main, sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
