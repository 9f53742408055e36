"""The signs and colours of rows. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable

Sign = Callable[[str], str]
"""How a sign is written on this terminal."""

MINUS = "−"
"""Before how many lines of a file are removed."""

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


def written(sign: str, *, ascii: bool) -> str:
    """Return a sign of ours as this terminal shows it."""
    return _ASCII[sign] if ascii else sign


def in_ascii(text: str) -> str:
    """Return a text with ASCII signs for ours; what the user wrote stays."""
    return _SIGNS.sub(lambda found: _ASCII[found[0]], text)
