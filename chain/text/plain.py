"""Removes terminal escape sequences and control characters from untrusted text. Pure."""

from __future__ import annotations

import re

SEQUENCE = (
    # A control sequence; a string (OSC, DCS, SOS, PM, APC) with its terminator; any other escape. The body of a string
    # ends at any character that can start another one: otherwise unterminated strings would take quadratic time.
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x90\x98\x9b-\x9f]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]"
)

UNFINISHED = re.compile(
    r"(?:(?:\x1b\[|\x9b)[0-?]*[ -/]*"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x90\x98\x9b-\x9f]{0,500}\x1b?"
    r"|\x1b[ -/]*)\Z"
)
"""Matches an incomplete escape sequence at the end of a chunk.

If the sequence is a string without its end, at most 500 characters of the string match.
"""

_UNSAFE = re.compile(
    f"{SEQUENCE}"
    # Control characters except tab and newline, overrides of the text direction, lone surrogates.
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)

_NOT_IN_JSON = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def sanitize(text: str) -> str:
    """Return the text without escape sequences and control characters, except newlines and tabs."""
    return _UNSAFE.sub("", text)


def escape_json(text: str) -> str:
    """Escape line separators, control characters and lone surrogates in JSON, which other programs could misread."""
    if text.isascii() and "\x7f" not in text:
        return text  # a JSON encoder escapes all other ASCII, and most records are ASCII
    return _NOT_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
