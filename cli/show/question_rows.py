"""Questions and their answers as rows. Pure.

The user approves the call that is shown, so nothing is omitted silently. A control character is shown as an escape. A
long row continues on the next one, which begins with a sign. A long preview is cut in the middle, and says how many
rows are missing.
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
from cli.show.text_rows import TAB, fitting_count, wrap_text

HEAD_ROWS, PREVIEW_TAIL_ROWS = 12, 6
"""The number of rows before and after the cut in a long preview, so that a question fits on 24 rows."""

_HIDDEN = re.compile(
    # Controls except tab and line end, bidirectional controls, surrogates; spaces and fillers that look like
    # others or like nothing; variation selectors and tags.
    "[\x00-\x08\x0b-\x1f\x7f-\xa0\xad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f\u2000-\u200f\u2028-\u202f"
    "\u205f-\u206f\u2800\u3000\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U00013430-\U0001343f\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)

Row: TypeAlias = tuple[str, str]
"""A style (``added``, ``removed``, ``place``, ``plain`` or ``cut``) and a row."""

REASON_HINT = "n refuse · or type the reason"
REASON_HINT_WITH_KEYS = "n refuse · or a space, then the reason"
CHOICE_HINT = "type an option's number or your own answer"
UNCLEAR = "y, a or n; or say why not in a few words"
UNCLEAR_EACH_TIME = "y or n; or say why not in a few words"

_ANSWERS = ("y", "yes", "a", "always", "n", "no")
_CONSENT = re.compile(r"(y|yes|ok|okay|sure)\b")
"""The start of a text that means yes. As a reason this text would deny the call, so the user is asked again."""
SHORTEST_REASON = 3
"""The minimum length of a text that counts as a reason. A shorter text was meant as a key or a number."""

_SUBJECTS = {"shell": "this exact command", "research": "this host"}
"""For tools of which the answer "always" allows only some calls, the words for these calls."""

_FENCES = {"network": "no network", "writes": "writes here only"}
_LESSER_FENCES = {
    "signals": "no signals to other programs",
    "devices": "no terminals or devices",
    "unix_sockets": "no connections to other programs' sockets",
}
"""The names of lesser protections of a command, in words. The hint has them only if none of ``_FENCES`` applies."""


def preview_rows(
    question: events.Question, width: int, mark: str, more: str = "↪", *, whole: bool = False
) -> list[Row]:
    """Return the rows of a question's preview, at most ``width`` columns each, cut in the middle unless ``whole``.

    ``mark`` begins the row that counts the missing rows. ``more`` begins a row that continues the row above.
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
        # Every new row begins with two spaces, so that no text can imitate a continued row, or the reverse.
        first, *others = _parts(visible(line).expandtabs(TAB), max(width - len(more) - 1, 10))
        rows += [(style, f"  {first}"), *((style, f"{more} {part}") for part in others)]
    return rows


def _parts(text: str, width: int) -> list[str]:
    """Cut a text into parts of ``width`` columns: before a space if the right half of a row has one, else anywhere."""
    parts, begin = [], 0
    # The rest is not copied for each part, since a line of a minified file may have megabytes.
    while (full := begin + fitting_count(text[begin : begin + 2 * width], width)) < len(text):
        at = text.rfind(" ", begin + width // 2, full + 1)
        end = at if at > begin else full
        parts.append(text[begin:end])
        begin = end
    return [*parts, text[begin:]]


def _cut(rows: list[Row], head: int, tail: int, mark: str) -> list[Row]:
    """Return the first ``head`` and the last ``tail`` rows, with a row between them that counts the missing rows.

    ``mark`` begins that row. Return all rows if at most one would be missing.
    """
    left = len(rows) - head - tail
    if left <= 1:
        return rows
    note = ("cut", f"  {mark} {pluralize(left, 'more row')}; /diff shows all")
    return [*rows[:head], note, *rows[len(rows) - tail :]]


def title(question: events.Question) -> str:
    """Return the question's id and text, without the call's main argument if the preview begins with it."""
    text, about = question.text, question.subject
    if about and shows_preview(question):
        # Only if it is the first row of the preview, since the middle of a long preview is not shown.
        first = question.preview.strip().partition("\n")[0].removeprefix("$ ")
        if f"{first} ".startswith(about.removesuffix("…") + (" " if about[-1:] != "…" else "")):
            text = f"Allow {question.name}?{ASKED_EACH_TIME if question.only_by_name else ''}"
    return f"{question.id} {visible(text)}"


def shows_preview(question: events.Question) -> bool:
    """Return whether the preview says more than the question's text."""
    return question.preview not in question.text


def fence(question: events.Question) -> str:
    """Return a phrase that names the protections of the question's command; empty if it has none."""
    held = [words for name, words in _FENCES.items() if name in question.protections]
    held = held or [words for name, words in _LESSER_FENCES.items() if name in question.protections]
    return f"sandboxed: {', '.join(held)}" if held else ""


def option_rows(question: events.Question, width: int) -> list[str]:
    """Return the numbered options of a choice as rows. An option's second and later rows are indented."""
    rows: list[str] = []
    for n, option in enumerate(question.options, 1):
        number = f"  {n}. "
        first, *others = wrap_text(visible(option), max(width - len(number), 10)) or [""]
        rows += [f"{number}{first}", *(f"{' ' * len(number)}{row}" for row in others)]
    return rows


def hint(question: events.Question, *, by_key: bool = True) -> str:
    """Return the possible answers. With ``by_key`` a single key answers, so a space must precede a reason."""
    if question.kind == "choice":
        return CHOICE_HINT
    always = [] if question.only_by_name else [f"a allow {_what_always_allows(question)}"]
    reason = REASON_HINT_WITH_KEYS if by_key else REASON_HINT
    escalations = [f"{ESCALATION_KEYS[each]} {ESCALATION_PHRASES[each]}" for each in question.escalations]
    return " · ".join(["y allow once", *escalations, *always, reason])


def answer_keys(question: events.Question | None) -> str:
    """Return the keys that answer a question without Enter; empty for a choice, whose numbers may have two digits."""
    if question is None or question.kind == "choice":
        return ""
    escalations = "".join(ESCALATION_KEYS[each] for each in question.escalations)
    return f"y{escalations}{'' if question.only_by_name else 'a'}n"


def warning(question: events.Question, text: str) -> str:
    """Return a warning if a typed text is probably a mistake; return an empty text if it can be an answer.

    If the question asks for approval, mistakes are numbers, commands, one or two letters without a meaning, and texts
    that seem to mean yes. If it is a choice, mistakes are numbers that no option has.
    """
    said = text.strip().casefold()
    if question.kind == "choice":
        is_there = (
            not (question.options and said.isdecimal())
            or 1 <= int(said[:9]) <= len(question.options)
            or said in question.options
        )
        return "" if is_there else f"type a number from 1 to {len(question.options)}, or answer in words"
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
    """Return the sign of an answer, and the outcome of the question."""
    sign = {"allowed": "✓", "answered": "✓", "refused": "✗"}.get(answer.decision, "↩")
    if answer.decision == "answered":  # the text itself shows that
        return sign, f"{answer.id}{f': {answer.text}' if answer.text else ''}"
    return sign, f"{answer.id} {describe_answer(answer)}"


def visible(text: str) -> str:
    """Return the text with escapes for all characters that ``sanitize`` would remove or that are invisible."""
    return _HIDDEN.sub(lambda found: found[0].encode("unicode_escape", "backslashreplace").decode(), text)
