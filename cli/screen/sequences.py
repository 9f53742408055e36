"""The escape sequences of terminals: keys, replies and reports that nobody has typed, and the clipboard. Pure."""

import re
from base64 import b64encode

ESC = "\x1b"

_CSI = r"\[(?:\[[@-~]|M[^\x00-\x1f]{3}|(?![M\[])[0-?]*[ -/]*[@-~]|(?:M[^\x00-\x1f]{0,2}|\[|[0-?]*[ -/]*)(?=[^ -~]))"
"""Also a key of the Linux console and an old mouse; the last alternative is one that a control character breaks off."""
_SS3 = r"O[0-9;]*(?:[@-~]|(?=[^ -~]))"
_STRING = r"[\]PX^_](?=[0-9!>$+|GlL])[^\x00-\x1f]*(?:\x07|\x1b\\|(?=[\x00-\x06\x08-\x1a\x1c-\x1f]|\x1b[^\\]))"
"""OSC, DCS and the like, which begin as the replies of terminals do."""
_ALT = r"[^\x1b\[O\]PX^_\x03]|[\]PX^_](?=[^0-9!>$+|GlL])"

KEY = re.compile(rf"[^\x1b]|\x1b(?:\x1b?(?:{_CSI}|{_SS3})|{_STRING}|{_ALT}|(?=\x1b[^\[O]|\x03))", re.S)
"""A character or a whole sequence, else the beginning of one. Before another Esc and before Ctrl-C, Esc is a key."""
LATE = re.compile(r"\[[0-?]*[ -/]*[@-~]")
"""The rest of a sequence whose Esc came alone, if a single read has it whole."""

MAX_COPIED = 74_994
"""Bytes that are copied: in base64, the 100 kB of a sequence that common terminals accept."""


def copyable(text: str) -> str:
    """Return as much of a text as can be copied."""
    return text.encode(errors="replace")[:MAX_COPIED].decode(errors="ignore")


def copy_sequence(text: str) -> str:
    """Return the sequence (OSC 52) by which a terminal puts a text on the clipboard."""
    return f"\x1b]52;c;{b64encode(copyable(text).encode()).decode()}\x07"
