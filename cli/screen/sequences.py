"""Escape sequences of terminals: keys, replies, reports, and the clipboard. Pure."""

import re
from base64 import b64encode

ESC = "\x1b"

_CSI = r"\[(?:\[[@-~]|M[^\x00-\x1f]{3}|(?![M\[])[0-?]*[ -/]*[@-~]|(?:M[^\x00-\x1f]{0,2}|\[|[0-?]*[ -/]*)(?=[^ -~]))"
"""Matches CSI sequences: also those of the Linux console's keys and old mice, or cut off by a control character."""
_SS3 = r"O[0-9;]*(?:[@-~]|(?=[^ -~]))"
_STRING = r"[\]PX^_](?=[0-9!>$+|GlL])[^\x00-\x1f]*(?:\x07|\x1b\\|(?=[\x00-\x06\x08-\x1a\x1c-\x1f]|\x1b[^\\]))"
"""Matches OSC, DCS and similar sequences that start like replies of terminals."""
_ALT = r"[^\x1b\[O\]PX^_\x03]|[\]PX^_](?=[^0-9!>$+|GlL])"

KEY = re.compile(rf"[^\x1b]|\x1b(?:\x1b?(?:{_CSI}|{_SS3})|{_STRING}|{_ALT}|(?=\x1b[^\[O]|\x03))", re.S)
"""Matches a character, a sequence, or the start of a sequence that another key has cut off.

An Esc before another Esc or Ctrl-C is a key of its own."""
LATE = re.compile(r"\[[0-?]*[ -/]*[@-~]")
"""Matches the rest of a sequence whose Esc was read alone, if the whole rest is read at once."""

MAX_COPIED = 74_994
"""Maximum bytes of a copied text. Its sequence in base64 then has 100 kB, which common terminals accept."""


def copyable(text: str) -> str:
    """Return the start of a text, as much as a terminal can copy."""
    return text.encode(errors="replace")[:MAX_COPIED].decode(errors="ignore")


def copy_sequence(text: str) -> str:
    """Return the escape sequence (OSC 52) that puts a text on the terminal's clipboard."""
    return f"\x1b]52;c;{b64encode(copyable(text).encode()).decode()}\x07"
