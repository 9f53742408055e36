"""Asks at the terminal which of the earlier sessions goes on."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

from chain import sessions
from chain.errors import SessionError, UserError
from cli.screen import tty
from cli.show.session_list import chosen, session_rows
from cli.show.signs import written
from cli.terminal.plain_question import ask_plainly, show_plainly

ASKING = "Which one goes on? Its number, or the beginning or end of an id; Enter for none: "


def ask_which(state: Path, workspace: Path, *, ascii: bool) -> str | None:
    """The id that the user chose, ``None`` if they chose none. Raises ``UserError`` where there is no session."""
    here = workspace.resolve()
    found = sessions.resumable(state, here)
    if not found:
        raise UserError(f"no session of {here} is kept; chain sessions list shows those of other folders")
    sign, width = partial(written, ascii=ascii), tty.size()[0]
    rows = session_rows(found, width, sign, here=str(here), home="", now=time.time(), is_numbered=True)
    show_plainly(rows, ascii=ascii)
    while answer := (ask_plainly(ASKING) or "").strip():
        try:
            return sessions.whole_id(state, chosen(answer, found))
        except SessionError as error:
            show_plainly([str(error)], ascii=ascii)
    return None
