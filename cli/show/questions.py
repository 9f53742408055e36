"""Questions and their answers as rows. Pure.

What is shown of a call is what the user approves. So nothing in it is left out silently: a character that a terminal
would obey is shown as an escape, a long row goes on in the next one, which has a sign, and where a long preview is cut
in the middle it says how many rows are missing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

from chain import events
from chain.hunks import read_diff
from chain.text.phrases import answered
from chain.text.wording import ASKED_EACH_TIME, counted
from cli.show.text import hard_rows

HEAD_ROWS, TAIL_ROWS = 12, 6
"""Rows of a preview that are shown before and after the cut in it: with them, a question fits on 24 rows."""

TAB = 4

_HIDDEN = re.compile(
    # Controls but the tab and the line end, what turns text around, halves of pairs; spaces and fillers that look like
    # others or like nothing; variation selectors and tags.
    "[\x00-\x08\x0b-\x1f\x7f-\xa0\xad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f\u2000-\u200f\u2028-\u202f"
    "\u205f-\u206f\u2800\u3000\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U00013430-\U0001343f\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)

Row: TypeAlias = tuple[str, str]
"""A style (``added``, ``removed``, ``place``, ``plain`` or ``cut``) and a row."""

ALWAYS_HINT = "y allows it · n or a reason refuses · a always allows such calls"
EACH_TIME_HINT = "y allows it · n or a reason refuses"
CHOICE_HINT = "a number chooses; any other text is an answer too"


def preview_rows(text: str, width: int, mark: str, more: str = "↪", *, whole: bool = False) -> list[Row]:
    """The rows of a preview, each at most ``width`` columns; cut in the middle unless it is to be ``whole``.

    ``mark`` begins the row that says how much is missing, and ``more`` one that goes on with the row above.
    """
    diff = read_diff(text)
    lines: list[Row] = [("plain", line) for line in text.split("\n")] if text.strip() else []
    lines = lines if diff is None else list(diff.shown())
    left = 0 if whole else max(len(lines) - HEAD_ROWS - TAIL_ROWS, 0)
    if left > 1:
        return [
            *_cut(_rows(lines[:HEAD_ROWS], width, more), HEAD_ROWS, 0, mark),
            ("cut", f"  {mark} {counted(left, 'more line')}; /diff shows all"),
            *_cut(_rows(lines[-TAIL_ROWS:], width, more), 0, TAIL_ROWS, mark),
        ]
    rows = _rows(lines, width, more)
    return rows if whole else _cut(rows, HEAD_ROWS, TAIL_ROWS, mark)


def _rows(lines: Sequence[Row], width: int, more: str) -> list[Row]:
    rows: list[Row] = []
    for style, line in lines:
        # Every new row begins with two spaces, so that no text can pass for one that goes on, or the reverse.
        first, *others = hard_rows(visible(line).expandtabs(TAB), max(width - len(more) - 1, 10))
        rows += [(style, f"  {first}"), *((style, f"{more} {part}") for part in others)]
    return rows


def _cut(rows: list[Row], head: int, tail: int, mark: str) -> list[Row]:
    """At most so many rows of the beginning and of the end; the lines of a preview may be long."""
    left = len(rows) - head - tail
    if left <= 1:
        return rows
    note = ("cut", f"  {mark} {counted(left, 'more row')}; /diff shows all")
    return [*rows[:head], note, *rows[len(rows) - tail :]]


def title(question: events.Question) -> str:
    """What is asked, on one row or more."""
    fence = f" (fenced in: {', '.join(question.protections)})" if question.protections else ""
    return f"{question.id} {visible(question.text)}{fence}"


def options(question: events.Question) -> list[str]:
    """The numbered options of a choice."""
    return [f"  {n}. {visible(option)}" for n, option in enumerate(question.options, 1)]


def hint(question: events.Question) -> str:
    """How to answer."""
    if question.kind == "choice":
        return CHOICE_HINT
    return EACH_TIME_HINT if question.text.endswith(ASKED_EACH_TIME) else ALWAYS_HINT


def answer_parts(answer: events.Answer) -> tuple[str, str]:
    """The sign of an answer, and what became of the question."""
    sign = {"allowed": "✓", "answered": "✓", "refused": "✗"}.get(answer.decision, "↩")
    # The answer to a choice is its text, and goes without saying that it is one.
    words = answered(answer)
    return sign, f"{answer.id}{words.removeprefix('answered') if answer.decision == 'answered' else f' {words}'}"


def visible(text: str) -> str:
    """The text with every character that ``sanitize`` would remove, or that nobody can see, as an escape."""
    return _HIDDEN.sub(lambda found: _escaped(found[0]), text)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape", "backslashreplace").decode()
