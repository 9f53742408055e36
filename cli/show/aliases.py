"""Words and marks that people bring from other programs, and what they mean here. Pure."""

from __future__ import annotations

from chain.lines.parse import parse_line

LEAVE = "/quit"
BARE = {**dict.fromkeys(("exit", "exit()", "quit", "quit()", ":q"), LEAVE), "help": "/help", "?": "/help"}
"""Words that people type at any prompt, and that are neither a task nor an interruption."""

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
"""Names that other programs have for a command: they do the same."""

INSTEAD = {
    "/add": "name the file in a line with an @ before it, and it goes along",
    "/config": "/debug names the file of the configuration, and in a shell chain check shows what is in it",
    "/continue": "/resume lists the sessions to go on with, and in a shell chain -c goes on with the latest",
    "/export": "in a shell, chain sessions export ID writes a session as a document; /debug shows the id",
    "/history": "Ctrl-R searches what you typed, and /resume lists the earlier sessions",
    "/init": "in a shell, chain init writes a configuration to change",
    "/load": "/resume lists the sessions to go on with",
    "/login": "a key is read from the environment, and in a shell chain help models says which",
    "/redo": "what was typed is in the history, by the key Up",
    "/run": "write what is to be run in a line, and the model asks before it runs it",
    "/save": "a session is kept while it runs; /debug says where",
    "/settings": "/debug names the file of the configuration, and in a shell chain check shows what is in it",
    "/stop": "the line stop ends the run, and Esc interrupts it",
    "/version": "/debug shows it",
}
"""What does what is meant by a command of other programs that there is not."""

AS_TEXT = "With a space before it, it is sent as it is."


def bare_command(text: str) -> str:
    """Return the command that a word alone on a line means; empty for any other text."""
    return BARE.get(text.rstrip().casefold(), "")


def interrupts_nothing(text: str) -> bool:
    """Return whether a line that is to interrupt would start a run where none is active."""
    return text.startswith("!") and parse_line(text).kind not in ("stop", "todo")
