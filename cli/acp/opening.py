"""How the session of an editor is opened, new or gone on with, and the list of those that are kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chain.app import open_chain, sessions
from chain.chain import Chain
from chain.config.load import Settings, require_trust
from chain.errors import ConfigError, SessionError
from chain.threads import Threads
from chain.toolbox import tool_kinds
from cli.acp import params
from cli.acp.rpc import NOT_FOUND, RpcError
from cli.acp.shown_calls import as_title
from cli.door.server import side_door

if TYPE_CHECKING:
    from chain import Tool

_THREADS = Threads("editors")
"""For what reads files: a slow disk holds up nobody but who asks."""

PAGE = 50
"""Sessions of one answer."""


@dataclass(frozen=True, slots=True)
class Opener:
    """What the sessions of one process have in common. ``read_settings`` reads the configuration for a folder."""

    read_settings: Callable[[Path], Settings]
    state: Path
    tools: Sequence[Tool] = ()
    traces: Path | None = None
    environ: Mapping[str, str] = field(default_factory=dict)

    async def find(self, workspace: Path, id: str | None = None) -> Opening:
        """A new session, or the one with this id. Raises ``UserError``, and ``RpcError`` if it is not there."""
        return await _THREADS.run(partial(self._opening, workspace, id))

    async def list(self, workspace: Path | None, cursor: str) -> Mapping[str, Any]:
        """A page of those that are kept. Raises ``RpcError``."""
        return await _THREADS.run(partial(_page, self.state, workspace, cursor))

    def _opening(self, workspace: Path, id: str | None) -> Opening:
        kept = None if id is None else _find(self.state, id, workspace)
        settings = self.read_settings(workspace)
        try:
            require_trust(settings)
        except ConfigError as error:
            hint = "; or start chain in that folder once and say there that you trust it"
            raise ConfigError(f"{error.message}{hint}", file=error.file, line=error.line) from None
        return Opening(self, settings, workspace, kept)


@dataclass(frozen=True, slots=True)
class Opening:
    """A session that is about to be opened. ``kept`` is the one that goes on, ``None`` for a new one."""

    opener: Opener
    settings: Settings
    workspace: Path
    kept: sessions.Summary | None

    def open_door(self, chain: Chain) -> AbstractAsyncContextManager[str]:
        """Open its side door, and say why it cannot be."""
        return side_door(chain, self.opener.state, self.opener.environ)

    def open(self) -> AbstractAsyncContextManager[Chain]:
        """Open its chain. Raises ``UserError``."""
        return open_chain(
            self.settings,
            workspace=self.workspace,
            state=self.opener.state,
            tools=self.opener.tools,
            resume="" if self.kept is None else self.kept.id,
            interactive=True,
            traces=self.opener.traces,
        )

    @property
    def kinds(self) -> Mapping[str, str]:
        """The kinds of the tools that its agents may have, by name."""
        return tool_kinds(self.settings, self.opener.tools)


def _page(state: Path, cwd: Path | None, cursor: str) -> Mapping[str, Any]:
    """The kept sessions of a workspace or of all, the latest first, from the ``cursor``-th on. Raises ``RpcError``."""
    if cursor and not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 10):
        raise params.wrong("cursor is none of those that were given")
    begin = int(cursor or 0)
    here = None if cwd is None else os.path.realpath(cwd)
    found = [
        each
        for each in sessions.all_sessions(state)
        if each.query and each.workspace and (here is None or os.path.realpath(each.workspace) == here)
    ]
    shown = [_info(each) for each in found[begin : begin + PAGE]]
    more = {"nextCursor": str(begin + PAGE)} if len(found) > begin + PAGE else {}
    return {"sessions": shown, **more}


def _find(state: Path, id: str, workspace: Path) -> sessions.Summary:
    """The session with exactly this id, which works in this folder. Raises ``RpcError``."""
    try:
        found = sessions.find(state, id)
    except SessionError as error:
        raise RpcError(NOT_FOUND, str(error)) from None
    if found.id != id:
        raise RpcError(NOT_FOUND, f"there is no session {id!r:.60}; is it {found.id}?")
    before = Path(found.workspace)
    if found.workspace and before.is_dir() and before.resolve() != workspace.resolve():
        raise params.wrong(f"cwd is not the folder of the session, which is {before}")
    return found


def _info(session: sessions.Summary) -> Mapping[str, Any]:
    changed = datetime.fromtimestamp(session.changed, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return {
        "sessionId": session.id,
        "cwd": session.workspace,
        "title": as_title(session.query),
        "updatedAt": changed,
        "_meta": {"chain": {"runs": session.runs, "isOpen": session.is_open}},
    }
