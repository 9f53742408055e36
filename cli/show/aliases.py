"""Command names and words that users know from other programs, and their meaning in this program. Pure."""

from __future__ import annotations

from chain.lines.parse import parse_line

LEAVE = "/quit"
BARE = {**dict.fromkeys(("exit", "exit()", "quit", "quit()", ":q"), LEAVE), "help": "/help", "?": "/help"}
"""Words that people type at any prompt to leave or to get help. Each has the command to run instead."""

OTHER_NAMES = {
    **dict.fromkeys(("/?", "/commands"), "/help"),
    **dict.fromkeys(("/cost", "/tokens", "/usage"), "/status"),
    **dict.fromkeys(("/plan", "/todos"), "/todo"),
    "/permissions": "/tools",
    "/models": "/model",
    "/sessions": "/resume",
    "/rewind": "/undo",
    **dict.fromkeys(("/clear", "/reset"), "/new"),
    **dict.fromkeys(("/bye", "/exit"), LEAVE),
}
"""Names that commands have in other programs, each with our command, which it runs."""

INSTEAD = {
    "/add": "write @ and the file's name in a line to attach it",
    "/config": "/debug shows the path of the configuration, and in a shell, chain check shows its values",
    "/continue": "/resume lists the sessions, and in a shell, chain -c resumes the latest",
    "/export": "in a shell, chain sessions export ID writes a session as a document; /debug shows the id",
    "/history": "Ctrl-R searches what you typed, and /resume lists the earlier sessions",
    "/init": "in a shell, chain init writes a configuration to change",
    "/load": "/resume lists the sessions",
    "/login": "a key is read from the environment, and in a shell, chain help models says which",
    "/redo": "press Up for the history of what you typed",
    "/run": "describe the command in a line; the model asks you before it runs the command",
    "/save": "a session is stored while it runs; /debug shows where",
    "/settings": "/debug shows the path of the configuration, and in a shell, chain check shows its values",
    "/stop": "type stop to end the run, or press Esc to interrupt it",
    "/version": "/debug shows the version",
}
"""Commands that only other programs have, each with a hint at what to use here."""

AS_TEXT = "Start with a space to send this as text."


def bare_command(text: str) -> str:
    """Return the command for a text that is one of the words in ``BARE``; empty for any other text."""
    return BARE.get(text.rstrip().casefold(), "")


def interrupts_nothing(text: str) -> bool:
    """Return whether a text is refused while no run is active: it starts with ``!``, and is no stop or plan line."""
    return text.startswith("!") and parse_line(text).kind not in ("stop", "todo")
