"""Creates the MCP servers of a session, and starts them once for ``chain check``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import trio

from chain.app.toolbox import shell_rules
from chain.config.load import Settings
from chain.config.servers import ToolServer
from chain.tools.mcp.servers import LaunchEnvironment, Servers, ServerView
from chain.tools.processes.guarded import Guard


def create_servers(
    settings: Settings,
    servers: Sequence[ToolServer],
    guard: Guard,
    workspace: Path,
    state: Path,
    notice: Callable[[str], None],
) -> Servers:
    """Return the servers of a session without starting them. ``notice`` is called with messages for the user."""
    env, keys = shell_rules(settings).environment(settings.environ), settings.key_variables
    environment = LaunchEnvironment(guard, workspace, state / "servers", settings.environ, env, keys)
    return Servers(servers, environment, notice)


async def try_servers(
    settings: Settings, servers: Sequence[ToolServer], workspace: Path, state: Path
) -> Sequence[ServerView]:
    """Start servers, end them, and return the state of each."""
    guard = Guard()
    running = create_servers(settings, servers, guard, workspace, state, lambda text: None)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(running.run)
            await running.wait_settled()
            views = running.views
            running.end()
    finally:
        await guard.close()
    return views
