"""Decides which MCP servers may start: those of the configuration, and those of a workspace that the user approved.

An approval is stored for the workspace and a digest of the server's entry: a changed entry needs a new approval.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from chain.config import trust
from chain.config.load import Settings
from chain.config.servers import FILE, START_S, ToolServer, find_servers
from chain.errors import ConfigError, did_you_mean


@dataclass(frozen=True, slots=True)
class FoundServers:
    """The ``allowed`` servers, the ``unasked`` ones, which still need the user's approval, and notes on all others."""

    allowed: tuple[ToolServer, ...] = ()
    unasked: tuple[ToolServer, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def notes_unattended(self) -> tuple[str, ...]:
        """The notes, including those on unapproved servers, for a session in which no one can approve them."""
        names = [server.name for server in self.unasked]
        unasked = (
            f"{FILE} names the server {name}, which was not started; allow it with --mcp {name}" for name in names
        )
        return (*self.notes, *unasked)


def servers_of(settings: Settings, workspace: Path, state: Path, named: Collection[str] = ()) -> FoundServers:
    """Return the servers of a session in this workspace. Servers in ``named`` need no approval.

    Raise ``ConfigError`` if ``named`` has a name that no server has, or if the workspace is not a folder.
    """
    if not workspace.is_dir():
        raise ConfigError("the workspace is not a folder; give one that exists with --workspace", file=workspace)
    own, wishes = settings.servers, settings.found_servers
    workspace = workspace.resolve()
    found, notes = find_servers(workspace)
    known = {server.name: server for server in (*found, *own)}
    for name in named:
        if name not in known:
            all_known = f"the servers are {', '.join(known)}" if known else f"{FILE} defines no servers"
            why = "; ".join(notes) or did_you_mean(name, known, all_known)
            raise ConfigError(f"flag --mcp: there is no server {name!r:.60}; {why}")
    allowed, unasked, refused = list(own), list[ToolServer](), list[str]()
    for server in found:
        is_named = server.name in named
        if known[server.name] is not server or (wishes.get(server.name) is False and not is_named):
            continue
        if is_named or wishes.get(server.name):
            allowed.append(replace(server, is_named=True))
        elif trust.is_trusted(_answer(server, workspace, "yes"), state):
            allowed.append(server)
        elif trust.is_trusted(_answer(server, workspace, "no"), state):
            refused.append(f"you denied the server {server.name} of {FILE}; start it with --mcp {server.name}")
        else:
            unasked.append(server)
    for n, server in enumerate(allowed):
        if server.name in named:  # the first run waits for a server that the user named
            allowed[n] = replace(server, start_s=max(server.start_s or 0, START_S))
    return FoundServers(tuple(allowed), tuple(unasked), (*notes, *refused))


def remember_answer(server: ToolServer, workspace: Path, state: Path, *, is_allowed: bool) -> None:
    """Store whether a found server may start. Raise ``UserError`` if the answer cannot be stored."""
    trust.remember(_answer(server, workspace.resolve(), "yes" if is_allowed else "no"), state)


def _answer(server: ToolServer, workspace: Path, answer: str) -> str:
    return f"{answer}-{server.digest(workspace)}"
