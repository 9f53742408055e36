"""Phrases for events, shared by the terminal, exports and editors. Pure."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeAlias

from chain import events
from chain.events import Point, Status, TaskState
from chain.text.escalations import ESCALATION_PHRASES
from chain.text.plain import sanitize
from chain.text.wording import MAIN, pluralize, truncate

MAX_INPUT = 160
"""The maximum number of characters of a tool call's arguments on one row."""

BOXES: dict[TaskState, str] = {"PENDING": "[ ]", "DONE": "[✓]", "FAILED": "[✗]"}

_POINTS = {
    Point.BEFORE_FIRST_CALL: "before the first model call",
    Point.AFTER_REPLY: "after the reply",
    Point.BEFORE_TOOL: "before a tool",
    Point.AFTER_TOOLS: "after the tools",
    Point.AT_ONCE: "at once, cancelling the current step",
}

_POINTS_IN_ROWS = {
    Point.START: "at the start",
    Point.BEFORE_FIRST_CALL: "at the start",
    Point.AFTER_REPLY: "after the reply",
    Point.BEFORE_TOOL: "before a tool",
    Point.AFTER_TOOLS: "before a tool",
    Point.AT_ONCE: "at once",
}


def plan_progress(states: Sequence[TaskState]) -> str:
    """Return how many tasks of a plan are in each state, as text. ``states`` are the states of its tasks."""
    return f"{states.count('DONE')} done, {states.count('FAILED')} failed, {states.count('PENDING')} pending"


def local_time(unix_time: float, format: str = "%Y-%m-%d %H:%M") -> str:
    """Format a Unix time as local time; ``format`` is for ``strftime``. Return "" if the time is out of range."""
    try:
        return time.strftime(format, time.localtime(unix_time))
    except (OverflowError, ValueError, OSError):
        return ""


