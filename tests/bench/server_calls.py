"""CPU of a call of a server's tool, ours and that of the bare client: ``server_calls.py ours|bare COUNT FOLDER``.

Prints the seconds of CPU of COUNT calls, of this process alone: the server is another one.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent), str(HERE.parent)]

import trio  # noqa: E402 - the path comes first
from support.servers import context, entry_of, hostile, running  # noqa: E402

WARM = 50


async def ours(count: int, folder: Path) -> float:
    """Calls as a session makes them, under the guard."""
    async with running(folder, hostile(folder / "log")) as made:
        await made.tools()
        at = context(folder)

        async def call(n: int) -> None:
            for _ in range(n):
                await made.servers.by_name["h"].call("echo", at, {"text": "hello"})

        await call(WARM)
        begun = time.process_time()
        await call(count)
        return time.process_time() - begun


async def bare(count: int, folder: Path) -> float:
    """The client's own transport and ``call_tool``."""
    from mcp.client.session import ClientSession
    from mcp.client.stdio import StdioServerParameters, stdio_client

    entry = entry_of(folder / "log")
    parameters = StdioServerParameters(command=entry["command"], args=entry["args"])
    async with stdio_client(parameters) as streams, ClientSession(*streams) as session:
        await session.initialize()
        await session.list_tools()

        async def call(n: int) -> None:
            for _ in range(n):
                await session.call_tool("echo", {"text": "hello"})

        await call(WARM)
        begun = time.process_time()
        await call(count)
        return time.process_time() - begun


if __name__ == "__main__":
    seconds = trio.run({"ours": ours, "bare": bare}[sys.argv[1]], int(sys.argv[2]), Path(sys.argv[3]))
    sys.stdout.write(f"{seconds}\n")
