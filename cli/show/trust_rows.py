"""The question whether to trust files that came with the workspace, as rows. Pure.

The user judges the content of the file, so nothing is omitted: a long value continues on rows that are indented more
than the first row of any value, and control characters and invisible ones are shown as escapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from chain.config.commands import UntrustedCommand
from chain.config.servers import ToolServer
from chain.config.trust import Sensitive
from cli.show.question_rows import visible
from cli.show.text_rows import NARROWEST, columns, hard_rows, wrap_text

TRUST_INDENT, DEEPER = "  ", "      "


DANGER = "These values can send your keys, and all that chain reads, to someone else, or run commands without asking."
CHOICES = "y trusts the file until it changes; n or Enter continues without it."
TRUST_QUESTION = "Trust it? [y/N]"

LOCAL = "The server is a program that has all your permissions, from its start on and in each call of its tools."
REMOTE = "The server receives the input of its tools, and the headers above, if there are any."
SERVER_CHOICES = "Until the entry changes, y always starts it here, and n never does. Enter skips it this time."
STARTING = "Start it? [y/N]"


COMMANDS_DANGER = (
    "When you type such a command, the text of its file is sent to the model as your own words. "
    "y trusts these files until they change; n or Enter continues without them."
)
TRUST_COMMANDS = "Trust them? [y/N] "


def question(file: Path, asked: Sequence[Sensitive], width: int) -> list[str]:
    """Return rows of at most ``width`` columns with the keys that the file sets, the danger, and the answers."""
    width = max(width, NARROWEST)
    head = f"{_on_one_row(str(file))} came with this folder and sets:"
    rows = [row for each in asked for row in _rows_of(each, width)]
    return [*wrap_text(head, width), *rows, *wrap_text(DANGER, width), *wrap_text(CHOICES, width)]


def server_question(server: ToolServer, width: int) -> list[str]:
    """Return rows with a server's whole command or address, the danger, and the possible answers."""
    width = max(width, NARROWEST)
    is_remote = "url" in server.entry.entries()
    head = f"{_on_one_row(server.entry.file)} came with this folder and names the server {server.name}:"
    rows = [("is at" if is_remote else "runs", server.target), *server.extras]
    shown = [row for key, value in rows for row in _beside_or_below(_on_one_row(f"{key}:"), _on_one_row(value), width)]
    danger = REMOTE if is_remote else LOCAL
    return [*wrap_text(head, width), *shown, *wrap_text(danger, width), *wrap_text(SERVER_CHOICES, width)]


def commands_question(commands: Sequence[UntrustedCommand], width: int) -> list[str]:
    """Return rows with the names of the workspace's commands, what they could do, and the possible answers."""
    width = max(width, NARROWEST)
    head = f"{_on_one_row(str(commands[0].file.parent))} came with this folder and has the commands:"
    names = ", ".join(f"/{command.name}" for command in commands)
    return [*wrap_text(head, width), *wrap_text(f"{TRUST_INDENT}{names}", width), *wrap_text(COMMANDS_DANGER, width)]


def declined_rows(left_out: Path, instead: Path | None, width: int) -> list[str]:
    """Return the rows that say which configuration is used when the user did not trust the file ``left_out``.

    ``instead`` is the file that is used; ``None`` for the built-in configuration.
    """
    used = "the built-in defaults are" if instead is None else f"{_on_one_row(str(instead))} is"
    return wrap_text(f"{_on_one_row(left_out.name)} is not used; {used}.", max(width, NARROWEST))


def _rows_of(each: Sensitive, width: int) -> list[str]:
    """Return the rows of a key and its value. If they do not fit on one row, the value is below the key."""
    key, value = _on_one_row(f"line {each.line}  {each.key}:"), _on_one_row(each.value)
    rows = _beside_or_below(key, value, width)
    for label, text in (("in", each.place), ("leads to", each.leads_to)):
        rows += _hanging(f"{label} {_on_one_row(text)}", width, DEEPER) if text else []
    return rows


def _beside_or_below(key: str, value: str, width: int) -> list[str]:
    beside = f"{TRUST_INDENT}{key} {value}"
    return (
        [beside] if columns(beside) <= width else [*_hanging(key, width, TRUST_INDENT), *_hanging(value, width, DEEPER)]
    )


def _on_one_row(text: str) -> str:
    return visible(text.replace("\n", "\\n").replace("\t", "\\t"))


def _hanging(text: str, width: int, indent: str) -> list[str]:
    """Return a text as rows that are cut where they are full, since a cut at a space would omit the space."""
    first, *rest = hard_rows(text, width - len(DEEPER))
    return [indent + first, *(DEEPER + row for row in rest)]