def iso_time(unix_time: float) -> str:
    """Format a Unix time in ISO 8601, in UTC. Return "" if the time is out of range."""
    try:
        return datetime.fromtimestamp(unix_time, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return ""


def duration(seconds: float, *, whole: bool = False) -> str:
    """Format a duration, such as ``2.5 s``. ``whole`` omits fractions of a second, for a text updated each second."""
    seconds = max(seconds, 0.0)
    if seconds < 60:
        return f"{int(seconds)} s" if whole else f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    if seconds < 86_400:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"
    return f"{int(seconds // 86_400)} d {int(seconds % 86_400 // 3600)} h"


def cost(usd: float) -> str:
    """Format an amount of US dollars: with four decimals below one dollar, else with two."""
    return f"${usd:.4f}" if usd < 1 else f"${usd:,.2f}"


def describe_status(status: Status | None) -> str:
    """Return the status of a run in words. ``None`` is the status of a run that did not end."""
    return "did not end" if status is None else status.replace("_", " ")


def was_stopped(status: Status | None) -> bool:
    """Return whether a run with this status was stopped or interrupted. ``None``: the run did not end."""
    return status is not None and (status.startswith("cancelled") or status == "interrupted")


def describe_delivery(event: events.UserInterruption, urgency: str) -> str:
    """Describe where lines entered the conversation, and how long the first of these lines had waited.

    ``urgency`` is the urgency of the most urgent line.
    """
    target = "" if event.target_agent == MAIN else f" of {event.target_agent}"
    marked = {"urgent": "Urgent interruption", "now": "Immediate interruption"}.get(urgency, "Interruption")
    where = f"{_POINTS.get(event.point, '')} (point {event.point})"
    at = f"in iteration {event.iteration}, " if event.iteration else ""
    waited = f", waited {duration(event.waited_s)}" if event.waited_s >= 0.05 else ""
    lines = f" ({pluralize(len(event.ids), 'line')})" if len(event.ids) > 1 else ""
    return sanitize(f"{marked}{target}{lines}: {at}{where}{waited}")


def delivery_in_row(point: Point, last_tool: str) -> str:
    """Describe in a few words where lines entered the conversation.

    ``last_tool`` is the last tool that ran before that in the same iteration; empty if none ran.
    """
    is_at_tools = point in (Point.BEFORE_TOOL, Point.AFTER_TOOLS)
    return f"after {last_tool}" if is_at_tools and last_tool else _POINTS_IN_ROWS[point]


def describe_answer(answer: events.Answer) -> str:
    """Return the outcome of a question in words."""
    text = f": {answer.text}" if answer.text else ""
    match answer.decision:
        case "allowed" if answer.is_for_always:
            return 'allowed: you said "always" before' if answer.by == "config" else "allowed from now on"
        case "allowed" if answer.escalation is not None:
            return f"allowed once {ESCALATION_PHRASES[answer.escalation]}"
        case "allowed":
            return f"allowed{' without asking' if answer.by == 'config' else ''}"
        case "refused" if answer.by == "nobody":
            return "denied: no one is available to approve it"
        case "refused" if answer.by == "config":
            return "denied: the mode is read only"
        case "answered" | "refused":
            return f"{answer.decision}{text}"
        case _:
            return "withdrawn"


def answer_sentence(answer: events.Answer | None) -> str:
    """Return the outcome of a question as a sentence. ``answer`` is ``None`` if nothing answered the question."""
    text = "no answer" if answer is None else describe_answer(answer)
    return sanitize(text[0].upper() + text[1:])


def describe_receipt(event: events.Receipt) -> str:
    """Describe the outcome of a line that did not reach the model, without the line's text.

    Return an empty text for any other outcome, since other events show that outcome.
    """
    why = f" ({event.reason.strip()})" if event.reason else ""
    match event.state:
        case "returned" | "dropped":
            return f"{event.state.capitalize()}{why}"
        case "unsent":
            return f"Never sent{why}"
        case "handled" if event.is_stop:
            return "The user stopped"
        case "handled":
            return f"{'Not done' if why else 'Done'}{why}"
        case _:
            return ""


def located_message(event: events.Notice | events.Error) -> str:
    """Return the message of an event, after the event's file and line if the event has them."""
    place = ":".join(str(part) for part in (event.file, event.line) if part is not None)
    return f"{place}: {event.message}" if place else event.message


_COMPACTION_REASONS: Mapping[events.CompactedBy, str] = {
    "fill": "the window was nearly full",
    "service": "the request was too long for the service",
    "user": "as you asked",
}


def describe_compaction(event: events.Compaction) -> str:
    """Return the outcome of a compaction as a sentence without a full stop."""
    if event.state == "failed":
        return "The conversation was not compacted"
    sizes = f"from {event.tokens_before:,} to {event.tokens_after:,} tokens"
    return f"Conversation compacted {sizes}: {_COMPACTION_REASONS[event.by]}"


RemarkEvent: TypeAlias = (
    events.Notice | events.Error | events.Retry | events.LineRefused | events.Receipt | events.Compaction
)
"""Events that front ends show as remarks between the actions of the agents."""


def describe_remark(event: RemarkEvent) -> tuple[str, str]:
    """Return the kind and the text of a remark.

    The kind is ``error``, ``back`` (a line was refused or did not reach the model), or ``note`` for anything else.
    """
    match event:
        case events.Error():
            return "error", sanitize(located_message(event))
        case events.Notice():
            return "note", sanitize(located_message(event))
        case events.Compaction():
            return "note", f"{describe_compaction(event)}."
        case events.Retry():
            return "note", sanitize(f"Retried after {duration(event.delay_s)}: {event.reason}")
        case events.Receipt(state="delivered", reason=reason):
            return "note", sanitize(f"Delivered {' '.join(reason.split())}")
        case events.LineRefused():
            return "back", sanitize(f"Line refused ({event.reason}): {event.text}")
        case _:
            return "back", sanitize(f"{describe_receipt(event)}: {event.text}")


def short_input(input: Mapping[str, object]) -> str:
    """Return the arguments of a tool call on one row, truncated to ``MAX_INPUT`` characters."""
    parts = []
    for name, value in input.items():
        text = value[:MAX_INPUT] if isinstance(value, str) else value
        parts.append(f"{name}={json.dumps(text, ensure_ascii=False, default=str)}")
    return truncate(sanitize(", ".join(parts)), MAX_INPUT)


def full_input(input: Mapping[str, object]) -> str:
    """Return the arguments of a tool call as indented JSON."""
    return json.dumps(input, ensure_ascii=False, indent=2, default=str)


def unshown_result(event: events.Result) -> str:
    """Return the end of a result that no streamed reply has shown yet.

    Such an end is an error, the message of a stop, or the findings before a stop; empty if the replies have it all.
    """
    text = event.result.strip()
    shown = max((r.strip() for r in event.replies if text.startswith(r.strip())), key=len, default="")
    return text.removeprefix(shown).strip()
