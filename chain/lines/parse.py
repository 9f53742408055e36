"""Parsing of a submitted line (SPEC section 3). Pure.

``parse_line`` tries the rows of this table in order; a line that matches none is a redirect. ``!`` and ``!!`` set the
urgency, and the text after them is parsed by the later rows of the table.

======================  ===========  ======================================================
the line                kind         meaning
======================  ===========  ======================================================
begins with a space     verbatim     a redirect whose text is not parsed
``/command``            local        for the program, never for the model; a path or a comment is text
a stop phrase           stop         the run ends
``!text``               (urgent)     tools that have not started are skipped
``!!text``              (now)        the reply or the tools in progress are cancelled
``todo:`` ``plan:``     todo         a plan command, executed without the model; several rows are text
``then: text``          follow-up    the query of the next run
``context: text``       context      information, not a change of the task
``focus on X`` ...      guidance     for the model, and as an ``Adjustment`` for running tools
ends in ``?``, status   question     the task continues after the answer
======================  ===========  ======================================================
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

if TYPE_CHECKING:
    from chain.messages import Image

MAX_LINE = 100_000
"""The limit of a line, in characters. A pasted file of 25,000 tokens fits."""

Kind: TypeAlias = Literal[
    "blank", "redirect", "verbatim", "stop", "todo", "follow-up", "context", "guidance", "question", "local", "job"
]
"""The kind of a line, as in the table above. A ``job`` line reports the end of a background job; no user sends it."""

Urgency: TypeAlias = Literal["next", "urgent", "now"]
"""When a line is delivered, the weakest urgency first.

