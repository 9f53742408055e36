"""The records of a session's journal, as a union of frozen types. Their JSON is in ``json``."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

from chain import messages
from chain.events import AnsweredBy, Author, Decision, Phase, Point, QuestionKind, State, Status, TaskView
from chain.messages import Overrides, StopReason, Usage

Effect: TypeAlias = Literal["waits", "starts", "acts"]
"""What a line does as it is accepted: it waits for a safe point, starts a run, or acts at once and needs no model."""

BRIEF = {"brief": True}
"""Marks a field that the JSON leaves out while it has its default."""


@dataclass(frozen=True, slots=True)
class Session:
    """The first record: which program opened the session, where, with which model and tools. More: it was resumed."""

    type: ClassVar[str] = "session"
    id: str
    version: str
    model: str
    workspace: str
    tools: tuple[str, ...] = field(default=(), metadata=BRIEF)
    interactive: bool = field(default=False, metadata=BRIEF)
    """Whether a person types the lines, who can start a run with those that wait."""
    repaired: int = field(default=0, metadata=BRIEF)
    """How many records before this one the same process wrote, to make up for what a crash had left out."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line was accepted. A second record of the same id: the line now waits for another agent.

    ``iteration`` is that of the agent's run, 0 without one. ``by_rule``: a rule of the handler prompt made it urgent, a
    now line or a stop. ``waiting`` counts it and those that wait before it.
    """

    type: ClassVar[str] = "line"
    id: str
    text: str
    kind: str
    urgency: str
    agent: str
    origin: str = "prompt"
    effect: Effect = field(default="waits", metadata=BRIEF)
    iteration: int = field(default=0, metadata=BRIEF)
    by_rule: bool = field(default=False, metadata=BRIEF)
    waiting: int = field(default=0, metadata=BRIEF)


@dataclass(frozen=True, slots=True)
class RunBegun:
    """A run began; ``id`` is the line that is its query. Without one, the lines that waited began it."""

    type: ClassVar[str] = "run"
    id: str = ""


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
    ``skipped`` names the tools that an urgent line kept from starting. ``iteration`` is the run's; it may have begun
    without a record of its own. ``waited_s`` is how long the first of the lines waited. ``is_cut``: it is what was
    shown of a reply that a now line cut.
    """

    type: ClassVar[str] = "message"
    message: messages.Message
    agent: str
    parent_id: str
    is_interjection: bool = False
    line_ids: tuple[str, ...] = ()
    point: Point | None = None
    source: str = field(default="", metadata=BRIEF)
    remaining: int = field(default=0, metadata=BRIEF)
    skipped: tuple[str, ...] = field(default=(), metadata=BRIEF)
    iteration: int = field(default=0, metadata=BRIEF)
    waited_s: float = field(default=0.0, metadata=BRIEF)
    is_cut: bool = field(default=False, metadata=BRIEF)


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """The last ``messages`` messages left the conversation, which the service had refused."""

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
    text: str = field(default="", metadata=BRIEF)


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
    subject: str = field(default="", metadata=BRIEF)
    """What a pattern of an allowance is compared with."""
    only_by_name: str = field(default="", metadata=BRIEF)
    """What a pattern must have in it."""
    always: Literal["tool", "subject"] = field(default="tool", metadata=BRIEF)
    """What the answer "always" would allow beside the call."""
    is_open: bool = field(default=False, metadata=BRIEF)
    """Whether there was somebody who could answer; else it was settled in the same step."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a question. ``is_for_always``: it allowed what is like the call as well."""

    type: ClassVar[str] = "answer"
    id: str
    text: str
    decision: Decision
    by: AnsweredBy
    agent: str
    is_for_always: bool = field(default=False, metadata=BRIEF)


@dataclass(frozen=True, slots=True)
class TaskAdded:
    """A task came to the end of the plan; ``line_id``, here and below, is the line that asked for the change."""

    type: ClassVar[str] = "plan"
    change: ClassVar[str] = "added"
    text: str
    by: Author
    line_id: str = field(default="", metadata=BRIEF)


@dataclass(frozen=True, slots=True)
class TaskClosed:
    """Task ``n`` of the plan, counted from 1, is done or failed."""

    type: ClassVar[str] = "plan"
    change: ClassVar[str] = "closed"
    n: int
    state: Literal["DONE", "FAILED"]
    reason: str
    by: Author
    line_id: str = field(default="", metadata=BRIEF)


@dataclass(frozen=True, slots=True)
class PlanReplaced:
    """The plan is these tasks now, all of them pending; none: it was cleared."""

    type: ClassVar[str] = "plan"
    change: ClassVar[str] = "replaced"
    texts: tuple[str, ...]
    by: Author
    line_id: str = field(default="", metadata=BRIEF)


@dataclass(frozen=True, slots=True)
class PlanRestored:
    """The plan is these tasks now, each in its state: one that was copied, and how every change was recorded once."""

    type: ClassVar[str] = "plan"
    change: ClassVar[str] = "restored"
    tasks: tuple[TaskView, ...]
    by: Author
    line_id: str = field(default="", metadata=BRIEF)


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

    ``system`` and ``tools`` are each the ``text_digest`` of the system prompt and the tools; ``attempt`` counts from 1.
    """

    type: ClassVar[str] = "request"
    phase: ClassVar[str] = "sent"
    agent: str
    iteration: int
    system: str
    tools: str
    max_iterations: int = field(default=0, metadata=BRIEF)
    attempt: int = field(default=1, metadata=BRIEF)
    tail: tuple[str, ...] = field(default=(), metadata=BRIEF)
    overrides: Overrides = field(default_factory=Overrides, metadata=BRIEF)


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
    usage: Usage = field(default_factory=Usage, metadata=BRIEF)
    message: messages.Message | None = field(default=None, metadata=BRIEF)
    cut_calls: tuple[str, ...] = field(default=(), metadata=BRIEF)
    error: str = field(default="", metadata=BRIEF)
    retryable: bool = field(default=False, metadata=BRIEF)
    retry_after: float | None = field(default=None, metadata=BRIEF)
    parameters: tuple[str, ...] = field(default=(), metadata=BRIEF)
    was_shown: bool = field(default=False, metadata=BRIEF)


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
    """A run ended; ``phase_reached`` is how far one had come that the user ended."""

    type: ClassVar[str] = "result"
    status: Status
    result: str
    iterations: int
    usage: Usage = field(default_factory=Usage)
    phase_reached: Phase | None = field(default=None, metadata=BRIEF)


@dataclass(frozen=True, slots=True)
class Unknown:
    """A record of a type that this version does not know, with all of its fields."""

    type: str
    raw: Mapping[str, Any]


Record: TypeAlias = (
    Session
    | Line
    | RunBegun
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

    ``looks``, of what may have come from outside: by the agents at work, how often each had looked for such things
    since the last record of its own course; those that had not are left out.
    """

    seq: int
    time: float
    record: Record | Unknown
    looks: Mapping[str, int] = field(default_factory=dict)


COURSE = (Message, RequestSent, RequestEnded, ToolStarted, ToolFinished)
"""The records of an agent's own course, from which its looks are counted."""


def may_be_from_outside(record: Record | Unknown) -> bool:
    """Whether a record may tell of what somebody did from outside, so that its moment is recorded with it."""
    match record:
        case Receipt(state=state):
            return state == "dropped"
        case TaskAdded() | TaskClosed() | PlanReplaced():
            return record.by == "user" and not record.line_id
        case _:
            return isinstance(record, Line | RunBegun | Answer | Model | Interrupted)


def text_digest(text: str) -> str:
    """What stands for a long text that is not recorded again and again."""
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:16]
