"""How an export puts things into words: times, sums, how a work ended, where lines landed. Pure."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime

from chain import events
from chain.events import Status
from chain.export.outline import Call, Landed
from chain.lines.parse import is_stop
from chain.text.plain import clean
from chain.text.wording import MAIN, STOPPED_BY_RULE, counted

MAX_INPUT = 160
"""Characters of a call's input beside its name."""

_POINTS = {
    "start": "as the query",
    "A": "before the first model call",
    "B": "after the reply",
    "C": "before a tool",
    "D": "after the tools",
    "N": "at once, cutting the work",
}


def when(moment: float) -> str:
    """A time of day with its date, where the export is made; empty for a time that no calendar has."""
    return _formatted(moment, "%Y-%m-%d %H:%M")


def clock(moment: float) -> str:
    """A time of day."""
    return _formatted(moment, "%H:%M:%S")


def _formatted(moment: float, form: str) -> str:
    try:
        return time.strftime(form, time.localtime(moment))
    except (OverflowError, ValueError, OSError):
        return ""


def iso(moment: float) -> str:
    """A time for programs."""
    try:
        return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return ""


def duration(seconds: float) -> str:
    """How long something took."""
    seconds = max(seconds, 0.0)
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    if seconds < 86_400:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"
    return f"{int(seconds // 86_400)} d {int(seconds % 86_400 // 3600)} h"


def cost(usd: float) -> str:
    """US dollars."""
    return f"${usd:.4f}" if usd < 1 else f"${usd:,.2f}"


def outcome(status: Status | None) -> str:
    """How a work ended."""
    return "did not end" if status is None else status.replace("_", " ")


def landed(item: Landed) -> str:
    """Where lines of the user landed, and how long they had waited."""
    event = item.event
    target = "" if event.target_agent == MAIN else f" of {event.target_agent}"
    marked = {"urgent": "Urgent interruption", "now": "Immediate interruption"}.get(item.urgency, "Interruption")
    where = f"{_POINTS.get(event.point, '')} (point {event.point})"
    at = f"in iteration {event.iteration}, " if event.iteration else ""
    waited = f", waited {duration(item.waited_s)}" if item.waited_s >= 0.05 else ""
    lines = f" ({counted(len(event.ids), 'line')})" if len(event.ids) > 1 else ""
    return clean(f"{marked}{target}{lines}: {at}{where}{waited}")


def answered(answer: events.Answer | None) -> str:
    """What became of a question."""
    if answer is None:
        return "No answer"
    by = {"config": " by the configuration", "nobody": ", since nobody could be asked"}.get(answer.by, "")
    text = f": {answer.text}" if answer.text and answer.decision in ("answered", "refused") else ""
    return clean(f"{answer.decision.capitalize()}{by}{text}")


def told(event: events.Notice | events.Error | events.Retry | events.LineRefused | events.Receipt) -> tuple[str, str]:
    """A kind (``note``, ``error`` or ``back``) and a sentence."""
    match event:
        case events.Notice() | events.Error():
            place = ":".join(str(part) for part in (event.file, event.line) if part is not None)
            kind = "error" if isinstance(event, events.Error) else "note"
            return kind, clean(f"{place}: {event.message}" if place else event.message)
        case events.Retry():
            return "note", clean(f"Asked again after {duration(event.delay_s)}: {event.reason}")
        case events.LineRefused():
            return "back", clean(f"Line refused ({event.reason}): {event.text}")
        case events.Receipt(state="handled"):
            if event.reason == STOPPED_BY_RULE or is_stop(event.text):
                return "back", clean(f"The user stopped: {event.text}")
            return "back", clean(f"Done without the model{_reason(event)}: {event.text}")
        case _:
            state = {"returned": "Returned to the user", "dropped": "Dropped", "unsent": "Never sent"}.get(
                event.state, ""
            )
            return "back", clean(f"{state}{_reason(event)}: {event.text}")


def _reason(event: events.Receipt) -> str:
    return f" ({event.reason})" if event.reason else ""


def state(call: Call) -> str:
    """How a call went."""
    if call.result is None:
        return "did not end"
    if call.input is None:
        return "not started"
    return f"{'failed, ' if call.result.is_error else ''}{duration(call.result.seconds)}"


def short_input(input: Mapping[str, object]) -> str:
    """The arguments of a call on one row, cut."""
    parts = [f"{name}={_json(value[:MAX_INPUT] if isinstance(value, str) else value)}" for name, value in input.items()]
    row = clean(", ".join(parts))
    return row if len(row) <= MAX_INPUT else f"{row[:MAX_INPUT]}…"


def whole_input(input: Mapping[str, object]) -> str:
    """The arguments of a call, each on rows of its own."""
    return json.dumps(input, ensure_ascii=False, indent=2, default=str)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def result_text(run_result: events.Result) -> str:
    """What a result says beyond the replies that came before it: the words of a stop, what was found, an error."""
    text = run_result.result.strip()
    shown = max((r.strip() for r in run_result.replies if text.startswith(r.strip())), key=len, default="")
    return text.removeprefix(shown).strip()
