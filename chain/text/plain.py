"""Removes from untrusted text what a terminal or a reader of rows would interpret. Pure."""

from __future__ import annotations

import re

SEQUENCE = (
    # A control sequence; a string for the terminal (OSC, DCS, SOS, PM, APC) up to its end; any other escape. A string's
    # body stops at whatever may begin another one: otherwise unended strings would take quadratic time.
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x90\x98\x9b-\x9f]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]"
)

UNFINISHED = re.compile(
    r"(?:(?:\x1b\[|\x9b)[0-?]*[ -/]*"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x90\x98\x9b-\x9f]{0,500}\x1b?"
    r"|\x1b[ -/]*)\Z"
)
"""A sequence that the end of a piece may have cut; at most 500 characters of an unended string are kept back."""

_UNSAFE = re.compile(
    f"{SEQUENCE}"
    # Control characters except tab and newline, characters that reverse the direction of text, halves of UTF-16 pairs.
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)

_NOT_IN_JSON = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def sanitize(text: str) -> str:
    """Return the text without escape sequences and control characters, except newlines and tabs."""
    return _UNSAFE.sub("", text)


def escape_json(text: str) -> str:
    """Escape characters of JSON that some readers interpret.

    They are the ends of rows, control characters of terminals, and lone surrogates.
    """
    if text.isascii() and "\x7f" not in text:
        return text  # a JSON encoder escapes all other ASCII, and most records are ASCII
    return _NOT_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
