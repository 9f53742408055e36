"""The stored sessions of an editor, and the settings for opening a session. All methods block: they read files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chain import Tool
from chain.app import sessions
from chain.app.prompt_files import compaction_rules, prompt_file, system_prompt
from chain.app.toolbox import configured_tools, tool_groups
from chain.config.load import Settings, require_trust
from chain.errors import ConfigError, SessionError
from chain.text.modes import Mode
from chain.text.phrases import iso_time
from cli.acp import params
from cli.acp.rpc import NOT_FOUND, RpcError
from cli.acp.shown_calls import as_title

PAGE = 50
"""The maximum number of stored sessions in one answer to ``session/list``."""


@dataclass(frozen=True, slots=True)
class SessionOpener:
    """The parameters for opening sessions in this process. ``read_settings`` reads the configuration of a folder.

    The sessions are stored in the Redis at ``address``, or in the folder ``state`` if the address is empty.
    """

    read_settings: Callable[[Path], Settings]
    state: Path
    tools: Sequence[Tool] = ()
    traces: Path | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    address: str = ""
    mode: Mode | None = None
    """The mode of new sessions; ``None`` for the default mode."""
    is_kept: bool = True
    """Whether sessions are stored at all."""

    @property
    def store(self) -> sessions.Store:
        """The store of the sessions."""
        if not self.is_kept:
            return sessions.MemoryStore()
        return sessions.open_store(self.state, self.address)

    def settings_for(self, workspace: Path, id: str | None) -> Settings:
        """Return the settings for a new session, or for the stored session ``id``.

        Raise ``RpcError`` if the stored session is not found, or belongs to another folder. Raise ``UserError`` if the
        configuration is wrong or not trusted.
        """
        if id is not None:
            self._check_stored(id, workspace)
        settings = self.read_settings(workspace)
        try:
            require_trust(settings)
        except ConfigError as error:
            hint = "; or start chain in that folder and trust it there"
            raise ConfigError(f"{error.message}{hint}", file=error.file, line=error.line) from None
        return settings

    def check_chain(self, settings: Settings) -> None:
        """Raise ``UserError`` if the chain of these settings could not be opened."""
        chain = settings.chain()
        settings.model(chain.model).require_key()
        for read in (system_prompt, prompt_file, compaction_rules):
            read(settings, chain)
        configured_tools(settings, chain, self.tools, tool_groups(settings))

    def delete(self, id: str) -> None:
        """Delete the session with this whole id, if it exists. Raise ``SessionError`` if it cannot be deleted."""
        try:
            is_stored = self.store.whole_id(id) == id
        except SessionError:
            is_stored = False
        if is_stored:  # the protocol wants no error for a session that does not exist
            self.store.delete(id)

    def page(self, workspace: Path | None, cursor: str) -> Mapping[str, Any]:
        """Return a page of the stored sessions, the latest first.

        ``workspace`` selects a folder; ``None`` means all. ``cursor`` is the ``nextCursor`` of the previous page; empty
        for the first page. Raise ``RpcError`` if the cursor is malformed.
        """
        if cursor and not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 10):
            raise params.error("cursor is unknown")
        begin = int(cursor or 0)
        here = None if workspace is None else os.path.realpath(workspace)
        found = [
            each
            for each in self.store.summaries()
            if each.query and each.workspace and (here is None or os.path.realpath(each.workspace) == here)
        ]
        more = {"nextCursor": str(begin + PAGE)} if len(found) > begin + PAGE else {}
        return {"sessions": [_info(each) for each in found[begin : begin + PAGE]], **more}

    def _check_stored(self, id: str, workspace: Path) -> None:
        """Raise ``RpcError`` if no session has this whole id, or if its workspace is another existing folder."""
        try:
            found = self.store.find(id)
        except SessionError as error:
            raise RpcError(NOT_FOUND, str(error)) from None
        if found.id != id:
            raise RpcError(NOT_FOUND, f"there is no session {id!r:.60}; is it {found.id}?")
        before = Path(found.workspace)
        if found.workspace and before.is_dir() and before.resolve() != workspace.resolve():
            raise params.error(f"cwd is not the folder of the session, which is {before}")


def _info(session: sessions.Summary) -> Mapping[str, Any]:
    return {
        "sessionId": session.id,
        "cwd": session.workspace,
        "title": as_title(session.query),
        "updatedAt": iso_time(session.changed).replace("+00:00", "Z"),
        "_meta": {"chain": {"runs": session.runs, "isOpen": session.is_open}},
    }
