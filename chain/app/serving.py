"""Wires the servers of a session, and for ``chain check`` starts those of a configuration to see what they have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import trio

from chain.app.toolbox import shell_rules
from chain.config.load import Settings
from chain.servers import ToolServer
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
    """The servers of a session in this workspace, none of which is started yet."""
    environ = settings.environ
    env = shell_rules(settings).environment(environ)
    around = Surroundings(guard, workspace, state / "servers", environ, env, settings.key_variables)
    return Servers(servers, around, notice)


async def servers_started(
    settings: Settings, servers: Sequence[ToolServer], workspace: Path, state: Path
) -> tuple[Sequence[ServerView], Sequence[str]]:
    """Start servers and end them; returns what each has or why it has nothing, and notes on what was left out."""
    guard, notes = Guard(), list[str]()
    running = running_servers(settings, servers, guard, workspace, state, notes.append)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(running.run)
            await running.settled()
            notes += running.left_out
            views = running.views
            running.end()
    finally:
        await guard.close()
    return views, notes
