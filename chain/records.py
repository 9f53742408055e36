"""The records of a session's journal, as a union of frozen types, and their JSON both ways.

A journal is a file of JSON lines, one record a line: its ``type``, ``seq`` (from 1) and ``time`` (seconds since the
epoch), then the fields of its type. This module is the only one that knows their form. Records of other types are kept
as they are (``Unknown``), so that a journal of a newer version loses nothing.

Earlier forms are still read: a ``plan`` record without ``change`` holds all tasks, and a ``line`` record without
``urgency`` was ``urgent`` or not, and if it was nothing else, of the kind ``urgent``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, ClassVar, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from chain import messages
from chain.events import AnsweredBy, Author, Decision, Point, QuestionKind, State, Status, TaskView
from chain.messages import JsonObject, Usage

MAX_TIME = 1e12
"""Seconds since the epoch: thirty thousand years, and far from where a float ends."""


@dataclass(frozen=True, slots=True)
class Session:
    """The first record: which program opened the session, where, and with which model."""

    type: ClassVar[str] = "session"
    id: str
    version: str
    model: str
    workspace: str


@dataclass(frozen=True, slots=True)
class Line:
    """A line was accepted. A second record of the same id: the line now waits for another agent."""

    type: ClassVar[str] = "line"
    id: str
    text: str
    kind: str
    urgency: str
    agent: str
    origin: str = "prompt"


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of an accepted line; ``point`` and ``waited_s`` of one that was delivered."""

    type: ClassVar[str] = "receipt"
    id: str
    state: State
    agent: str
    iteration: int
    point: Point | None = None
    waited_s: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """A message was appended to an agent's conversation; ``line_ids`` are the lines that it delivers."""

    type: ClassVar[str] = "message"
    message: messages.Message
    agent: str
    parent_id: str
    is_interjection: bool = False
    line_ids: tuple[str, ...] = ()
    point: Point | None = None


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """The last ``messages`` messages left the conversation; ``reason`` is ``refused`` or ``new``."""

    type: ClassVar[str] = "withdrawn"
    messages: int
    agent: str
    reason: str


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """A tool is about to run: from here on it may have had effects."""

    type: ClassVar[str] = "tool_started"
    id: str
    name: str
    agent: str


@dataclass(frozen=True, slots=True)
class ToolFinished:
    """A tool that had started has a result."""

    type: ClassVar[str] = "tool_finished"
    id: str
    agent: str
    is_error: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class Question:
    """The user is asked something."""

    type: ClassVar[str] = "question"
    id: str
    kind: QuestionKind
    text: str
    agent: str
    tool_call_id: str
    name: str
    options: tuple[str, ...] = ()
    preview: str = ""
    protections: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a question."""

    type: ClassVar[str] = "answer"
    id: str
    text: str
    decision: Decision
    by: AnsweredBy
    agent: str


@dataclass(frozen=True, slots=True)
class TaskAdded:
    """A task came to the end of the plan."""

    type: ClassVar[str] = "plan"
    change: ClassVar[str] = "added"
    text: str
    by: Author


@dataclass(frozen=True, slots=True)
class TaskClosed:
    """Task ``n`` of the plan, counted from 1, is done or failed."""

    type: ClassVar[str] = "plan"
    change: ClassVar[str] = "closed"
    n: int
    state: Literal["DONE", "FAILED"]
    reason: str
    by: Author


@dataclass(frozen=True, slots=True)
class PlanReplaced:
    """The plan is these tasks now, all of them pending; none: it was cleared."""

    type: ClassVar[str] = "plan"
    change: ClassVar[str] = "replaced"
    texts: tuple[str, ...]
    by: Author


@dataclass(frozen=True, slots=True)
class PlanRestored:
    """The plan is these tasks now, each in its state: how every change was recorded once."""

    type: ClassVar[str] = "plan"
    change: ClassVar[str] = "restored"
    tasks: tuple[TaskView, ...]
    by: Author


PlanChange: TypeAlias = TaskAdded | TaskClosed | PlanReplaced | PlanRestored
"""What happened to a plan, from which with the plan before follows the plan after."""


@dataclass(frozen=True, slots=True)
class AgentStarted:
    """An agent begins to work for ``agent``, or is asked again; ``parent_id`` is the tool call that it works for."""

    type: ClassVar[str] = "agent_started"
    name: str
    kind: str
    parent_id: str
    task: str
    agent: str


@dataclass(frozen=True, slots=True)
class AgentEnded:
    """An agent has ended what it was started for; ``usage`` is with that of the agents that it started itself."""

    type: ClassVar[str] = "agent_ended"
    name: str
    parent_id: str
    status: Status
    iterations: int
    agent: str
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class Model:
    """Another model is asked from the next run on."""

    type: ClassVar[str] = "model"
    name: str


@dataclass(frozen=True, slots=True)
class Result:
    """A run ended."""

    type: ClassVar[str] = "result"
    status: Status
    result: str
    iterations: int
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class Unknown:
    """A record of a type that this version does not know, with all of its fields."""

    type: str
    raw: Mapping[str, Any]


Record: TypeAlias = (
    Session
    | Line
    | Receipt
    | Message
    | Withdrawn
    | ToolStarted
    | ToolFinished
    | Question
    | Answer
    | PlanChange
    | AgentStarted
    | AgentEnded
    | Model
    | Result
)
"""What this version writes."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A record with its place in the journal."""

    seq: int
    time: float
    record: Record | Unknown


