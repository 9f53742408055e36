"""A tool call and its outcome on one row: the main argument of the call, and the summary of its result. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chain import events
from chain.text.escalations import DENIED_BY_SANDBOX
from chain.text.phrases import duration
from cli.show.place import RowPlace, rows_of
from cli.show.signs import MINUS
from cli.show.text_rows import columns, flat

COMMAND_TOOL = "shell"
"""The tool that runs commands."""
LISTING = "list_files"
"""The tool whose only argument is optional."""
LEAST_S = 1.0
"""Seconds below which the duration of a call is not shown."""
LEAST_FACT = 12
"""The minimum number of columns of the last summary part, if that part is cut to fit the row."""
MAX_ARGUMENT = 400
"""The number of characters of an argument that are processed: more than a row can show."""

_MAIN_ARGUMENTS = ("path", "command", "pattern", "query", "task", "topic", "question")
"""Names of main arguments. If a call has several, the first in the call counts: models write the main one first."""
_QUOTED = ("pattern", "query")
_OPENINGS = frozenset("{[")


def main_argument(name: str, input: Mapping[str, Any]) -> str:
    """Return the main argument of a call as text. Without one, return the first argument that is a text, else all."""
    texts = {key: value for key, value in input.items() if isinstance(value, str) and value.strip()}
    if not texts and name == LISTING:
        return "."
    key = next((key for key in texts if key in _MAIN_ARGUMENTS), next(iter(texts), ""))
    if not key:
        return flat(", ".join(f"{key}={value}" for key, value in input.items() if value is not None)[:MAX_ARGUMENT])
    # Only the part that a row can show is processed: an argument may be a whole file.
    text = flat(texts[key][:MAX_ARGUMENT])
    return f'"{text}"' if key in _QUOTED else text


def label(name: str, about: str) -> str:
    """Return a call's name and its main argument. Two spaces precede a command, since it contains spaces itself."""
    return f"{flat(name)}{'  ' if name == COMMAND_TOOL and about else ' ' if about else ''}{about}"


def summary_parts(event: events.ToolResult) -> list[str]:
    """Return the parts of a result's summary, most important first; without a summary, the first row of its text."""
    if event.summary or event.exit_code is not None:
        return [flat(part) for part in event.summary]
    rows = [row for row in rows_of(event.text) if row.strip()]
    # A row that only opens a bracket, as in JSON, is skipped.
    has_words = rows and rows[0].strip() not in _OPENINGS
    return [flat(rows[0] if has_words else " ".join(rows)[:MAX_ARGUMENT])] if rows else []


def has_failed(event: events.ToolResult) -> bool:
    """Return whether a call is shown as failed: its result is an error, or its command had a nonzero exit status."""
    return event.is_error or event.exit_code not in (None, 0)


def is_refusal(event: events.ToolResult) -> bool:
    """Return whether a call failed with a result whose whole text is the reason: an error without a summary."""
    return event.is_error and not event.summary


def settled_call(event: events.ToolResult, about: str, more: Sequence[str], place: RowPlace) -> list[str]:
    """Return the rows of a call that has ended: one, or up to two with the reason of a failure.

    ``about`` is the call's main argument. ``more`` are further parts of the summary. Each denial of the sandbox has an
    additional row.
    """
    dot = f" {place.sign('·')} "
    did, found = label(event.name, about), [fact.replace(MINUS, place.sign(MINUS)) for fact in summary_parts(event)]
    took = [duration(event.seconds)] if event.seconds >= LEAST_S else []
    if is_refusal(event):
        # A refusal ends with how to allow the call, so the argument leaves room for that, and for the word that does
        # not fit into the first row.
        before, after = f"{place.sign('✗')} {place.who}", dot.join(["", *more, flat(event.text)])
        room = 2 * place.room - LEAST_FACT - columns(before) - columns(after)
        return place.failure_rows(f"{before}{place.cut(did, max(room, place.room // 3))}{after}", 2)
    # This row says how to allow the call, so it must not be cut.
    denied = [f"  {fact}" for fact in found if fact.startswith(DENIED_BY_SANDBOX)]
    found = [fact for fact in found if not fact.startswith(DENIED_BY_SANDBOX)]
    failed = has_failed(event)
    sign, style = ("✗", "red") if failed else ("✓", "green")
    before = f"{place.sign(sign)} {place.who}"
    needed = [*found[: 1 + failed], *more]
    # The summary gets the room that it needs, but leaves a third of the row to the argument.
    room = place.room - columns(before) - columns(dot.join(["", *needed]))
    shown = before + place.cut(did, max(room, place.room // 3))
    parts = [*found, *took, *more] if failed else [*took, *found, *more]
    row = dot.join([shown, *parts])
    if columns(row) > place.room:
        *first, last = found[: 1 + failed] or [""]
        left = place.room - columns(dot.join([shown, *first, "", *more]))
        last = place.cut(last, left) if left >= LEAST_FACT else last
        row = dot.join(part for part in (shown, *first, last, *more) if part)
    whole = place.cut(row)
    if failed:
        return [place.paint(style, row) for row in (whole, *map(place.cut, denied))]
    begin, end = len(place.sign(sign)), len(shown)
    row = place.paint(style, whole[:begin]) + whole[begin:end] + place.paint("dim", whole[end:])
    return [row, *map(place.cut, denied)]
