"""The records of a session's journal, as a union of frozen types, and their JSON both ways.

A journal is a file of JSON lines, one record a line: its ``type``, ``seq`` (from 1) and ``time`` (seconds since the
epoch), then the fields of its type, and ``upon`` where somebody acted in the step of an event. This module is the only
one that knows their form. Records of other types are kept as they are (``Unknown``), so that a journal of a newer
version loses nothing.

Earlier forms are still read: a ``plan`` record without ``change`` holds all tasks, and a ``line`` record without
``urgency`` was ``urgent`` or not, and if it was nothing else, of the kind ``urgent``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, ClassVar, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from chain import messages
from chain.events import AnsweredBy, Author, Decision, Phase, Point, QuestionKind, State, Status, TaskView
from chain.messages import JsonObject, Overrides, StopReason, Usage

MAX_TIME = 1e12
"""Seconds since the epoch: thirty thousand years, and far from where a float ends."""

_BRIEF = {"brief": True}
"""Marks a field that the JSON leaves out while it has its default."""


@dataclass(frozen=True, slots=True)
class Session:
    """The first record: which program opened the session, where, with which model and tools. More: it was resumed."""

    type: ClassVar[str] = "session"
    id: str
    version: str
    model: str
    workspace: str
    tools: tuple[str, ...] = field(default=(), metadata=_BRIEF)


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
    """A message was appended to an agent's conversation; ``line_ids`` are the lines that it delivers.

    For those, ``source`` is the handler prompt's, ``remaining`` counts the model calls that the run had left, and
    ``skipped`` names the tools that an urgent line kept from starting.
    """

    type: ClassVar[str] = "message"
    message: messages.Message
    agent: str
    parent_id: str
    is_interjection: bool = False
    line_ids: tuple[str, ...] = ()
    point: Point | None = None
    source: str = field(default="", metadata=_BRIEF)
    remaining: int = field(default=0, metadata=_BRIEF)
    skipped: tuple[str, ...] = field(default=(), metadata=_BRIEF)


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
    """A tool that had started has a result: ``text``, where other calls of the reply have none yet.

    All results of a reply are in the message that comes when the last one is there.
    """

    type: ClassVar[str] = "tool_finished"
    id: str
    agent: str
    is_error: bool
    seconds: float
    text: str = field(default="", metadata=_BRIEF)


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
    subject: str = field(default="", metadata=_BRIEF)
    """What a pattern of an allowance is compared with."""


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
    """A task came to the end of the plan; ``line_id``, here and below, is the line that asked for the change."""

    type: ClassVar[str] = "plan"
    change: ClassVar[str] = "added"
    text: str
    by: Author
    line_id: str = field(default="", metadata=_BRIEF)


@dataclass(frozen=True, slots=True)
class TaskClosed:
    """Task ``n`` of the plan, counted from 1, is done or failed."""

    type: ClassVar[str] = "plan"
    change: ClassVar[str] = "closed"
    n: int
    state: Literal["DONE", "FAILED"]
    reason: str
    by: Author
    line_id: str = field(default="", metadata=_BRIEF)


@dataclass(frozen=True, slots=True)
class PlanReplaced:
    """The plan is these tasks now, all of them pending; none: it was cleared."""

    type: ClassVar[str] = "plan"
    change: ClassVar[str] = "replaced"
    texts: tuple[str, ...]
    by: Author
    line_id: str = field(default="", metadata=_BRIEF)


@dataclass(frozen=True, slots=True)
class PlanRestored:
    """The plan is these tasks now, each in its state: one that was copied, and how every change was recorded once."""

    type: ClassVar[str] = "plan"
    change: ClassVar[str] = "restored"
    tasks: tuple[TaskView, ...]
    by: Author
    line_id: str = field(default="", metadata=_BRIEF)


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
class RequestSent:
    """A model call begins: what it carries beside the conversation.

    ``system`` and ``tools`` are digests (``digest``) of the system prompt and the tools; ``attempt`` counts from 1.
    """

    type: ClassVar[str] = "request"
    phase: ClassVar[str] = "sent"
    agent: str
    iteration: int
    system: str
    tools: str
    max_iterations: int = field(default=0, metadata=_BRIEF)
    attempt: int = field(default=1, metadata=_BRIEF)
    tail: tuple[str, ...] = field(default=(), metadata=_BRIEF)
    overrides: Overrides = field(default_factory=Overrides, metadata=_BRIEF)


@dataclass(frozen=True, slots=True)
class RequestEnded:
    """A model call came to its end; one that was cut has no such record.

    ``message`` is the reply if it was not appended, and ``cut_calls`` are those of its calls whose input was cut off. A
    call that failed has an ``error`` (with what the service said of asking again, and the ``parameters`` that it
    refused) instead of a ``stop_reason``; ``was_shown``: some of its reply had been shown.
    """

    type: ClassVar[str] = "request"
    phase: ClassVar[str] = "ended"
    agent: str
    iteration: int
    stop_reason: StopReason | None = None
    usage: Usage = field(default_factory=Usage, metadata=_BRIEF)
    message: messages.Message | None = field(default=None, metadata=_BRIEF)
    cut_calls: tuple[str, ...] = field(default=(), metadata=_BRIEF)
    error: str = field(default="", metadata=_BRIEF)
    retryable: bool = field(default=False, metadata=_BRIEF)
    retry_after: float | None = field(default=None, metadata=_BRIEF)
    parameters: tuple[str, ...] = field(default=(), metadata=_BRIEF)
    was_shown: bool = field(default=False, metadata=_BRIEF)


Request: TypeAlias = RequestSent | RequestEnded
"""The two records of a model call."""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """An agent's work in hand was cut: ``what`` it was doing, and ``by`` whom.

    ``user``: by an interrupt, which is for all agents below it too. ``line``: by a now line or a stop. ``time``: by the
    time limit.
    """

    type: ClassVar[str] = "interrupted"
    agent: str
    iteration: int
    what: Phase
    by: Literal["user", "line", "time"]


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
    | Request
    | Interrupted
    | Result
)
"""What this version writes."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A record with its place in the journal.

    ``upon`` is the event in whose very step it was written, if somebody acted on hearing of that (``moment_of``).
    """

    seq: int
    time: float
    record: Record | Unknown
    upon: str = ""


def digest(text: str) -> str:
    """What stands for a long text that is not recorded again and again."""
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:16]


def to_json(record: Record | Unknown) -> JsonObject:
    """The fields of a record as JSON, ``type`` apart."""
    match record:
        case Unknown(raw=raw):
            return dict(raw)
        case TaskAdded() | TaskClosed() | PlanReplaced() | PlanRestored():
            return {"change": record.change, **_fields(record)}
        case RequestSent() | RequestEnded():
            return {"phase": record.phase, **_fields(record)}
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
    kind = _kind_of(type, raw)
    upon = raw.get("upon", "")
    upon = upon if isinstance(upon, str) else ""
    if kind is None:
        rest = {name: value for name, value in raw.items() if name not in ("type", "seq", "time")}
        return Entry(seq, float(time), Unknown(type, rest), upon)
    try:
        if kind is Line and "urgency" not in raw:
            raw = _as_new_line(raw)
        return Entry(seq, float(time), _read_fields(kind, raw), upon)
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise ValueError(f"record {seq}: a {type!r} record has not the form that it should have: {error}") from None


# ----------------------------------------------------------------------------------------------------------- the fields

_VARIANTS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "plan": ("change", "restored", {kind.change: kind for kind in get_args(PlanChange)}),
    "request": ("phase", "", {kind.phase: kind for kind in get_args(Request)}),
}
"""The types that have several forms: the key that names the form, the form where it is missing, and the forms."""

_KINDS: dict[str, Any] = {kind.type: kind for kind in get_args(Record) if kind.type not in _VARIANTS}


def _kind_of(type: str, raw: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a dataclass
    """The dataclass of a record; ``None`` for what this version does not know."""
    if type not in _VARIANTS:
        return _KINDS.get(type)
    key, default, forms = _VARIANTS[type]
    form = raw.get(key, default)
    return forms.get(form) if isinstance(form, str) else None


@cache
def _written(kind: Any) -> tuple[tuple[str, Any], ...]:  # noqa: ANN401 - a dataclass
    """The fields of a kind, each with the value for which the JSON leaves it out."""
    return tuple((f.name, _default(f) if f.metadata.get("brief") else _ALWAYS) for f in fields(kind))


_ALWAYS = object()
"""The default of a field that is always written."""


def _default(f: Any) -> Any:  # noqa: ANN401 - a field
    return f.default if f.default_factory is MISSING else f.default_factory()


def _fields(record: object) -> JsonObject:
    found: JsonObject = {}
    kind: Any = type(record)
    for name, default in _written(kind):
        value = getattr(record, name)
        if default is _ALWAYS or value != default:
            found[name] = _plain(value)
    return found


def _plain(value: Any) -> Any:  # noqa: ANN401 - the JSON edge
    if isinstance(value, messages.Message):
        return messages.to_json(value)
    if is_dataclass(value):
        return _fields(value)
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


_Read: TypeAlias = Callable[[Any], Any]
"""Reads a value from its JSON. Raises ``_WrongForm``."""


def _read_fields(kind: Any, raw: Mapping[str, Any]) -> Any:  # noqa: ANN401 - an object of the kind
    """An object of a type from its JSON; what the JSON leaves out has its default."""
    found = {}
    for name, read in _readers(kind):
        if name in raw:
            value = raw[name]
            try:
                found[name] = read(value)
            except _WrongForm:
                raise ValueError(f"{name} is {value!r:.40}") from None
    return kind(**found)


class _WrongForm(Exception):
    """The JSON of a field is not of the type of the field."""


@cache
def _readers(kind: Any) -> tuple[tuple[str, _Read], ...]:  # noqa: ANN401 - a dataclass
    hints = get_type_hints(kind)
    return tuple((f.name, _reader(hints[f.name])) for f in fields(kind))


def _reader(hint: Any) -> _Read:  # noqa: ANN401 - a type
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        (other,) = (each for each in inside if each is not type(None))
        read = _reader(other)
        return lambda value: None if value is None else read(value)
    if origin is tuple:
        each = _reader(inside[0])
        return lambda value: tuple(map(each, _checked(value, list)))
    if hint is messages.Message:
        return messages.from_json
    if is_dataclass(hint):
        return lambda value: _read_fields(hint, _checked(value, dict))
    if origin is Literal:
        return lambda value: _one_of(inside, value)
    if hint is float:
        return _number
    return lambda value: _checked(value, hint)


def _checked(value: Any, kind: type[Any]) -> Any:  # noqa: ANN401 - the JSON edge
    # Not isinstance: to Python a bool is an int.
    if type(value) is not kind:
        raise _WrongForm
    return value


def _number(value: Any) -> float:  # noqa: ANN401 - the JSON edge
    if type(value) is not float and type(value) is not int:
        raise _WrongForm
    return float(value)


def _one_of(allowed: tuple[Any, ...], value: Any) -> Any:  # noqa: ANN401 - the JSON edge
    if type(value) is not str or value not in allowed:
        raise _WrongForm
    return value


def _as_new_line(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The JSON of a line of version 0.1.0 in the form of today."""
    if type(raw["urgent"]) is not bool:
        raise ValueError(f"urgent is {raw['urgent']!r:.40}")
    kind = "redirect" if raw["kind"] == "urgent" else raw["kind"]
    return {**raw, "kind": kind, "urgency": "urgent" if raw["urgent"] else "next"}
