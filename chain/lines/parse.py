"""What a submitted line says: pure, no I/O and no state.

The grammar is SPEC section 3. ``parse_line`` tries the marks in the order of the table below, and the first that fits
decides; a line that fits none is a redirect. A ``!`` or ``!!`` before a line is no kind: it makes the line urgent or
a now line, and what follows it is read by the rows below it.

======================  ===========  ======================================================
the line                kind         meaning
======================  ===========  ======================================================
begins with a space     verbatim     a redirect, whatever it looks like
``/command``            local        for the program, never for the model
a stop phrase           stop         the run ends
``!text``               (urgent)     tools that have not started are skipped
``!!text``              (now)        the work in hand is cut
``todo:`` ``plan:``     todo         a plan command that code carries out
``then: text``          follow-up    the query of the next run
``context: text``       context      something to know, not a change of course
``focus on X`` ...      guidance     delivered, and a typed adjustment for running tools
ends in ``?``, status   question     the task goes on after the answer
======================  ===========  ======================================================
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

MAX_LINE = 100_000
"""Characters in a line. A pasted file of 25,000 tokens fits; what is longer belongs in a file that a tool reads."""

Kind: TypeAlias = Literal[
    "blank", "redirect", "verbatim", "stop", "todo", "follow-up", "context", "guidance", "question", "local"
]

Urgency: TypeAlias = Literal["next", "urgent", "now"]
"""When a line is delivered: at the next safe point; there too, with the tools skipped that have not started; at once,
by cutting the work in hand. The later in this list, the stronger."""

ASIDES: frozenset[Kind] = frozenset({"question", "todo", "context"})
"""Kinds that ask for no change of course: after the answer the task goes on (SPEC section 5)."""

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


@dataclass(frozen=True, slots=True)
class AddTask:
    """``todo: add TEXT``."""

    text: str


@dataclass(frozen=True, slots=True)
class CompleteTask:
    """``todo: complete N`` or ``done N``."""

    n: int


@dataclass(frozen=True, slots=True)
class FailTask:
    """``todo: fail N [REASON]``."""

    n: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ListTasks:
    """``todo: list`` or ``show``."""


@dataclass(frozen=True, slots=True)
class ClearTasks:
    """``todo: clear``."""


PlanCommand: TypeAlias = AddTask | CompleteTask | FailTask | ListTasks | ClearTasks

AdjustmentType: TypeAlias = Literal["focus_query", "skip_source", "add_source", "drop_criterion", "preference"]


@dataclass(frozen=True, slots=True)
class Adjustment:
    """Guidance in a form that a running tool can act on."""

    type: AdjustmentType
    value: str


@dataclass(frozen=True, slots=True)
class Line:
    """A parsed line.

    ``text`` is what was submitted and ``message`` what the model is to read of it: the text without its marker.
    ``command`` is set for a todo line, ``adjustment`` for guidance, and ``problem`` says how to write a line that is
    malformed. Kind and urgency are apart, so that ``!todo: add x`` skips tools and lands on the plan.
    """

    text: str
    kind: Kind
    message: str
    urgency: Urgency = "next"
    command: PlanCommand | None = None
    adjustment: Adjustment | None = None
    problem: str = ""

    @property
    def skips_tools(self) -> bool:
        """Whether tools that have not started are skipped for it."""
        return self.urgency != "next"

    @property
    def is_aside(self) -> bool:
        """Whether the task is to go on after the answer to this line."""
        return self.kind in ASIDES


_URGENCIES: tuple[Urgency, ...] = get_args(Urgency)

_MARKS = re.compile(r"\A[!\s]+")
_TODO = re.compile(r"(?:todo|plan):\s*(.*)", re.I | re.S)
_THEN = re.compile(r"then:\s*(.*)", re.I | re.S)
_CONTEXT = re.compile(r"context:\s*(.*)", re.I | re.S)
_GUIDANCE = re.compile(r"(focus on|skip|also check|ignore|prefer)\s+(\S.*)", re.I | re.S)
_NUMBER = re.compile(r"#?(\d{1,9})(?:\s+(.*))?", re.S)

_ADJUSTMENTS: dict[str, AdjustmentType] = {
    "focus on": "focus_query",
    "skip": "skip_source",
    "also check": "add_source",
    "ignore": "drop_criterion",
    "prefer": "preference",
}


def parse_line(text: str, *, urgency: Urgency = "next", local: bool = True) -> Line:
    """Read one line.

    ``urgency`` is for a line that was marked by its key (Alt-Enter) or by its JSON. ``local=False`` makes a leading
    ``/`` plain text, as it is in a pipe or a script, where nobody can type a slash command.
    """
    if not text.strip():
        return Line(text, "blank", "")
    if text.startswith(" "):
        return Line(text, "verbatim", text.strip(), urgency)
    if local and text.startswith("/"):
        return Line(text, "local", text.strip())
    if is_stop(text):
        return Line(text, "stop", text.strip())
    marker: Urgency = "now" if text.startswith("!!") else "urgent" if text.startswith("!") else "next"
    inner = text if marker == "next" else _MARKS.sub("", text)
    if not inner:
        mark = "!!" if marker == "now" else "!"
        problem = f"write the message after the {mark}, for example: {mark}use the other file"
        return Line(text, "redirect", "", marker, problem=problem)
    line = replace(_parse_marked(inner), text=text)
    if line.kind == "follow-up":
        return line
    return replace(line, urgency=max(marker, urgency, key=_URGENCIES.index))


def problem_of(line: Line) -> str:
    """Why a line cannot be accepted, whoever sends it and whatever the room; empty if it can."""
    if line.problem:
        return line.problem
    if len(line.text) > MAX_LINE:
        return f"the line has {len(line.text):,} characters, and the limit is {MAX_LINE:,}; put it in a file"
    return ""


def marked_urgent(text: str) -> str:
    """A line that a key made urgent, as one types it, so that it comes back as it was sent.

    Where no marker can say so, as for a line that begins with a space, it is the text as it is.
    """
    if text.startswith("!"):
        return text
    by_key, typed = parse_line(text, urgency="urgent"), parse_line(f"!{text}")
    is_same = (by_key.kind, by_key.message, by_key.urgency) == (typed.kind, typed.message, typed.urgency)
    return f"!{text}" if is_same and by_key.kind not in ("stop", "local", "blank") else text


def is_stop(text: str) -> bool:
    """Whether the whole line is a stop phrase; ``!`` or ``!!`` before it changes nothing, since a stop is stronger."""
    folded = text.casefold().replace("’", "'").replace(", ", " ").strip()
    folded = folded.removeprefix("!").removeprefix("!").strip()
    return folded.rstrip(".!…" + string.whitespace) in STOP_PHRASES


def overtakes(text: str) -> bool:
    """Whether a line does not wait behind others that could not be sent: a stop, a command, or what needs no room."""
    return is_stop(text) or text.startswith(("/", "!!"))


def _parse_marked(text: str) -> Line:
    stripped = text.strip()
    if todo := _TODO.fullmatch(stripped):
        return _parse_todo(text, stripped, todo[1])
    if then := _THEN.fullmatch(stripped):
        problem = "" if then[1] else "write what comes next, for example: then: check the licence"
        return Line(text, "follow-up", then[1], problem=problem)
    if context := _CONTEXT.fullmatch(stripped):
        problem = "" if context[1] else "write what there is to know, for example: context: the SKU is SKU123"
        return Line(text, "context", f"[USER ADDED] {context[1]}", problem=problem)
    if guidance := _GUIDANCE.fullmatch(stripped):
        adjustment = Adjustment(_ADJUSTMENTS[guidance[1].casefold()], guidance[2])
        return Line(text, "guidance", stripped, adjustment=adjustment)
    if stripped.endswith("?") or stripped.casefold() == "status":
        return Line(text, "question", stripped)
    return Line(text, "redirect", stripped)


def _parse_todo(text: str, stripped: str, rest: str) -> Line:
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
