"""Rows for running calls, waiting lines and pending retries, and the final rows of lines and retries. Pure.

The rows of a call, line or retry in progress are redrawn when it changes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from chain import events
from chain.text.phrases import duration
from chain.text.wording import pluralize
from cli.show import call_rows, user_lines
from cli.show.place import RowPlace
from cli.show.rows import plan_author, task_rows
from cli.show.text_rows import columns, flat
from cli.show.toolbar import plan_progress

MOST_LINES = 4
"""The maximum number of waiting lines in the tail. If more lines wait, one of the rows counts the other lines."""
MOST_CALLS = 4
"""The maximum number of rows of running calls. If there are more calls, the last row counts the other calls."""
LEAST_TEXT = 16
"""The minimum number of columns of a waiting line's text. With fewer, the time of delivery is on a row of its own."""

_CLAUSE = re.compile(r": |; |, |\. | \(")


def running_calls(calls: Sequence[events.ToolCall], place: RowPlace, now: float, most: int) -> list[str]:
    """Return at most ``most`` rows of running calls. If there are more calls, the last row counts the other calls."""
    most = min(most, MOST_CALLS)
    shown = calls if len(calls) <= most else calls[: most - 1]
    rows = [_running_call(call, place, now) for call in shown]
    if left := len(calls) - len(shown):
        rows.append(place.paint("dim", place.cut(f"{place.sign('…')} and {pluralize(left, 'more call')}")))
    return rows


def _running_call(call: events.ToolCall, place: RowPlace, now: float) -> str:
    took = max(now - call.time, 0.0)
    end = f" {place.sign('·')} {duration(took, whole=True)}" if took >= 1 else ""
    text = f"{place.sign('→')} {call_rows.label(call.name, call_rows.main_argument(call.name, call.input))}"
    return place.paint("cyan", place.cut(text, place.room - columns(end)) + end)


def waiting_lines(lines: Sequence[events.LineQueued], place: RowPlace, most: int) -> list[str]:
    """Return at most ``most`` rows of the latest waiting lines. If more lines wait, the first row counts the others."""
    shown = [_waiting_line(line, place) for line in (lines if len(lines) <= MOST_LINES else lines[1 - MOST_LINES :])]
    while (len(shown) < len(lines)) + sum(map(len, shown)) > most:
        del shown[0]
    left = len(lines) - len(shown)
    counts = [place.paint("dim", place.cut(f"{place.sign('📤')} {pluralize(left, 'more line')}"))] if left else []
    return [*counts, *(row for line in shown for row in line)]


def _waiting_line(event: events.LineQueued, place: RowPlace) -> list[str]:
    begin, text, end = user_lines.waiting_row(event, place.sign)
    end = end.replace(user_lines.NO_BREAK, " ")
    room = place.width - columns(begin) - columns(end)
    if columns(text) <= room or room >= LEAST_TEXT:
        return [place.paint("dim", f"{begin}{place.cut(text, room)}{end}")]
    return [place.paint("dim", place.cut(row)) for row in (f"{begin}{text}", f" {end}")]


def unsent_line(event: events.LineQueued, place: RowPlace) -> list[str]:
    """Return the rows of a line that still waits after the last event of the session. Its text is not cut."""
    begin, _, end = user_lines.waiting_row(event, place.sign)
    return place.spans([("dim", f"{begin}{user_lines.fold(event.text, place.room)}{end}")])


def settled_line(event: events.Receipt, place: RowPlace) -> list[str]:
    """Return the final rows of a line that did not reach the model, with its text in full.

    Return no rows for a receipt whose outcome other events already show, such as a delivery.
    """
    if (settled := user_lines.settled_parts(event)) is None:
        return []
    sign, words, style = settled
    return place.spans([(style, f"{place.sign(sign)} {words}{user_lines.fold(event.text, place.room)}")])


def delivered_lines(event: events.UserInterruption, lines: Sequence[events.LineQueued], place: RowPlace) -> list[str]:
    """Return the rows of lines that were delivered together."""
    event = replace(event, message=user_lines.fold(event.message, place.room))
    return place.spans(user_lines.whole_delivery_spans(event, lines, place.sign))


def countdown(event: events.Retry, place: RowPlace, now: float) -> str:
    """Return the row of a pending retry, with the seconds until it starts."""
    left = ceil(event.time + event.delay_s - now)
    when = f", again in {duration(left, whole=True)}" if left > 0 else ", asking again"
    end = f"{when} (attempt {event.attempt}), Esc ends"
    beginning = place.cut(f"{place.sign('↻')} {_cause(event)}", max(place.room - columns(end), place.room // 3))
    return place.paint("yellow", place.cut(f"{beginning}{end}"))


def ended_retries(last: events.Retry, count: int, ended: str, took: float, place: RowPlace) -> str:
    """Return the row of a finished series of ``count`` retries, which took ``took`` seconds and ended as ``ended``."""
    often = "" if count == 1 else f" {count} times"
    return place.line("↻", f"{_cause(last)}{often}, {ended} after {duration(took, whole=True)}", "dim")


def changed_task(event: events.PlanChanged, task: events.TaskView, place: RowPlace) -> str:
    """Return the row of a plan in which only ``task`` has changed: the plan's progress, and this task."""
    progress = plan_progress(each.state for each in event.tasks)
    by = plan_author(event, place)
    return place.one_row(f"Plan {progress}{by}: {task_rows([task], place)[0].strip()}")


def _cause(event: events.Retry) -> str:
    return _CLAUSE.split(flat(event.reason), maxsplit=1)[0]
