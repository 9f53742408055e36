"""The moment at which a line from a script, ``--say`` or a pipe is sent: ``@iteration 2 todo: add x``. Pure.

With ``@to AGENT`` the moment is an iteration, answer, end or question of that agent; without, of the main agent, except
that ``@question`` means any agent. If the tool of ``@tool NAME`` starts an agent, the line is sent at the start of that
agent. A line with ``@done @to explore-1`` is sent to the parent of explore-1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from chain import events
from chain.errors import UserError, nearest_name
from chain.lines.parse import Urgency
from chain.text.wording import MAIN


@dataclass(frozen=True, slots=True)
class Now:
    """The moment now: the line is sent at once."""


@dataclass(frozen=True, slots=True)
class AtIteration:
    """The moment when iteration ``n`` of a run begins."""

    n: int


@dataclass(frozen=True, slots=True)
class AtTool:
    """The moment when a call of the tool ``name`` starts."""

    name: str


@dataclass(frozen=True, slots=True)
class AtAnswer:
    """The moment when a reply without tool calls ends."""


@dataclass(frozen=True, slots=True)
class AtDone:
    """The moment when the run has ended."""


@dataclass(frozen=True, slots=True)
class AtAgent:
    """The moment when the call ``call`` starts an agent or ends. Replaces ``AtTool`` if the tool starts agents."""

    call: str


@dataclass(frozen=True, slots=True)
class After:
    """The moment some seconds after the line was read."""

    seconds: float


@dataclass(frozen=True, slots=True)
class AtQuestion:
    """The moment when a question opens. The line answers the question."""


Moment: TypeAlias = Now | AtIteration | AtTool | AtAgent | AtAnswer | AtDone | After | AtQuestion


@dataclass(frozen=True, slots=True)
class ScheduledLine:
    """A line and its moment. ``to`` is the line's agent, empty without ``@to``; ``written`` is the unparsed text."""

    moment: Moment
    text: str
    written: str
    to: str = ""
    urgency: Urgency = "next"
    id: str = ""
    origin: events.Origin = "script"

    @property
    def can_start_run(self) -> bool:
        """Whether the line may start a run. A line whose moment is inside a run may not."""
        return isinstance(self.moment, Now | After) or self.is_after_run

    @property
    def is_after_run(self) -> bool:
        """Whether the line is sent after the end of a run. The end of a child agent is not the end of a run."""
        return isinstance(self.moment, AtDone) and self.is_for_main

    @property
    def is_for_main(self) -> bool:
        """Whether the line is for the main agent or has no address."""
        return not self.to or is_same_agent(MAIN, self.to)


_TO = "@to"
_USAGE = {
    "@iteration": "@iteration N TEXT",
    "@tool": "@tool NAME TEXT",
    "@answer": "@answer TEXT",
    "@done": "@done TEXT",
    "@after": "@after SECONDS TEXT",
    "@question": "@question TEXT",
    _TO: "@to AGENT TEXT",
}
_WITHOUT_ARGUMENT: dict[str, Moment] = {"@answer": AtAnswer(), "@done": AtDone(), "@question": AtQuestion(), _TO: Now()}
_COUNT = re.compile(r"[1-9][0-9]{0,8}")
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?|\.[0-9]{1,9}")


def parse_moment(text: str, *, strict: bool) -> ScheduledLine:
    """Parse one line. If its moment is malformed, treat the line as text, or raise ``UserError`` if ``strict``."""
    if text.startswith("@"):
        try:
            return _parse(text)
        except UserError:
            if strict:
                raise
    return ScheduledLine(Now(), text, text)


def _parse(text: str) -> ScheduledLine:
    word, rest = _split_word(text)
    name = word.casefold()
    if name not in _USAGE and not {"/", ".", '"'}.isdisjoint(name):
        return ScheduledLine(Now(), text, text)  # probably the name of a file
    if name not in _USAGE:
        begun = next((known for known in _USAGE if len(name) > 2 and known.startswith(name)), "")
        near = begun or nearest_name(name, _USAGE, 0.51)
        hint = f"did you mean {near}?" if near else f"the moments are {', '.join(_USAGE)}"
        as_text = "start with a space to send @ as text"
        raise UserError(f"unknown moment {word[:40]}: {hint} ({as_text})")
    moment = _WITHOUT_ARGUMENT.get(name)
    if moment is None:
        argument, rest = _split_word(rest)
        moment = _make_moment(name, argument)
    line = text if name == _TO else rest
    if moment is None or not line.strip():
        raise UserError(f"{text[:60]!r} is incomplete; write it as {_USAGE[name]}")
    word, rest = _split_word(line)
    if word.casefold() != _TO:
        return ScheduledLine(moment, line, text)
    agent, rest = _split_word(rest)
    if not rest.strip():
        raise UserError(f"{text[:60]!r} has no agent or no line: write it as {_USAGE[_TO]}")
    if (name := _split_word(rest)[0].casefold()) in _USAGE:
        raise UserError(f"{text[:60]!r} has {name} behind {_TO}: write the moment first, and {_TO} once")
    return ScheduledLine(moment, rest, text, agent)


def _make_moment(name: str, argument: str) -> Moment | None:
    """Return the moment with this name and argument; ``None`` if the argument is malformed."""
    match name:
        case "@iteration":
            return AtIteration(int(argument)) if _COUNT.fullmatch(argument) else None
        case "@after":
            return After(float(argument)) if _SECONDS.fullmatch(argument) else None
        case _:
            return AtTool(argument) if argument else None


def _split_word(text: str) -> tuple[str, str]:
    first, *rest = text.split(None, 1) or [""]
    return first, rest[0] if rest else ""


def read_script(text: str, file: str) -> list[ScheduledLine]:
    """Parse a script with one line per row. Skip blank rows and comments, which begin with ``#``.

    Raise ``UserError`` with the ``file`` and the row if a moment is malformed.
    """
    lines = []
    for n, row in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        line = row.removesuffix("\r")
        if not line.strip() or line.startswith("#"):
            continue
        try:
            lines.append(parse_moment(line, strict=True))
        except UserError as error:
            raise UserError(error.message, file=file, line=n) from None
    return lines


MOMENT_EVENTS = (
    *(events.ToolCall, events.ToolResult, events.IterationStarted, events.Reply),
    *(events.AgentStarted, events.AgentEnded, events.Result),
)
"""The types of events for which ``is_due`` may return true."""


def is_due(moment: Moment, event: events.Event, to: str = "") -> bool:
    """Return whether ``event`` is the ``moment`` of a line. ``to`` is the line's agent, empty for main."""
    whose = to or MAIN
    match moment, event:
        case AtTool(name), events.ToolCall():
            return event.name == name
        case AtAgent(call), events.AgentStarted():
            return event.parent_id == call
        case AtAgent(call), events.ToolResult():
            return event.id == call
        case AtIteration(n), events.IterationStarted():
            return event.iteration == n and is_same_agent(event.agent, whose)
        case AtAnswer(), events.Reply():
            return event.tool_calls == 0 and is_same_agent(event.agent, whose)
        case AtDone(), events.Result():
            return is_same_agent(event.agent, whose)
        case AtDone(), events.AgentEnded():
            return is_same_agent(event.name, whose)
        case _:
            return False


def is_same_agent(name: str, written: str) -> bool:
    """Return whether an agent's name equals the name in a line, ignoring case."""
    return name.casefold() == written.casefold()
