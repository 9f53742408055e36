"""Words and marks that people bring from other programs, and that are no line of this one. Pure."""

from __future__ import annotations

from chain.lines.parse import parse_line

LEAVE = "/quit"
BARE = {**dict.fromkeys(("exit", "exit()", "quit", "quit()", ":q"), LEAVE), "help": "/help", "?": "/help"}
"""Words that people type at any prompt, and that are neither a task nor an interruption."""
AS_TEXT = "With a space before it, it is sent as it is."


def bare_command(text: str) -> str:
    """The command that a word alone on a line means; empty for any other text."""
    return BARE.get(text.rstrip().casefold(), "")


def interrupts_nothing(text: str) -> bool:
    """Whether a line that is to interrupt would start a run where none is active."""
    return text.startswith("!") and parse_line(text).kind not in ("stop", "todo")
