"""Questions before the editor is up, at a terminal in line mode: trust, and which session to resume."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from chain.config.commands import UntrustedCommand
from chain.config.load import Settings
from chain.config.servers import ToolServer
from chain.errors import SessionError, UserError
from cli.ending import at_immediate_exit
from cli.screen import tty
from cli.show import trust_rows
from cli.show.session_list import resolve_choice, session_rows
from cli.show.text_rows import NARROWEST, in_rows
from cli.writing import try_to_write

WHICH_SESSION = "Resume which session? (number or part of an id, Enter to cancel)"


def ask_which(state: Path, address: str, workspace: Path, *, ascii: bool) -> str | None:
    """Ask which session to resume, and return its id; ``None`` if the user chose none.

    Raise ``UserError`` if there are none.
    """
    from chain.app import sessions  # imported late, since questions of trust do not need it

    here = workspace.resolve()
    store = sessions.open_store(state, address)
    found = sessions.resumable(store, here)
    if not found:
        raise UserError(f"there is no stored session for {here}; chain sessions list shows those of other folders")
    rows = session_rows(found, tty.size()[0], ascii=ascii, here=str(here), now=time.time(), is_numbered=True)
    _show(rows, ascii=ascii)
    while answer := (_ask(WHICH_SESSION) or "").strip():
        try:
            return store.whole_id(resolve_choice(answer, found))
        except SessionError as error:
            _show(in_rows(str(error), max(tty.size()[0], NARROWEST)), ascii=ascii)
    return None


def ask_for_trust(settings: Settings, *, ascii: bool) -> tuple[bool, bytes]:
    """Ask whether to trust the configuration file; Enter means no.

    Return the answer, and the bytes typed before the question.

    Those bytes do not answer the question. They are for the editor, like all that is typed ahead.
    """
    assert settings.file is not None
    rows = trust_rows.question(settings.file, settings.asked, tty.size()[0])
    is_trusted, typed = _ask_for_yes(rows, trust_rows.TRUST_QUESTION, ascii=ascii)
    return bool(is_trusted), typed


def _ask_for_yes(rows: Sequence[str], asking: str, *, ascii: bool) -> tuple[bool | None, bytes]:
    # A SIGINT in between would leave the terminal without echo.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    with tty.quiet() as typed_ahead:
        _show(rows, ascii=ascii)
        typed = typed_ahead()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    while True:
        said = (_ask(asking) or "").strip().casefold()
        if not said:
            return None, typed
        if said in ("y", "yes", "n", "no"):
            return said in ("y", "yes"), typed


def ask_for_server(server: ToolServer, *, ascii: bool) -> tuple[bool | None, bytes]:
    """Ask whether a server of the workspace may start, like ``ask_for_trust``; ``None`` means not this time."""
    return _ask_for_yes(trust_rows.server_question(server, tty.size()[0]), trust_rows.STARTING, ascii=ascii)


def ask_for_commands(commands: Sequence[UntrustedCommand], *, ascii: bool) -> tuple[bool, bytes]:
    """Ask whether to trust the commands of the workspace, like ``ask_for_trust``."""
    rows = trust_rows.commands_question(commands, tty.size()[0])
    is_trusted, typed = _ask_for_yes(rows, trust_rows.TRUST_COMMANDS, ascii=ascii)
    return bool(is_trusted), typed


def say_declined(settings: Settings, instead: Settings, *, ascii: bool) -> None:
    """Show that the file is not used, and which configuration is used instead."""
    assert settings.file is not None
    _show(trust_rows.declined_rows(settings.file, instead.file, tty.size()[0]), ascii=ascii)


def say(text: str, *, ascii: bool) -> None:
    """Show a sentence, wrapped to the terminal."""
    _show(in_rows(text, max(tty.size()[0], NARROWEST)), ascii=ascii)


def _show(rows: Sequence[str], *, ascii: bool) -> None:
    text = "".join(f"{row}\n" for row in rows)
    try_to_write(1, text.encode("ascii", "backslashreplace").decode() if ascii else text)


def _ask(asking: str) -> str | None:
    """Show ``asking`` and return the typed line, empty after Esc; ``None`` at the end of input."""
    line = b""
    with at_immediate_exit(lambda: try_to_write(1, "\n")), suppress(OSError), tty.signals_waking() as wait_for_input:
        try_to_write(1, "\n".join(in_rows(asking, max(tty.size()[0] - 1, NARROWEST))) + " ")
        while not line.endswith(b"\n"):
            wait_for_input()
            if not (piece := os.read(0, 4096)):
                break
            line += piece
    if line.endswith(b"\n"):
        return "" if line.endswith(b"\x1b\n") else line.decode(errors="replace")
    try_to_write(1, "\n")
    return None
