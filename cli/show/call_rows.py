"""A tool call and what became of it, on one row: the call's natural argument, and the facts of its result. Pure."""

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
"""The tool whose only argument may be left out."""
LEAST_S = 1.0
"""Seconds of a call that took so little that nobody asks how long."""
LEAST_FACT = 12
"""Columns of what a call gave, if it has to be cut."""
MAX_ARGUMENT = 400
"""Characters of an argument: more than a row has."""

_NATURAL = ("path", "command", "pattern", "query", "task", "topic", "question")
"""The names of the arguments that a call is known by; models write the more important one first."""
_QUOTED = ("pattern", "query")
_OPENINGS = frozenset("{[")


def subject(name: str, input: Mapping[str, Any]) -> str:
    """Return what a call is about, as people say it: its path, command, pattern, or else its first text."""
    texts = {key: value for key, value in input.items() if isinstance(value, str) and value.strip()}
    if not texts and name == LISTING:
        return "."
    key = next((key for key in texts if key in _NATURAL), next(iter(texts), ""))
    if not key:
        return flat(", ".join(f"{key}={value}" for key, value in input.items() if value is not None)[:MAX_ARGUMENT])
    # What a row cannot show is not processed either: an argument may be a whole file.
    text = flat(texts[key][:MAX_ARGUMENT])
    return f'"{text}"' if key in _QUOTED else text


def head(name: str, about: str) -> str:
    """Return a call's name and what it is about. A command has words of its own, so it stands apart."""
    return f"{flat(name)}{'  ' if name == COMMAND_TOOL and about else ' ' if about else ''}{about}"


def facts(event: events.ToolResult) -> list[str]:
    """Return the parts of a result's summary, the most important first; of one without a summary its first row."""
    if event.summary or event.exit_code is not None:
        return [flat(part) for part in event.summary]
    rows = [row for row in rows_of(event.text) if row.strip()]
    # A row that only opens a bracket says nothing, as of JSON.
    has_words = rows and rows[0].strip() not in _OPENINGS
    return [flat(rows[0] if has_words else " ".join(rows)[:MAX_ARGUMENT])] if rows else []


def has_failed(event: events.ToolResult) -> bool:
    """Return whether a call failed, as people see it: a command that ends with an error gives a result."""
    return event.is_error or event.exit_code not in (None, 0)


def is_refusal(event: events.ToolResult) -> bool:
    """Return whether a call failed with a text that says why, and has no summary of what it did."""
    return event.is_error and not event.summary


def settled_call(event: events.ToolResult, about: str, more: Sequence[str], place: RowPlace) -> list[str]:
    """Return the row of a call that has ended, at most two of an error; ``more`` is what else there is to say.

    What the sandbox denied has a row of its own.
    """
    dot = f" {place.sign('·')} "
    did, found = head(event.name, about), [fact.replace(MINUS, place.sign(MINUS)) for fact in facts(event)]
    took = [duration(event.seconds)] if event.seconds >= LEAST_S else []
    if is_refusal(event):
        # The reason of a refusal ends with what would allow the call, so the argument leaves room for that, and for the
        # word that does not fit into the first row.
        before, after = f"{place.sign('✗')} {place.who}", dot.join(["", *more, flat(event.text)])
        room = 2 * place.room - LEAST_FACT - columns(before) - columns(after)
        return place.refusal(f"{before}{place.cut(did, max(room, place.room // 3))}{after}", 2)
    # It says how to allow it, so it must not be cut.
    denied = [f"  {fact}" for fact in found if fact.startswith(DENIED_BY_SANDBOX)]
    found = [fact for fact in found if not fact.startswith(DENIED_BY_SANDBOX)]
    failed = has_failed(event)
    sign, style = ("✗", "red") if failed else ("✓", "green")
    before = f"{place.sign(sign)} {place.who}"
    needed = [*found[: 1 + failed], *more]
    # The argument leaves room for what is needed, and that leaves a third of the row to the argument.
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
