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
from chain.text.escalations import ESCALATION_KEYS, ESCALATION_PHRASES, escalation_named
from chain.text.phrases import describe_answer
from chain.text.wording import ASKED_EACH_TIME, pluralize
from cli.show.aliases import bare_command
from cli.show.text_rows import TAB, hard_rows

HEAD_ROWS, PREVIEW_TAIL_ROWS = 12, 6
"""Rows of a preview that are shown before and after the cut in it: with them, a question fits on 24 rows."""

_HIDDEN = re.compile(
    # Controls but the tab and the line end, what turns text around, halves of pairs; spaces and fillers that look like
    # others or like nothing; variation selectors and tags.
    "[\x00-\x08\x0b-\x1f\x7f-\xa0\xad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f\u2000-\u200f\u2028-\u202f"
    "\u205f-\u206f\u2800\u3000\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U00013430-\U0001343f\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)

Row: TypeAlias = tuple[str, str]
"""A style (``added``, ``removed``, ``place``, ``plain`` or ``cut``) and a row."""

REASON_HINT = "n refuse · or say why not (a space first)"
CHOICE_HINT = "a number chooses; any other text is an answer too"
UNCLEAR = "y, a or n; or say why not in a few words"
UNCLEAR_EACH_TIME = "y or n; or say why not in a few words"

_ANSWERS = ("y", "yes", "a", "always", "n", "no")
_CONSENT = re.compile(r"(y|yes|ok|okay|sure)\b")
"""How a text begins that says yes, although a text refuses: it is asked back."""
SHORTEST_REASON = 3
"""Characters of the shortest text that is a reason: a shorter one was meant as a key, or as a number."""

_SUBJECTS = {"shell": "this exact command", "research": "this host"}
"""What the answer "always" allows where that is no whole tool."""

_FENCES = {"network": "no network", "writes": "writes here only"}
_LESSER_FENCES = {
    "signals": "no signals to other programs",
    "devices": "no terminals or devices",
    "unix_sockets": "no connections to other programs' sockets",
}
"""What holds for a command, by the short names of the protections. Where the first two hold, the others go without
saying; where neither does, they are all there is to say."""


def preview_rows(
    question: events.Question, width: int, mark: str, more: str = "↪", *, whole: bool = False
) -> list[Row]:
    """Return the rows of a question's preview, of at most ``width`` columns; cut in the middle unless ``whole``.

    ``mark`` begins the row that says how much is missing, and ``more`` one that goes on with the row above.
    """
    text, diff = question.preview, question.diff
    lines: list[Row] = [("plain", line) for line in text.split("\n")] if text.strip() else []
    lines = lines if diff is None else list(diff.rows_with_kinds())
    left = 0 if whole else max(len(lines) - HEAD_ROWS - PREVIEW_TAIL_ROWS, 0)
    if left > 1:
        return [
            *_cut(_rows(lines[:HEAD_ROWS], width, more), HEAD_ROWS, 0, mark),
            ("cut", f"  {mark} {pluralize(left, 'more line')}; /diff shows all"),
            *_cut(_rows(lines[-PREVIEW_TAIL_ROWS:], width, more), 0, PREVIEW_TAIL_ROWS, mark),
        ]
    rows = _rows(lines, width, more)
    return rows if whole else _cut(rows, HEAD_ROWS, PREVIEW_TAIL_ROWS, mark)


def _rows(lines: Sequence[Row], width: int, more: str) -> list[Row]:
    rows: list[Row] = []
    for style, line in lines:
        # Every new row begins with two spaces, so that no text can pass for one that goes on, or the reverse.
        first, *others = hard_rows(visible(line).expandtabs(TAB), max(width - len(more) - 1, 10))
        rows += [(style, f"  {first}"), *((style, f"{more} {part}") for part in others)]
    return rows


def _cut(rows: list[Row], head: int, tail: int, mark: str) -> list[Row]:
    """Return at most so many rows of the beginning and of the end; the lines of a preview may be long."""
    left = len(rows) - head - tail
    if left <= 1:
        return rows
    note = ("cut", f"  {mark} {pluralize(left, 'more row')}; /diff shows all")
    return [*rows[:head], note, *rows[len(rows) - tail :]]


def title(question: events.Question) -> str:
    """Return what is asked. What a call is about is said here or by the preview, not twice."""
    text, about = question.text, question.subject
    if about and shows_preview(question):
        # Only what is a row of its own there, and the first: of a long preview the middle is not shown.
        first = question.preview.strip().partition("\n")[0].removeprefix("$ ")
        if f"{first} ".startswith(about.removesuffix("…") + (" " if about[-1:] != "…" else "")):
            text = f"Allow {question.name}?{ASKED_EACH_TIME if question.only_by_name else ''}"
    return f"{question.id} {visible(text)}"


def shows_preview(question: events.Question) -> bool:
    """Return whether the preview says more than the text; else the text is all there is to show."""
    return question.preview not in question.text


def fence(question: events.Question) -> str:
    """Return in plain words what holds for the command that is asked about; empty where nothing does."""
    held = [words for name, words in _FENCES.items() if name in question.protections]
    held = held or [words for name, words in _LESSER_FENCES.items() if name in question.protections]
    return f"sandboxed: {', '.join(held)}" if held else ""


def options(question: events.Question) -> list[str]:
    """Return the numbered options of a choice."""
    return [f"  {n}. {visible(option)}" for n, option in enumerate(question.options, 1)]


def hint(question: events.Question, *, by_key: bool = True) -> str:
    """Return the ways to answer; ``by_key``: one key answers, so a reason must not begin with one."""
    if question.kind == "choice":
        return CHOICE_HINT
    always = [] if question.only_by_name else [f"a allow {_what_always_allows(question)}"]
    reason = REASON_HINT if by_key else REASON_HINT.replace(" (a space first)", "")
    escalations = [f"{ESCALATION_KEYS[each]} {ESCALATION_PHRASES[each]}" for each in question.escalations]
    return " · ".join(["y allow once", *escalations, *always, reason])


def answer_keys(question: events.Question | None) -> str:
    """Return the keys that answer a question by themselves; none for a choice, whose numbers have two digits."""
    if question is None or question.kind == "choice":
        return ""
    escalations = "".join(ESCALATION_KEYS[each] for each in question.escalations)
    return f"y{escalations}{'' if question.only_by_name else 'a'}n"


def unclear(question: events.Question, text: str) -> str:
    """Return how to answer where a text is probably no answer; empty where it is one.

    To an approval that is a digit, a letter or two, a command, or a text that says yes; to a choice a number that it
    does not have.
    """
    said = text.strip().casefold()
    if question.kind == "choice":
        is_there = (
            not (question.options and said.isdecimal())
            or 1 <= int(said[:9]) <= len(question.options)
            or said in question.options
        )
        return "" if is_there else f"a number from 1 to {len(question.options)} chooses, or say it in words"
    is_slip = (len(said) < SHORTEST_REASON and said.isascii()) or said.isdecimal() or bool(bare_command(said))
    is_offered = escalation_named(said) in question.escalations
    if said in _ANSWERS or is_offered or not (is_slip or _CONSENT.match(said)):
        return ""
    if question.escalations:
        keys = answer_keys(question)
        return f"{', '.join(keys[:-1])} or {keys[-1]}; or say why not in a few words"
    return UNCLEAR_EACH_TIME if question.only_by_name else UNCLEAR


def _what_always_allows(question: events.Question) -> str:
    if question.always == "subject":
        return f"{_SUBJECTS.get(question.name, 'exactly this')} until you leave"
    return f"every {visible(question.name)} until you leave"


def answer_parts(answer: events.Answer) -> tuple[str, str]:
    """Return the sign of an answer, and what became of the question."""
    sign = {"allowed": "✓", "answered": "✓", "refused": "✗"}.get(answer.decision, "↩")
    if answer.decision == "answered":  # the text goes without saying that it is one
        return sign, f"{answer.id}{f': {answer.text}' if answer.text else ''}"
    return sign, f"{answer.id} {describe_answer(answer)}"


def visible(text: str) -> str:
    """Return the text with escapes for every character that ``sanitize`` would remove or nobody can see."""
    return _HIDDEN.sub(lambda found: found[0].encode("unicode_escape", "backslashreplace").decode(), text)
