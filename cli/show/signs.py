"""The signs and colours of rows. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable

Sign = Callable[[str], str]
"""A function that returns a sign, or its replacement on an ASCII terminal."""

MINUS = "−"
"""The sign before the number of removed lines."""

_ASCII = {
    "📤": ">",
    "⏳": "...",
    "⚡": "!",
    "🔔": "!",
    "⚠️": "!",
    "✓": "ok:",
    "✗": "failed:",
    "⏹": "stopped:",
    "⏸": "paused:",
    "▶": ">>",
    "◀": "<<",
    "●": "*",
    "»": ":",
    "→": "->",
    "↪": "->",
    "↩": "<-",
    "↻": "!",
    "⏭": ">>",
    "ℹ": "note:",
    "✂": "compacted:",
    "❓": "??",
    "[✓]": "[x]",
    "[✗]": "[-]",
    "[ ]": "[ ]",
    "…": "...",
    "·": "-",
    "│": "|",
    "≤": "<=",
    "≥": ">=",
    MINUS: "-",
}

_SIGNS = re.compile("|".join(re.escape(sign) for sign in sorted(_ASCII, key=len, reverse=True)))

SGR = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
"""The parameters of the SGR sequence of each style."""


def sign_for(sign: str, *, ascii: bool) -> str:
    """Return a sign, or its ASCII replacement if ``ascii``."""
    return _ASCII[sign] if ascii else sign


def to_ascii(text: str) -> str:
    """Return a text of this program with ASCII replacements for its signs. Letters and other signs do not change."""
    return _SIGNS.sub(lambda found: _ASCII[found[0]], text)
