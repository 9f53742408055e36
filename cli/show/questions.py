"""Questions and their answers as rows. Pure.

What is shown of a call is what the user approves. So nothing in it is left out silently: a character that a terminal
would obey is shown as an escape, a long row goes on in the next one, and where a long preview is cut in the middle it
says how many rows are missing.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from typing import TypeAlias

from chain import events
from chain.wording import counted
from cli.show.text import clean, fitting

HEAD_ROWS, TAIL_ROWS = 24, 12
"""Rows of a preview that are shown before and after the cut in it."""

TAB = 4

Row: TypeAlias = tuple[str, str]
"""A style (``added``, ``removed``, ``place``, ``plain`` or ``cut``) and a row."""

_SIGNS = {"+": "added", "-": "removed", "@": "place"}

ALWAYS_HINT = "y allows it · a always allows what is like it · n refuses; any other text refuses and says why"
CHOICE_HINT = "a number chooses; any other text is an answer too"


def preview_rows(text: str, width: int, mark: str, *, whole: bool = False) -> list[Row]:
    """The rows of a preview, each at most ``width`` columns; cut in the middle unless it is to be ``whole``.

    ``mark`` begins the row that says how many are missing. A unified difference, which begins with a title and then a
    place, is told apart by its signs.
    """
    lines = visible(text).split("\n") if text.strip() else []
    is_diff = len(lines) > 1 and lines[1].startswith("@@ -")
    rows: list[Row] = []
    for n, line in enumerate(lines):
        style = _SIGNS.get(line[:1], "plain") if is_diff and n else "plain"
        rows += [(style, f"  {part}") for part in _parts(line, max(width - 2, 10))]
    left = len(rows) - HEAD_ROWS - TAIL_ROWS
    if whole or left <= 1:
        return rows
    return [*rows[:HEAD_ROWS], ("cut", f"  {mark} {counted(left, 'more row')}; /diff shows all"), *rows[-TAIL_ROWS:]]


def title(question: events.Question) -> str:
    """What is asked, on one row or more."""
    fence = f" (fenced in: {', '.join(question.protections)})" if question.protections else ""
    return f"{question.id} {visible(question.text)}{fence}"


def options(question: events.Question) -> list[str]:
    """The numbered options of a choice."""
    return [f"  {n}. {visible(option)}" for n, option in enumerate(question.options, 1)]


def hint(question: events.Question) -> str:
    """How to answer."""
    return ALWAYS_HINT if question.kind == "approval" else CHOICE_HINT


def outcome(answer: events.Answer) -> tuple[str, str]:
    """The sign of an answer, and what became of the question."""
    text = f": {answer.text}" if answer.text else ""
    match answer.decision:
        case "allowed":
            return "✓", f"{answer.id} allowed{' by the configuration' if answer.by == 'config' else ''}"
        case "answered":
            return "✓", f"{answer.id}{text}"
        case "refused" if answer.by == "nobody":
            return "✗", f"{answer.id} refused, since nobody can be asked"
        case "refused":
            return "✗", f"{answer.id} refused{text}"
        case _:
            return "↩", f"{answer.id} withdrawn"


def visible(text: str) -> str:
    """The text with every character that ``clean`` would remove, or that has no width of its own, as an escape."""
    return text if text.isascii() and text == clean(text) else "".join(map(_visible, text))


def _visible(char: str) -> str:
    is_hidden = char != clean(char) or unicodedata.category(char) == "Cf"
    return char.encode("unicode_escape", "backslashreplace").decode() if is_hidden else char


def _parts(line: str, width: int) -> Iterator[str]:
    """A line in parts that fit, nothing of it left out."""
    line = line.expandtabs(TAB)
    while (end := fitting(line, width)) < len(line):
        yield line[:end]
        line = line[end:]
    yield line
