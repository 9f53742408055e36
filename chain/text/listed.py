"""Lists with commas, as they are given on a command line. Pure."""

from __future__ import annotations


def listed(text: str) -> list[str]:
    """The parts of a list with commas; one in brackets belongs to a pattern: ``read,shell(git log --format=%h,%s)``."""
    parts, depth = [""], 0
    for char in text:
        depth += (char == "(") - (char == ")")
        if char == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += char
    return parts
