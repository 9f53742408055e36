"""Creates the MCP servers of a session, and starts them once for ``chain check``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import trio

from chain.app.toolbox import shell_rules
from chain.config.load import Settings
from chain.config.servers import ToolServer
from chain.tools.mcp.running import Servers, ServerView, Surroundings
from chain.tools.processes.guarded import Guard


def running_servers(
    settings: Settings,
    servers: Sequence[ToolServer],
    guard: Guard,
    workspace: Path,
    state: Path,
    notice: Callable[[str], None],
) -> Servers:
    """Return the servers of a session. None of them is started."""
    env = shell_rules(settings).environment(settings.environ)
    around = Surroundings(guard, workspace, state / "servers", settings.environ, env, settings.key_variables)
    return Servers(servers, around, notice)


async def servers_started(
    settings: Settings, servers: Sequence[ToolServer], workspace: Path, state: Path
) -> tuple[Sequence[ServerView], Sequence[str]]:
    """Start servers and end them. Return the state of each, and notes on tools that were left out."""
    guard, notes = Guard(), list[str]()
    running = running_servers(settings, servers, guard, workspace, state, notes.append)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(running.run)
            await running.settled()
            views = running.views
            running.end()
    finally:
        await guard.close()
    return views, [*notes, *running.left_out]
