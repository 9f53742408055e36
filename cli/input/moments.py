"""When a line from a script, ``--say`` or a pipe is to be sent: ``@iteration 2 todo: add x``. Pure.

=====================  =======================================================
``@iteration N``       as iteration N of a run begins
``@tool NAME``         while that tool runs, whichever agent called it
``@answer``            as a reply without tool calls ends, so that the run goes on
``@done``              after the run, as a new one
``@after SECONDS``     that long after the line was read
``@question``          answers the next question
nothing                at once
=====================  =======================================================

In a pipe, whatever is not a well-formed moment is text. Scripts and arguments are written for this program, so there it
is an error. Spaces after a moment are not part of the text, so that a script may align its lines.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import TypeAlias

from chain import events, wording
from chain.errors import UserError


@dataclass(frozen=True, slots=True)
class Now:
    """At once."""


@dataclass(frozen=True, slots=True)
class AtIteration:
    """As iteration ``n`` begins, not a later one."""

    n: int


@dataclass(frozen=True, slots=True)
class AtTool:
    """As a tool of this name starts."""

    name: str


@dataclass(frozen=True, slots=True)
class AtAnswer:
    """As a reply without tool calls ends."""


@dataclass(frozen=True, slots=True)
class AtDone:
    """After the run."""


@dataclass(frozen=True, slots=True)
class After:
    """So many seconds after the line was read."""

    seconds: float


@dataclass(frozen=True, slots=True)
class AtQuestion:
    """When something is asked, as the answer to it."""


Moment: TypeAlias = Now | AtIteration | AtTool | AtAnswer | AtDone | After | AtQuestion


@dataclass(frozen=True, slots=True)
class ScheduledLine:
    """A line and its moment; ``written`` is the two as the user wrote them."""

    moment: Moment
    text: str
    written: str


_USAGE = {
    "@iteration": "@iteration N TEXT",
    "@tool": "@tool NAME TEXT",
    "@answer": "@answer TEXT",
    "@done": "@done TEXT",
    "@after": "@after SECONDS TEXT",
    "@question": "@question TEXT",
}
_COUNT = re.compile(r"[1-9][0-9]{0,8}")
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?|\.[0-9]{1,9}")


def parse_moment(text: str, *, strict: bool) -> ScheduledLine:
    """Read one line. Raises ``UserError`` if it is ``strict`` and the moment is unknown or incomplete."""
    if not text.startswith("@"):
        return ScheduledLine(Now(), text, text)
    try:
        return _parse(text)
    except UserError:
        if strict:
            raise
        return ScheduledLine(Now(), text, text)


def _parse(text: str) -> ScheduledLine:
    word, rest = _split(text)
    name = word.casefold()
    if name not in _USAGE:
        begun = [known for known in _USAGE if len(name) > 2 and known.startswith(name)]
        near = begun or difflib.get_close_matches(name, _USAGE, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"the moments are {', '.join(_USAGE)}"
        raise UserError(
            f"unknown moment {word[:40]}: {hint} (a line that begins with @ as text needs a space before it)"
        )
    moment: Moment | None
    match name:
        case "@answer":
            moment = AtAnswer()
        case "@done":
            moment = AtDone()
        case "@question":
            moment = AtQuestion()
        case "@iteration":
            argument, rest = _split(rest)
            moment = AtIteration(int(argument)) if _COUNT.fullmatch(argument) else None
        case "@after":
            argument, rest = _split(rest)
            moment = After(float(argument)) if _SECONDS.fullmatch(argument) else None
        case _:
            argument, rest = _split(rest)
            moment = AtTool(argument) if argument else None
    if moment is None or not rest.strip():
        raise UserError(f"{text[:60]!r} is not a moment with a line: write it as {_USAGE[name]}")
    return ScheduledLine(moment, rest, text)


def _split(text: str) -> tuple[str, str]:
    """The first word, and what follows the space after it."""
    first, *rest = text.split(None, 1) or [""]
    return first, rest[0] if rest else ""


def read_script(text: str, file: str) -> list[ScheduledLine]:
    """Read a script: a line each, without blank ones and those that begin with ``#``. Raises ``UserError``."""
    says = []
    for n, row in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        line = row.removesuffix("\r")
        if not line.strip() or line.startswith("#"):
            continue
        try:
            says.append(parse_moment(line, strict=True))
        except UserError as error:
            raise UserError(error.message, file=file, line=n) from None
    return says


MOMENT_EVENTS = (events.ToolCall, events.IterationStarted, events.Reply, events.Result)
"""The events that can be a moment."""


def fires(moment: Moment, event: events.Event) -> bool:
    """Whether this event is the moment. No event is ``Now`` or ``After``.

    Of iterations, answers and results only the main agent's count: a child numbers its own from 1.
    """
    match moment, event:
        case AtTool(name), events.ToolCall():
            return event.name == name
        case AtIteration(n), events.IterationStarted(agent=wording.MAIN):
            return event.iteration == n
        case AtAnswer(), events.Reply(agent=wording.MAIN):
            return event.tool_calls == 0
        case AtDone(), events.Result(agent=wording.MAIN):
            return True
        case _:
            return False
