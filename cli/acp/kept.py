"""The sessions that are kept, as an editor lists them, a page at a time."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from chain.app import sessions
from chain.errors import SessionError
from cli.acp import params
from cli.acp.messages import NOT_FOUND, RpcError
from cli.acp.tool_calls import one_row

PAGE = 50
"""Sessions of one answer."""


def page(state: Path, cwd: Path | None, cursor: str) -> Mapping[str, Any]:
    """The sessions of a workspace, or of all, in which something was asked, the one that changed last first.

    A cursor is how many come before the page. Raises ``RpcError`` for one that is none.
    """
    if cursor and not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 10):
        raise params.wrong("cursor is none of those that were given")
    begin = int(cursor or 0)
    here = None if cwd is None else os.path.realpath(cwd)
    found = [
        each
        for each in sessions.every(state)
        if each.query and each.workspace and (here is None or os.path.realpath(each.workspace) == here)
    ]
    shown = [_info(each) for each in found[begin : begin + PAGE]]
    more = {"nextCursor": str(begin + PAGE)} if len(found) > begin + PAGE else {}
    return {"sessions": shown, **more}


def find(state: Path, id: str, workspace: Path) -> sessions.Summary:
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
        "title": one_row(session.query),
        "updatedAt": changed,
        "_meta": {"chain": {"runs": session.runs, "isOpen": session.is_open}},
    }
