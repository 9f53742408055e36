"""Comma-separated lists, as on a command line. Pure."""

from __future__ import annotations


def split_commas(text: str) -> list[str]:
    """Split a list at its commas, except inside parentheses: ``read,shell(git log --format=%h,%s)`` has two parts."""
    parts, depth = [""], 0
    for char in text:
        depth += (char == "(") - (char == ")")
        if char == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += char
    return parts