def to_json(record: Record | Unknown) -> JsonObject:
    """The fields of a record as JSON, ``type`` apart."""
    match record:
        case Message(message=message):
            return {"message": messages.to_json(message), **_fields(record)}
        case TaskAdded() | TaskClosed() | PlanReplaced() | PlanRestored():
            return {"change": record.change, **_fields(record)}
        case Unknown(raw=raw):
            return dict(raw)
        case _:
            return _fields(record)


def from_json(raw: Mapping[str, Any]) -> Entry:
    """A row of a journal. Raises ``ValueError``, with what is wrong, for one that is no record."""
    type = raw.get("type")
    seq, time = raw.get("seq"), raw.get("time")
    if not isinstance(type, str) or not isinstance(seq, int) or not isinstance(time, int | float):
        raise ValueError("a record needs a type, a seq and a time")
    if not 0 <= time < MAX_TIME:
        raise ValueError("the time of a record is in seconds since the epoch")
    if type not in _KINDS or (type == "plan" and raw.get("change", "restored") not in list(_CHANGES)):
        rest = {name: value for name, value in raw.items() if name not in ("type", "seq", "time")}
        return Entry(seq, float(time), Unknown(type, rest))
    try:
        match type:
            case "message":
                record: Record = _read_message(raw)
            case "plan":
                record = _read_plan(raw)
            case "line" if "urgency" not in raw:
                record = _read_old_line(raw)
            case _:
                record = _read_fields(_KINDS[type], raw)
        return Entry(seq, float(time), record)
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise ValueError(f"record {seq}: a {type!r} record has not the form that it should have: {error}") from None


# ----------------------------------------------------------------------------------------------------------- the fields

_KINDS: dict[str, type[Any]] = {kind.type: kind for kind in get_args(Record)}


_CHANGES: dict[str, type[Any]] = {kind.change: kind for kind in get_args(PlanChange)}


@cache
def _hints(kind: Any) -> dict[str, Any]:  # noqa: ANN401 - a dataclass
    hints = get_type_hints(kind)
    return {f.name: hints[f.name] for f in fields(kind)}


def _fields(record: object) -> JsonObject:
    """The fields as JSON, but for a message, which has a form of its own."""
    kind: Any = type(record)
    return {name: _plain(getattr(record, name)) for name in _hints(kind) if name != "message"}


def _plain(value: Any) -> Any:  # noqa: ANN401 - the JSON edge
    if is_dataclass(value):
        return _fields(value)
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _read_fields(kind: Any, raw: Mapping[str, Any], **given: Any) -> Any:  # noqa: ANN401 - an object of the kind
    """An object of a type from its JSON; what the JSON leaves out has its default, and ``given`` are read already."""
    found = {name: _read(hint, raw[name], name) for name, hint in _hints(kind).items() if name in raw.keys() - given}
    return kind(**found, **given)


def _read(hint: Any, value: Any, name: str) -> Any:  # noqa: ANN401 - the JSON edge
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        if value is None:
            return None
        (hint,) = (each for each in inside if each is not type(None))
        return _read(hint, value, name)
    if origin is Literal:
        if value in inside:
            return value
    elif origin is tuple:
        if isinstance(value, list):
            return tuple(_read(inside[0], each, name) for each in value)
    elif is_dataclass(hint) and isinstance(hint, type):
        if isinstance(value, dict):
            return _read_fields(hint, value)
    elif hint is float:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    elif isinstance(value, hint) and isinstance(value, bool) == (hint is bool):
        return value
    raise ValueError(f"{name} is {value!r:.40}")


def _read_message(raw: Mapping[str, Any]) -> Message:
    message: Message = _read_fields(Message, raw, message=messages.from_json(raw["message"]))
    return message


def _read_old_line(raw: Mapping[str, Any]) -> Line:
    is_urgent = _read(bool, raw["urgent"], "urgent")
    kind = "redirect" if raw["kind"] == "urgent" else raw["kind"]
    line: Line = _read_fields(Line, {**raw, "kind": kind, "urgency": "urgent" if is_urgent else "next"})
    return line


def _read_plan(raw: Mapping[str, Any]) -> PlanChange:
    change: PlanChange = _read_fields(_CHANGES[raw.get("change", "restored")], raw)
    return change
