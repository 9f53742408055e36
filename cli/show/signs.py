"""The signs and colours of rows. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable

Sign = Callable[[str], str]
"""Returns the form of a sign on this terminal."""

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
"""The parameters of the sequence for each style."""


def sign_for(sign: str, *, ascii: bool) -> str:
    """Return a sign as this terminal shows it."""
    return _ASCII[sign] if ascii else sign


def to_ascii(text: str) -> str:
    """Return a text with ASCII replacements for our signs. The user's text is not changed."""
    return _SIGNS.sub(lambda found: _ASCII[found[0]], text)
