"""Asks at the terminal whether to trust a configuration that was merely found.

It is asked before there is an editor, of a terminal that edits lines itself. What was typed before the question was
there is no answer to it: it is kept for the editor, as what is typed ahead always is.
"""

from __future__ import annotations

from chain.config.load import Settings
from cli.screen import tty
from cli.show import trust_rows
from cli.terminal.plain_question import ask_plainly, show_plainly


def ask(settings: Settings, *, ascii: bool) -> tuple[bool, bytes]:
    """Whether the user trusts the file, where Enter is a no, and what was typed before they were asked."""
    assert settings.file is not None
    rows = trust_rows.question(settings.file, settings.asked, tty.size()[0])
    with tty.quiet() as typed_ahead:
        show_plainly(rows, ascii=ascii)
        typed = typed_ahead()
    while True:
        answer = ask_plainly(trust_rows.ASKING)
        if answer is None:
            return False, typed
        if (said := answer.strip().casefold()) in ("y", "yes", "n", "no", ""):
            return said in ("y", "yes"), typed


def say_declined(settings: Settings, instead: Settings, *, ascii: bool) -> None:
    """Say that the file is not used, and what holds instead of it."""
    assert settings.file is not None
    show_plainly(trust_rows.declined(settings.file, instead.file, tty.size()[0]), ascii=ascii)
