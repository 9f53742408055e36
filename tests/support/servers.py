"""Servers of tools for tests: ours that misbehaves, and what it has heard."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from chain.config import yamlfile
from chain.config.servers import ToolServer, read_server
from chain.errors import ToolError
from chain.plan import Plan
from chain.tools.mcp import servers as life
from chain.tools.mcp.servers import LaunchEnvironment, Servers
from chain.tools.processes import guarded
from chain.tools.processes.guarded import Guard
from chain.tools.tool import ToolContext

from .processes import until_async
from .steered import Steered

PROGRAM = Path(__file__).parent / "hostile_server.py"


def without_time_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for servers as long as it takes: how fast they start, answer and end decides nothing.

    This imports the client of ``mcp``, too, which takes long.
    """
    from chain.tools.mcp import connection

    for module, limits in {
        life: ("FIRST_S", "LIST_S", "WHY_S"),
        connection: ("START_S",),
        guarded: ("GONE_S",),
    }.items():
        for limit in limits:
            monkeypatch.setattr(module, limit, math.inf)


def entry_of(log: Path, *acts: str) -> dict[str, Any]:
    """The entry of a server that misbehaves so, and writes what it hears to a file."""
    return {"command": sys.executable, "args": ["-S", str(PROGRAM), str(log), *acts]}


def server(entry: dict[str, Any], name: str = "h", *, is_found: bool = False) -> ToolServer:
    """A server by its entry."""
    return read_server(name, yamlfile.parse(json.dumps(entry), "test.yaml"), is_found=is_found)


def hostile(log: Path, *acts: str, name: str = "h", trust_hints: bool = False) -> ToolServer:
    """One that misbehaves."""
    return server({**entry_of(log, *acts), "trust_hints": trust_hints}, name)


def heard(log: Path) -> list[str]:
    """What it has heard, row by row."""
    return log.read_text().splitlines() if log.exists() else []


async def until_heard(log: Path, row: str, times: int = 1) -> None:
    """Wait until it has heard it so often."""
    await until_async(lambda: heard(log).count(row) >= times)


def left_by(log: Path) -> list[int]:
    """The processes that it has started and that live."""
    pids = [int(row.split()[1]) for row in heard(log) if row.startswith("left ")]
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def context(workspace: Path, report: Callable[[str], None] = lambda text: None, **more: Any) -> ToolContext:
    """What a call has."""
    return ToolContext(workspace, Plan(), "call_1", Steered(), report, **more)


class Running:
    """Servers that run without a session, and what they have told."""

    def __init__(self, servers: Servers, notices: list[str], workspace: Path) -> None:
        self.servers = servers
        self.notices = notices
        self.workspace = workspace

    async def tools(self) -> list[str]:
        """The tools that they offer, without ``mcp__``."""
        offered = await self.servers.offer()
        return [tool.name.removeprefix("mcp__") for tool in offered.tools]

    async def call(self, tool: str, report: Callable[[str], None] = lambda text: None, **input: Any) -> str:
        """The text of what a call gives back."""
        server, _, name = tool.partition("__")
        output = await self.servers.by_name[server].call(name, context(self.workspace, report), input)
        if output.is_error:
            raise ToolError(output.text)
        return output.text


@asynccontextmanager
async def running(workspace: Path, *servers: ToolServer) -> AsyncIterator[Running]:
    """Start servers, and end them."""
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
