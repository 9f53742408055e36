"""The address of a typed line, ``/to AGENT TEXT``. Pure."""

from __future__ import annotations

import re

from chain.lines.parse import parse_line

_TO = re.compile(r"/to\s+(\S+)(?:\s(.*))?", re.I | re.S)


def unfinished_address(text: str) -> tuple[str, str]:
    """Return the agent and the rest of ``/to AGENT TEXT``; ``("", "")`` for any other text."""
    found = _TO.fullmatch(text)
    return (found[1], found[2] or "") if found else ("", "")


def split_address(text: str) -> tuple[str, str]:
    """Return the agent of a line's address and the rest of the line; ``("", text)`` if the address is incomplete."""
    name, line = unfinished_address(text)
    return (name, line) if line.strip() else ("", text)


def is_command(text: str) -> bool:
    """Return whether a text is a slash command. A line that begins with an address is not."""
    return text.startswith("/") and parse_line(text).kind == "local" and not split_address(text)[0]
