"""The help of ``/help``: an overview on one screen, and details about lines and keys on request. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from cli.show.table import side_by_side, table

TERM, ABOUT = 14, 22
"""The columns of an entry's term and of its description. Two entries fit on 80 columns, and one entry on 40."""

LINES = (
    ("text", "read at a safe point", "given to the model at the next safe point"),
    ("!text", "skips waiting tools", "given at the next safe point, and tools that have not started are skipped"),
    ("!!text", "at once: cuts the work", "at once: the streaming reply or the running tools are cancelled"),
    ("stop", "ends the run", "ends the run; so do cancel, abort, never mind, forget it"),
    ("todo: add TEXT", "adds to the plan", "adds a task to the plan; also complete N, fail N WHY, list, clear"),
    ("focus on X", "", "guides the model and running tools; also skip, also check, ignore, prefer"),
    ("context: TEXT", "something to know", "something to know, not a change of course"),
    ("text?", "asks; task continues", "a question, or status; the task continues after the answer"),
    ("then: TEXT", "the next run", "the query of the next run, which starts when this run has ended"),
    ("<space>text", "", "sent as plain text: no marker or command is recognised"),
)

# Each key with a short description, empty if the overview omits the key, and a long one.
_ANYWHERE = (
    ("Enter", "", "sends the line"),
    ("Ctrl-C", "interrupts; 2x: exits", "interrupts the run, else clears the line; twice exits"),
    ("Ctrl-D", "exits (empty line)", "exits, on an empty line"),
)
_EDITOR = (
    _ANYWHERE[0],
    (
        "Alt-Enter",
        "a new line",
        "a new line; also Shift-Enter where the terminal reports it, Ctrl-J, and Enter after \\",
    ),
    (
        "Esc",
        "interrupts the run",
        "closes a menu, or interrupts the run; typed text stays; twice with nothing to do, lists the runs to undo",
    ),
    *_ANYWHERE[1:],
    ("Up", "takes a line back", "on an empty line, edits the latest waiting line; else shows the history"),
    ("Ctrl-G", "opens your editor", "opens your editor (VISUAL or EDITOR) on the typed text; also Ctrl-X Ctrl-E"),
    ("Ctrl-O", "whole session", "opens the whole session in your pager, with thinking, complete results and pastes"),
    ("Ctrl-V", "attaches an image", "attaches the image in the clipboard to the line"),
    ("Tab", "", "completes commands, files after an @, and line starts such as todo: add and then:"),
    ("Shift-Tab", "", "changes the mode: ask, accept edits, read only"),
    ("Ctrl-R", "", "searches the history"),
)

OVERVIEW_TOPICS = ("lines", "keys")

_TOGETHER = {
    "/drop": ("/edit", "a waiting line"),
    "/jobs": ("/kill", "background jobs"),
    "/tools": ("/mcp", "the model's tools"),
    "/new": ("/resume", "another conversation"),
}
"""Pairs of commands that share an entry: the first command, then the second one and a description of both."""


def overview(commands: Sequence[tuple[str, str, str]], width: int, *, has_keys: bool) -> list[str]:
    """Return the rows of the overview: commands, lines and keys. It has 22 rows on 80 columns.

    ``commands``: a name, an argument and a description of each. ``has_keys``: show the keys of the line editor.
    """
    entries = {name: (f"{name} {argument}".rstrip(), about) for name, argument, about in commands}
    for name, (other, about) in _TOGETHER.items():
        if name in entries and entries.pop(other, None) is not None:
            entries[name] = (f"{name}, {other}", about)
    groups = {
        "Commands:": [*entries.values()],
        "Lines, while a run is active:": [(form, short) for form, short, _ in LINES if short],
        "Keys (and in a shell: chain help):": [(key, short) for key, short, _ in _keys(has_keys) if short],
    }
    return [row for head, found in groups.items() for row in (head, *side_by_side(found, width, TERM, ABOUT))]


def topic(name: str, width: int, *, has_keys: bool) -> list[str]:
    """Return the details about ``lines`` or ``keys`` as rows. ``has_keys``: show the keys of the line editor."""
    entries = LINES if name == "lines" else _keys(has_keys)
    return table([(term, about) for term, _, about in entries], width)


def _keys(has_keys: bool) -> Sequence[tuple[str, str, str]]:
    return _EDITOR if has_keys else _ANYWHERE