``next``: at the next safe point. ``urgent``: also at the next safe point, but tools that have not started are skipped.
``now``: at once; the reply or the tools in progress are cancelled.
"""

ASIDES: frozenset[Kind] = frozenset({"question", "todo", "context"})
"""The kinds of lines that do not change the task: after the answer, the model resumes it (SPEC section 5)."""

STOP_PHRASES = (
    "stop",
    "cancel",
    "abort",
    "nevermind",
    "never mind",
    "forget it",
    "don't worry",
    "actually no",
)
"""The texts that stop a run, in lower case."""


@dataclass(frozen=True, slots=True)
class AddTask:
    """The plan command ``todo: add TEXT``."""

    text: str


@dataclass(frozen=True, slots=True)
class CompleteTask:
    """The plan command ``todo: complete N`` or ``todo: done N``."""

    n: int


@dataclass(frozen=True, slots=True)
class FailTask:
    """The plan command ``todo: fail N [REASON]``."""

    n: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ListTasks:
    """The plan command ``todo: list`` or ``todo: show``."""


@dataclass(frozen=True, slots=True)
class ClearTasks:
    """The plan command ``todo: clear``."""


PlanCommand: TypeAlias = AddTask | CompleteTask | FailTask | ListTasks | ClearTasks
"""A command that changes or lists the plan. Code can carry it out without the model."""

AdjustmentType: TypeAlias = Literal["focus_query", "skip_source", "add_source", "drop_criterion", "preference"]
"""What guidance asks a running tool to change. The names are those of the tool interface."""


@dataclass(frozen=True, slots=True)
class Adjustment:
    """Guidance in a form that a running tool can use."""

    type: AdjustmentType
    value: str


@dataclass(frozen=True, slots=True)
class Line:
    """A parsed line.

    ``text`` is the submitted text. ``message`` is the text for the model, without marks such as ``!``. ``command`` is
    set for a todo line, ``adjustment`` for guidance. ``problem`` says what is wrong with a malformed line, and is
    otherwise empty. ``images`` were submitted with the line. ``names_files``: ``@path`` in the line attaches a file;
    false if a server wrote the text. ``is_mistyped``: ``problem`` names a plan command that the line resembles.
    """

    text: str
    kind: Kind
    message: str
    urgency: Urgency = "next"
    command: PlanCommand | None = None
    adjustment: Adjustment | None = None
    problem: str = ""
    images: tuple[Image, ...] = ()
    names_files: bool = True
    is_mistyped: bool = False

    @property
    def skips_tools(self) -> bool:
        """Whether the line skips tools that have not started."""
        return self.urgency != "next"

    @property
    def is_aside(self) -> bool:
        """Whether the model resumes its task after it has answered this line."""
        return self.kind in ASIDES


_URGENCIES: tuple[Urgency, ...] = get_args(Urgency)

_LEADING_MARKS = re.compile(r"\A[!\s]+")
_COMMAND = re.compile(r"/(?:(?:to|compact|mcp:\S*)(?:\s[\s\S]*)?|(?:[\w-]+|\?)(?:[ \t].*)?)?", re.I)
"""A slash command: a slash and a name without a slash. Only ``to``, ``compact`` and ``mcp:`` may have several rows."""
_TODO = re.compile(r"(?:todo|plan):[^\S\n]*(.*)", re.I)
_THEN = re.compile(r"then:\s*(.*)", re.I | re.S)
_CONTEXT = re.compile(r"context:\s*(.*)", re.I | re.S)
_GUIDANCE = re.compile(r"(focus on|skip|also check|ignore|prefer)\s+(\S.*)", re.I | re.S)
_NUMBER = re.compile(r"#?(\d{1,9})(?:\s+(.*))?", re.S)
_WORD_AND_COLON = re.compile(r"([a-z]{3,5}):[^\S\n]*(.*)", re.I)

_VERBS = ("add", "complete", "done", "fail", "list", "show", "clear")
_MIN_LONG_WORD = 5
"""The minimum length of a word in which a wrong letter is a typing error. A shorter one may be another word."""

_ADJUSTMENTS: dict[str, AdjustmentType] = {
    "focus on": "focus_query",
    "skip": "skip_source",
    "also check": "add_source",
    "ignore": "drop_criterion",
    "prefer": "preference",
}


def parse_line(text: str, *, urgency: Urgency = "next", local: bool = True) -> Line:
    """Parse a line and return it.

    ``urgency`` is the urgency that the sender gave the line; if the text has a mark, the stronger urgency is used. With
    ``local=False``, as in a pipe, a slash command and a mistyped plan command are parsed as text for the model.
    """
    if not text.strip():
        return Line(text, "blank", "")
    if text.startswith(" "):
        return Line(text, "verbatim", text.strip(), urgency)
    if local and _COMMAND.fullmatch(text.rstrip()):
        return Line(text, "local", text.strip())
    if is_stop(text):
        return Line(text, "stop", text.strip())
    marker: Urgency = "now" if text.startswith("!!") else "urgent" if text.startswith("!") else "next"
    inner = text if marker == "next" else _LEADING_MARKS.sub("", text)
    if not inner:
        mark = "!!" if marker == "now" else "!"
        problem = f"write the message after the {mark}, for example: {mark}use the other file"
        return Line(text, "redirect", "", marker, problem=problem)
    line = _parse_unmarked(inner)
    if local and line.kind == "redirect" and (suggestion := _suggest_command(inner.strip())):
        line = replace(
            line,
            kind="todo",
            problem=f"did you mean {suggestion}? Start with a space to send this as text",
            is_mistyped=True,
        )
    line = replace(line, text=text)
    if line.kind == "follow-up":
        return line
    return replace(line, urgency=max(marker, urgency, key=_URGENCIES.index))


def problem_of(line: Line) -> str:
    """Return why a line is refused from any sender: it is malformed or too long. Otherwise return an empty string."""
    if line.problem:
        return line.problem
    if len(line.text) > MAX_LINE:
        return f"the line has {len(line.text):,} characters, and the limit is {MAX_LINE:,}; put it in a file"
    return ""


def is_stop(text: str) -> bool:
    """Return whether the text is a stop phrase, with or without ``!`` or ``!!``."""
    folded = text.casefold().replace("’", "'").replace(", ", " ").strip()
    folded = folded.removeprefix("!").removeprefix("!").strip()
    return folded.rstrip(".!…" + string.whitespace) in STOP_PHRASES


def is_sent_first(text: str) -> bool:
    """Return whether a line is sent ahead of queued ones: a stop, a slash command, or a now line."""
    return is_stop(text) or text.startswith("!!") or _COMMAND.fullmatch(text.rstrip()) is not None


def _parse_unmarked(text: str) -> Line:
    """Parse the text of a line without the marks ``!`` and ``!!``."""
    stripped = text.strip()
    if todo := _TODO.fullmatch(stripped):
        return _parse_todo(text, stripped, todo[1])
    if then := _THEN.fullmatch(stripped):
        problem = "" if then[1] else "write what comes next, for example: then: check the licence"
        return Line(text, "follow-up", then[1], problem=problem)
    if context := _CONTEXT.fullmatch(stripped):
        problem = "" if context[1] else "write the information, for example: context: the SKU is SKU123"
        return Line(text, "context", f"[USER ADDED] {context[1]}", problem=problem)
    if guidance := _GUIDANCE.fullmatch(stripped):
        adjustment = Adjustment(_ADJUSTMENTS[guidance[1].casefold()], guidance[2])
        return Line(text, "guidance", stripped, adjustment=adjustment)
    if stripped.endswith("?") or stripped.casefold() == "status":
        return Line(text, "question", stripped)
    return Line(text, "redirect", stripped)


def _parse_todo(text: str, stripped: str, rest: str) -> Line:
    """Parse a todo line; ``rest`` is its part after the colon. If the verb is unknown, return a redirect."""
    verb, argument = (*rest.split(None, 1), "", "")[:2]
    number = _NUMBER.fullmatch(argument)
    command: PlanCommand | None = None
    match verb.casefold():
        case "add":
            command, usage = (AddTask(argument) if argument else None), "todo: add <task>"
        case "complete" | "done":
            command, usage = (CompleteTask(int(number[1])) if number and not number[2] else None), "todo: complete <N>"
        case "fail":
            command = FailTask(int(number[1]), (number[2] or "").strip()) if number else None
            usage = "todo: fail <N> [reason]"
        case "list" | "show":
            command, usage = (None if argument else ListTasks()), "todo: list"
        case "clear":
            command, usage = (None if argument else ClearTasks()), "todo: clear"
        case "":
            usage = "todo: add <task>, todo: complete <N>, todo: fail <N> [reason], todo: list or todo: clear"
        case _:
            return Line(text, "redirect", stripped)
    return Line(text, "todo", stripped, command=command, problem="" if command else f"write it as {usage}")


def _suggest_command(stripped: str) -> str:
    """Return the plan command that differs from the text by one typing error, or an empty string."""
    head = _WORD_AND_COLON.fullmatch(stripped)
    if head is None:
        return ""
    mark, (verb, argument) = head[1].casefold(), (*head[2].split(None, 1), "", "")[:2]
    if mark in ("todo", "plan"):
        verb = nearest_word(verb, _VERBS)
    elif not is_typing_error(mark, "todo"):
        return ""
    suggestion = f"todo: {verb} {argument}".rstrip()
    parsed = _parse_unmarked(suggestion)
    return suggestion if parsed.command is not None else ""


def nearest_word(typed: str, words: Iterable[str]) -> str:
    """Return the first word equal to ``typed`` except for case or one typing error, or an empty string."""
    folded = typed.casefold()
    return next((word for word in words if folded == word.casefold() or is_typing_error(folded, word)), "")


def is_typing_error(typed: str, word: str) -> bool:
    """Return whether ``typed`` is ``word`` with one typing error.

    A typing error is a missing or extra letter, two swapped neighbouring letters, or, in a long word, a wrong letter.
    The first letter must be right.
    """
    if typed == word or typed[:1] != word[:1] or abs(len(typed) - len(word)) > 1:
        return False
    if len(typed) != len(word):
        longer, shorter = sorted((typed, word), key=len, reverse=True)
        return shorter in (longer[:n] + longer[n + 1 :] for n in range(len(longer)))
    swapped = (word[:n] + word[n + 1] + word[n] + word[n + 2 :] for n in range(len(word) - 1))
    wrong = sum(one != other for one, other in zip(typed, word, strict=True))
    return typed in swapped or (wrong == 1 and len(word) >= _MIN_LONG_WORD)
