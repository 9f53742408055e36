"""What a row of JSON input asks for, on standard input or through the side door. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from chain.lines.parse import MAX_LINE, Urgency
from cli.input.splitter import RawLine
from cli.nearest import nearest_command

SHOWN = 200
"""Characters that are shown of a row that was not understood."""
MAX_ID = 200
"""Characters of an id, which is in the journal and in every receipt."""

_MARKS = ("urgent", "now")
_KEYS = {
    "line": ("text", "id", "to", *_MARKS),
    "interrupt": (),
    "drop": (),
    "answer": ("text",),
    "watch": (),
    "hello": ("answers",),
}
"""What the objects of each type may have, beside ``type`` and the ``id`` that an error would be answered with."""

AS_JSON = (
    '{"type":"line","id":"...","text":"...","urgent":false,"now":false,"to":"main"}, {"type":"interrupt"}, '
    '{"type":"drop","id":"..."} or {"type":"answer","id":"Q1","text":"y"}'
)
AT_THE_DOOR = f'{AS_JSON}, at the door also {{"type":"watch"}} and {{"type":"hello","answers":true}}'

_ID = re.compile(r'"id"\s*:\s*("(?:[^"\\]|\\.)*")')
"""Finds the id in an object that was cut off."""


@dataclass(frozen=True, slots=True)
class JsonLine:
    """A line for the chain; ``id`` is its sender's own, ``to`` the agent that it is addressed to."""

    text: str
    id: str = ""
    urgency: Urgency = "next"
    to: str = ""


@dataclass(frozen=True, slots=True)
class Interrupt:
    """An interrupt, as Esc is one."""


@dataclass(frozen=True, slots=True)
class Drop:
    """A line that waits is to be removed."""

    id: str


@dataclass(frozen=True, slots=True)
class JsonAnswer:
    """An answer to a question."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Hello:
    """Whether a client of the side door answers questions from now on."""

    answers: bool


@dataclass(frozen=True, slots=True)
class Watch:
    """A client of the side door wants to hear of everything from now on."""


@dataclass(frozen=True, slots=True)
class Malformed:
    """A row that is none of these: the text to show, its id, and what is wrong with it."""

    text: str
    id: str
    why: str


JsonRow: TypeAlias = JsonLine | Interrupt | Drop | JsonAnswer | Hello | Watch | Malformed


def read_row(raw: RawLine, *, at_door: bool = False) -> JsonRow | None:
    """What a row asks for; ``None`` for a blank one. ``Hello`` and ``Watch`` are understood at the door alone."""
    if not raw.text.strip():
        return None
    found = {} if raw.cut else _object(raw.text)
    if _unknown_key(found):
        return _malformed(raw, found, at_door=at_door)
    match found:
        case {"type": "interrupt"}:
            return Interrupt()
        case {"type": "drop", "id": str(id)}:
            return Drop(id)
        case {"type": "answer", "id": str(id), "text": str(text)}:
            return JsonAnswer(id, text)
        case {"type": "line", "text": str(text), **rest} if not _mistake_in_options(rest):
            urgency: Urgency = "now" if rest.get("now") else "urgent" if rest.get("urgent") else "next"
            return JsonLine(text, str(rest.get("id", "")), urgency, str(rest.get("to", "")))
        case {"type": "watch"} if at_door:
            return Watch()
        case {"type": "hello", "answers": bool(answers)} if at_door:
            return Hello(answers)
        case _:
            return _malformed(raw, found, at_door=at_door)


def _object(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _malformed(raw: RawLine, found: Mapping[str, Any], *, at_door: bool) -> Malformed:
    id, text = found.get("id"), found.get("text")
    if raw.cut:
        why = f"line {raw.number} of the input is too long; a line has at most {MAX_LINE:,} characters"
        cut = _ID.search(raw.text)
        id = _object(f'{{"id":{cut[1]}}}').get("id") if cut else None
    else:
        forms = AT_THE_DOOR if at_door else AS_JSON
        why = f"line {raw.number} of the input was not understood ({_mistake(found, at_door=at_door)}); write {forms}"
    shown = text if isinstance(text, str) else raw.text[:SHOWN]
    return Malformed(shown, id[:MAX_ID] if isinstance(id, str) else "", why)


def _mistake(found: Mapping[str, Any], *, at_door: bool) -> str:
    """What is wrong with an object that is nothing that was asked for."""
    if (unknown := _unknown_key(found)) and (at_door or found["type"] not in ("watch", "hello")):
        near = nearest_command(unknown, ("type", "id", *_KEYS[found["type"]]))
        return f"the key {unknown[:40]!r} is unknown" + (f"; did you mean {near!r}?" if near else "")
    match found:
        case {"type": "line", "text": str(), **rest}:
            return _mistake_in_options(rest)
        case {"type": "line"}:
            return "its text is missing or is not a string"
        case {"type": "answer"}:
            return "its id and its text must be strings"
        case {"type": "drop"}:
            return "its id must be a string"
        case {"type": "hello"} if at_door:
            return "its answers must be true or false"
        case {"type": type}:
            return f"the type {str(type)[:40]!r} is unknown"
        case _:
            return "it has no type" if found else "it is not a JSON object"


def _unknown_key(found: Mapping[str, Any]) -> str:
    """The first key that an object of its type does not have; empty for none, and for an unknown type."""
    type = found.get("type")
    known = _KEYS.get(type) if isinstance(type, str) else None
    return "" if known is None else next((key for key in found if key not in ("type", "id", *known)), "")


def _mistake_in_options(rest: Mapping[str, Any]) -> str:
    """What is wrong with the optional keys of a line; empty for nothing."""
    id = rest.get("id", "")
    if not all(isinstance(rest.get(mark, False), bool) for mark in _MARKS):
        return f"{' and '.join(_MARKS)} must be true or false"
    if not isinstance(rest.get("to", ""), str):
        return "its to must be the name of an agent, a string"
    if not isinstance(id, str):
        return "its id must be a string"
    return "" if len(id) <= MAX_ID and id.isprintable() else "its id cannot be printed, or is too long"
