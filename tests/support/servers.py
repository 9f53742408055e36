"""MCP servers for tests: a program that misbehaves, and the log of its requests."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from chain.config import yamlfile
from chain.config.servers import ToolServer, read_server
from chain.errors import ToolError
from chain.tools.mcp import servers as life
from chain.tools.mcp.servers import LaunchEnvironment, Servers
from chain.tools.processes import guarded
from chain.tools.processes.guarded import Guard

from .processes import until_async
from .steered import tool_context

PROGRAM = Path(__file__).parent / "hostile_server.py"


def without_time_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the timeouts of servers, so that no test depends on their speed. Imports the slow client of ``mcp``."""
    from chain.tools.mcp import connection

    for module, limits in {
        life: ("FIRST_S", "LIST_S", "WHY_S"),
        connection: ("START_S",),
        guarded: ("GONE_S",),
    }.items():
        for limit in limits:
            monkeypatch.setattr(module, limit, math.inf)


def entry_of(log: Path, *acts: str) -> dict[str, Any]:
    """Return the entry of a server that misbehaves in these ways, and logs its requests to a file."""
    return {"command": sys.executable, "args": ["-S", str(PROGRAM), str(log), *acts]}


def server(entry: dict[str, Any], name: str = "h", *, is_found: bool = False) -> ToolServer:
    """Return the server of an entry."""
    return read_server(name, yamlfile.parse(json.dumps(entry), "test.yaml"), is_found=is_found)


def hostile(log: Path, *acts: str, name: str = "h", trust_hints: bool = False) -> ToolServer:
    """Return a server that misbehaves."""
    return server({**entry_of(log, *acts), "trust_hints": trust_hints}, name)


def heard(log: Path) -> list[str]:
    """Return the rows of the log."""
    return log.read_text().splitlines() if log.exists() else []


async def until_heard(log: Path, row: str, times: int = 1) -> None:
    """Wait until the log has a row this many times."""
    await until_async(lambda: heard(log).count(row) >= times)


def left_by(log: Path) -> list[int]:
    """Return the live processes that the server has started."""
    pids = [int(row.split()[1]) for row in heard(log) if row.startswith("left ")]
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


class Running:
    """Servers that run without a session, and their notices."""

    def __init__(self, servers: Servers, notices: list[str], workspace: Path) -> None:
        self.servers = servers
        self.notices = notices
        self.workspace = workspace

    async def tools(self) -> list[str]:
        """Return the offered tools, without ``mcp__``."""
        offered = await self.servers.offer()
        return [tool.name.removeprefix("mcp__") for tool in offered.tools]

    async def call(self, tool: str, **input: Any) -> str:
        """Return the text of a result. Raise ``ToolError`` for an error."""
        server, _, name = tool.partition("__")
        output = await self.servers.by_name[server].call(name, tool_context(self.workspace), input)
        if output.is_error:
            raise ToolError(output.text)
        return output.text


@asynccontextmanager
async def running(workspace: Path, *servers: ToolServer) -> AsyncIterator[Running]:
    """Run servers for the duration of the block."""
    guard, notices = Guard(), list[str]()
    folder, environ = workspace / "servers", dict(os.environ)
    environment = LaunchEnvironment(guard, workspace, folder, environ, environ, frozenset())
    made = Servers(servers, environment, notices.append)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.run)
            yield Running(made, notices, workspace)
            made.end()
    finally:
        with trio.CancelScope(shield=True):
            await guard.close()
