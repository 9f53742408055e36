"""Asks questions before the editor starts, in line mode: whether to trust files, and which session to resume."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from chain.config.commands import UntrustedCommand
from chain.config.load import Settings
from chain.config.servers import ToolServer
from chain.errors import SessionError, UserError
from chain.text.wording import pluralize
from cli.ending import at_immediate_exit
from cli.screen import tty
from cli.show import trust_rows
from cli.show.session_list import resolve_choice, session_rows
from cli.show.text_rows import NARROWEST, wrap_text
from cli.writing import try_to_write

QUESTION_ROWS = 4
"""The rows below the list of sessions that are reserved for a count of older sessions, the question and the answer."""

_KEYS = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[ -~])")
"""The sequences of keys such as the arrows, which are ignored in an answer."""

WHICH_SESSION = "Resume which session? (number or part of an id, Enter to cancel)"


def ask_which_session(state: Path, address: str, workspace: Path, *, ascii: bool) -> str | None:
    """Ask which session to resume. Return its id, or ``None`` after Enter. Raise ``UserError`` without any session."""
    from chain.app import sessions  # imported late, since questions of trust do not need it

    here = workspace.resolve()
    store = sessions.open_store(state, address)
    found = sessions.resumable_sessions(store, here)
    if not found:
        raise UserError(f"there is no stored session for {here}; chain sessions list shows those of other folders")
    (width, height), now = tty.size(), time.time()
    for count in range(len(found), 0, -1):
        shown = found[:count]
        rows = session_rows(shown, width, ascii=ascii, here=str(here), now=now, is_numbered=True)
        if len(rows) + QUESTION_ROWS <= height:
            break
    if older := len(found) - len(shown):
        rows.append(f"{pluralize(older, 'older session')}: chain sessions list")
    _show(rows, ascii=ascii)
    while answer := (_ask(WHICH_SESSION) or "").strip():
        try:
            return store.whole_id(resolve_choice(answer, shown))
        except SessionError as error:
            say(str(error), ascii=ascii)
    return None


def ask_for_trust(settings: Settings, *, ascii: bool) -> tuple[bool | None, bytes]:
    """Ask whether to trust the configuration file. Return the answer, and the bytes typed before the question.

    The answer is ``None`` for Enter. The caller passes the bytes to the editor.
    """
    assert settings.file is not None
    rows = trust_rows.question(settings.file, settings.untrusted_values, tty.size()[0])
    return _ask_yes_or_no(rows, trust_rows.TRUST_QUESTION, ascii=ascii)


def ask_for_server(server: ToolServer, *, ascii: bool) -> tuple[bool | None, bytes]:
    """Ask whether a server of the workspace may start. Return an answer and bytes, as ``ask_for_trust`` does."""
    return _ask_yes_or_no(trust_rows.server_question(server, tty.size()[0]), trust_rows.STARTING, ascii=ascii)


def ask_for_commands(commands: Sequence[UntrustedCommand], *, ascii: bool) -> tuple[bool | None, bytes]:
    """Ask whether to trust the workspace's commands. Return an answer and bytes, as ``ask_for_trust`` does."""
    rows = trust_rows.commands_question(commands, tty.size()[0])
    return _ask_yes_or_no(rows, trust_rows.TRUST_COMMANDS, ascii=ascii)


def _ask_yes_or_no(rows: Sequence[str], question: str, *, ascii: bool) -> tuple[bool | None, bytes]:
    # A SIGINT in between would leave the terminal without echo.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    with tty.line_mode_off() as read_typed_ahead:
        _show(rows, ascii=ascii)
        typed = read_typed_ahead()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    answers = {"": None, "y": True, "yes": True, "n": False, "no": False}
    while (answer := (_ask(question) or "").strip().casefold()) not in answers:
        pass
    return answers[answer], typed


def say_declined(settings: Settings, instead: Settings, *, ascii: bool) -> None:
    """Print that the file of ``settings`` is not used, and that the file of ``instead`` is used."""
    assert settings.file is not None
    _show(trust_rows.declined_rows(settings.file, instead.file, tty.size()[0]), ascii=ascii)


def say(text: str, *, ascii: bool) -> None:
    """Print a sentence, wrapped to the terminal's width."""
    _show(wrap_text(text, max(tty.size()[0], NARROWEST)), ascii=ascii)


def _show(rows: Sequence[str], *, ascii: bool) -> None:
    text = "".join(f"{row}\n" for row in rows)
    try_to_write(1, text.encode("ascii", "backslashreplace").decode() if ascii else text)


def _ask(question: str) -> str | None:
    """Show a question and return the typed line, empty after Esc; ``None`` at the end of input.

    Ask again if the line has only keys such as the arrows.
    """
    line = b""
    with (
        at_immediate_exit(lambda: try_to_write(1, "\n")),
        suppress(OSError),
        tty.interruptible_input() as wait,
    ):
        try_to_write(1, "\n".join(wrap_text(question, max(tty.size()[0] - 1, NARROWEST))) + " ")
        while not line.endswith(b"\n"):
            wait()
            if not (piece := os.read(0, 4096)):
                break
            line += piece
    if line.endswith(b"\x1b\n"):
        return ""
    if line.endswith(b"\n"):
        answer, keys = _KEYS.subn("", line.decode(errors="replace"))
        return answer if answer.strip() or not keys else _ask(question)
    try_to_write(1, "\n")
    return None
