"""Asks at the terminal whether to trust a configuration that was merely found.

It is asked before there is an editor, of a terminal that edits lines itself. What was typed before the question was
there is no answer to it: it is kept for the editor, as what is typed ahead always is.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from chain.config.load import Settings
from cli.screen import tty
from cli.show import trust_rows
from cli.writing import write_all


def ask(settings: Settings, *, ascii: bool) -> tuple[bool, bytes]:
    """Whether the user trusts the file, where Enter is a no, and what was typed before they were asked."""
    assert settings.file is not None
    rows = trust_rows.question(settings.file, settings.asked, tty.size()[0])
    with tty.quiet() as typed_ahead:
        _write(rows, ascii=ascii)
        typed = typed_ahead()
    while True:
        try:
            _write_text(trust_rows.ASKING)
            answer = _read_line()
        except KeyboardInterrupt:
            _write_text("\n")
            raise
        if answer is None:
            _write_text("\n")
            return False, typed
        if answer.strip().casefold() in ("y", "yes"):
            return True, typed
        if answer.strip().casefold() in ("", "n", "no"):
            return False, typed


def say_declined(settings: Settings, instead: Settings, *, ascii: bool) -> None:
    """Say that the file is not used, and what holds instead of it."""
    assert settings.file is not None
    _write(trust_rows.declined(settings.file, instead.file, tty.size()[0]), ascii=ascii)


def _read_line() -> str | None:
    line = b""
    while not line.endswith(b"\n"):
        try:
            piece = os.read(0, 4096)
        except OSError:
            return None
        if not piece:
            return None
        line += piece
    return line.decode(errors="replace")


def _write(rows: Sequence[str], *, ascii: bool) -> None:
    text = "".join(f"{row}\n" for row in rows)
    _write_text(text.encode("ascii", "backslashreplace").decode() if ascii else text)


def _write_text(text: str) -> None:
    with suppress(OSError):
        write_all(1, text.encode(errors="replace"))
