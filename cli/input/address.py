"""The address of a typed line, ``/to AGENT TEXT``. Pure."""

from __future__ import annotations

import re

from chain.lines.parse import parse_line

_TO = re.compile(r"/to\s+(\S+)(?:\s(.*))?", re.I | re.S)


def begun_address(text: str) -> tuple[str, str]:
    """The name behind ``/to`` and what follows it, if anything does; both empty for another text."""
    found = _TO.fullmatch(text)
    return (found[1], found[2] or "") if found else ("", "")


def split_address(text: str) -> tuple[str, str]:
    """The agent that a line is addressed to, and the line; without an address an empty name and the whole text."""
    name, line = begun_address(text)
    return (name, line) if line.strip() else ("", text)


def is_command(text: str) -> bool:
    """Whether a text is a command, and no line with an address."""
    return text.startswith("/") and parse_line(text).kind == "local" and not split_address(text)[0]
