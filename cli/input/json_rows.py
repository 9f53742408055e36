"""Parses rows of JSON input, from standard input or the side door, into requests. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from chain.lines.parse import MAX_LINE, Urgency, nearest_word
from cli.input.splitter import RawLine

MAX_SHOWN_ROW = 200
"""Maximum characters of a malformed row that an error shows."""
MAX_LINE_ID = 200
"""Maximum characters of a line's id, which is stored in the journal and in every receipt."""

AS_JSON = (
    '{"type":"line","id":"...","text":"...","urgent":false,"now":false,"to":"main"}, {"type":"interrupt"}, '
    '{"type":"drop","id":"..."} or {"type":"answer","id":"Q1","text":"y"}'
)
AT_THE_DOOR = f'{AS_JSON}, at the door also {{"type":"watch"}} and {{"type":"hello","answers":true}}'

_ID = re.compile(r'"id"\s*:\s*("(?:[^"\\]|\\.)*")')
"""Matches the id in a JSON object whose end is missing."""


@dataclass(frozen=True, slots=True)
class JsonLine:
    """A line. ``id`` is chosen by the sender, or empty. ``to`` names the agent; if empty, the chain chooses it."""

    text: str
    id: str = ""
    urgency: Urgency = "next"
    to: str = ""


@dataclass(frozen=True, slots=True)
class Interrupt:
    """A hard interrupt, like Esc."""


@dataclass(frozen=True, slots=True)
class Drop:
    """A request to drop a waiting line."""

    id: str


@dataclass(frozen=True, slots=True)
class JsonAnswer:
    """An answer to a question."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Hello:
    """A row by which a client of the side door offers to answer questions, or withdraws the offer."""

    answers: bool


@dataclass(frozen=True, slots=True)
class Watch:
    """A request from a client of the side door to get all events from now on."""


@dataclass(frozen=True, slots=True)
class Malformed:
    """A row that could not be parsed: a text to show, the row's id (empty if unknown), and the error."""

    text: str
    id: str
    error: str


JsonRow: TypeAlias = JsonLine | Interrupt | Drop | JsonAnswer | Hello | Watch | Malformed


def read_row(raw: RawLine, *, at_door: bool = False) -> JsonRow | None:
    """Parse a row into a request. Return ``Malformed`` on an error, and ``None`` for a blank row.

    ``Hello`` and ``Watch`` are accepted only ``at_door``, from a client of the side door.
    """
    if not raw.text.strip():
        return None
    if raw.is_cut:
        id_match = _ID.search(raw.text)
        found = _parse_object(f"{{{id_match[0]}}}") if id_match else {}
        error = f"line {raw.number} of the input is too long; a line has at most {MAX_LINE:,} characters"
    else:
        found = _parse_object(raw.text)
        row = _parse(found, at_door=at_door)
        if not isinstance(row, str):
            return row
        forms = AT_THE_DOOR if at_door else AS_JSON
        error = f"line {raw.number} of the input was not understood ({row}); write {forms}"
    id, text = found.get("id"), found.get("text")
    shown = text if isinstance(text, str) else raw.text[:MAX_SHOWN_ROW]
    return Malformed(shown, id[:MAX_LINE_ID] if isinstance(id, str) else "", error)


def _parse_object(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _parse(fields: Mapping[str, Any], *, at_door: bool) -> JsonRow | str:
    """Convert a JSON object to a request. Return the error as a text on failure."""
    if "type" not in fields:
        return "it has no type" if fields else "it is not a JSON object"
    type = fields["type"]
    form = _FORMS.get(type) if isinstance(type, str) and (at_door or type not in _AT_DOOR_ALONE) else None
    if form is None:
        return f"the type {str(type)[:40]!r} is unknown"
    make, wanted, optional, why = form
    keys = ("type", "id", *wanted, *optional)  # errors are reported with the id
    if unknown := next((key for key in fields if key not in keys), ""):
        near = nearest_word(unknown, keys)
        return f"the key {unknown[:40]!r} is unknown" + (f"; did you mean {near!r}?" if near else "")
    if not all(isinstance(fields.get(key), kind) for key, kind in wanted.items()):
        return why
    return make(**{key: fields[key] for key in (*wanted, *optional) if key in fields})


def _line(text: str, id: object = "", to: object = "", urgent: object = False, now: object = False) -> JsonLine | str:
    if not (isinstance(urgent, bool) and isinstance(now, bool)):
        return "urgent and now must be true or false"
    if not isinstance(to, str):
        return "the value of to must be a string, the name of an agent"
    if not isinstance(id, str):
        return "its id must be a string"
    if len(id) > MAX_LINE_ID or not id.isprintable():
        return "its id is too long, or has characters that cannot be printed"
    return JsonLine(text, id, "now" if now else "urgent" if urgent else "next", to)


_Form: TypeAlias = tuple[Callable[..., JsonRow | str], Mapping[str, type], Sequence[str], str]
_FORMS: Mapping[str, _Form] = {
    "line": (_line, {"text": str}, ("id", "to", "urgent", "now"), "its text is missing or is not a string"),
    "interrupt": (Interrupt, {}, (), ""),
    "drop": (Drop, {"id": str}, (), "its id must be a string"),
    "answer": (JsonAnswer, {"id": str, "text": str}, (), "its id and its text must be strings"),
    "watch": (Watch, {}, (), ""),
    "hello": (Hello, {"answers": bool}, (), "the value of answers must be true or false"),
}
"""For each type: the constructor, the required keys with their types, the optional keys, and the error message."""
_AT_DOOR_ALONE = ("watch", "hello")
