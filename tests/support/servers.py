"""MCP servers for tests: the program ``hostile_server.py``, and the log of its requests."""

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
from chain.tools.mcp import servers as mcp_servers
from chain.tools.mcp.servers import LaunchEnvironment, Servers
from chain.tools.processes import guarded
from chain.tools.processes.guarded import Guard

from .contexts import tool_context
from .processes import pids_with, wait_until

PROGRAM = Path(__file__).parent / "hostile_server.py"


def remove_time_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the timeouts of servers, so that no test depends on their speed. Imports the slow client of ``mcp``."""
    from chain.tools.mcp import connection

    for module, limits in {
        mcp_servers: ("FIRST_S", "LIST_S", "WHY_S"),
        connection: ("START_S",),
        guarded: ("GONE_S",),
    }.items():
        for limit in limits:
            monkeypatch.setattr(module, limit, math.inf)


def entry_of(log: Path, *acts: str) -> dict[str, Any]:
    """Return the configuration of ``hostile_server.py`` with these acts. It logs its requests to a file."""
    return {"command": sys.executable, "args": ["-S", str(PROGRAM), str(log), *acts]}


def server(entry: dict[str, Any], name: str = "h", *, is_found: bool = False) -> ToolServer:
    """Return the server that this entry of a configuration defines."""
    return read_server(name, yamlfile.parse(json.dumps(entry), "test.yaml"), is_found=is_found)


def hostile_server(log: Path, *acts: str, name: str = "h", trust_hints: bool = False) -> ToolServer:
    """Return the server ``hostile_server.py`` with these acts."""
    return server({**entry_of(log, *acts), "trust_hints": trust_hints}, name)


def log_rows(log: Path) -> list[str]:
    """Return the rows of a server's log: the received methods and the started processes."""
    return log.read_text().splitlines() if log.exists() else []


async def until_logged(log: Path, row: str) -> None:
    """Wait until the log has a row."""
    await wait_until(lambda: row in log_rows(log))


def daemon_pids(log: Path) -> list[int]:
    """Return the pids of all processes that the server has started. They try to outlive it."""
    return [int(row.removeprefix("left ")) for row in log_rows(log) if row.startswith("left ")]


def live_daemons(log: Path) -> list[int]:
    """Return the pids of those processes that still run."""
    return [pid for pid in daemon_pids(log) if Path(f"/proc/{pid}").exists()]


def server_pids(log: Path) -> list[int]:
    """Return the pids of the server that writes this log and of its daemons."""
    return pids_with(str(log), "cmdline")


class RunningServers:
    """Servers that run without a session, and their notices. Names of tools are without ``mcp__``."""

    def __init__(self, servers: Servers, notices: list[str], workspace: Path) -> None:
        self.manager = servers
        self.notices = notices
        self.workspace = workspace

    async def tools(self) -> list[str]:
        offered = await self.manager.offer()
        return [tool.name.removeprefix("mcp__") for tool in offered.tools]

    async def call(self, tool: str, **input: Any) -> str:
        """Call a tool and return the text of its result. Raise ``ToolError`` for an error."""
        server, _, name = tool.partition("__")
        output = await self.manager.by_name[server].call(name, tool_context(self.workspace), input)
        if output.is_error:
            raise ToolError(output.text)
        return output.text


@asynccontextmanager
async def run_servers(workspace: Path, *servers: ToolServer) -> AsyncIterator[RunningServers]:
    """Yield these servers, which run until the end of the block."""
    guard, notices = Guard(), list[str]()
    folder, environ = workspace / "servers", dict(os.environ)
    environment = LaunchEnvironment(guard, workspace, folder, environ, environ, frozenset())
    manager = Servers(servers, environment, notices.append)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(manager.run)
            yield RunningServers(manager, notices, workspace)
            manager.end()
    finally:
        with trio.CancelScope(shield=True):
            await guard.close()
