"""The records of a session's journal, as a union of frozen types. Their JSON is in ``json``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar, dataclass_transform

from chain import messages
from chain.events import (
    AnsweredBy,
    Author,
    CompactedBy,
    Decision,
    OfferedTool,
    Phase,
    Point,
    QuestionKind,
    State,
    Status,
    TaskView,
)
from chain.hunks import FileDiff
from chain.messages import Overrides, StopReason, Usage

Effect: TypeAlias = Literal["waits", "starts", "acts"]
"""What a line does as it is accepted: it waits for a safe point, starts a run, or acts at once and needs no model."""

BRIEF = {"brief": True}
"""Marks a field that the JSON leaves out while it has its default."""

_T = TypeVar("_T")


def _brief(default: _T) -> _T:
    return field(default=default, metadata=BRIEF)


@dataclass(frozen=True, slots=True)
class _Typed:
    type: ClassVar[str]
    form: ClassVar[str]
    """Which of the records of this type it is, where there are several."""


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def _record(type: str, form: str = "") -> Callable[[type[_T]], type[_T]]:
    def make(kind: Any) -> Any:  # noqa: ANN401 - a class
        kind.type, kind.form = type, form
        return dataclass(frozen=True, slots=True)(kind)

    return make


@_record("session")
class Session(_Typed):
    """The first record: which program opened the session, where, with which model and tools. More: it was resumed."""

    id: str
    version: str
    model: str
    workspace: str
    tools: tuple[str, ...] = _brief(())
    whereabouts: str = _brief("")
    """What its agents are told of where they are: the same however often it is resumed."""


@_record("line")
class Line(_Typed):
    """A line was accepted. A second record of the same id: the line now waits for another agent.

    ``iteration`` is that of the agent's run, 0 without one. ``by_rule``: a rule of the handler prompt made it urgent, a
    now line or a stop. ``waiting`` counts it and those that wait before it.
    """

    id: str
    text: str
    kind: str
    urgency: str
    agent: str
    origin: str = "prompt"
    effect: Effect = _brief("waits")
    iteration: int = _brief(0)
    by_rule: bool = _brief(False)
    waiting: int = _brief(0)
    images: tuple[messages.Image, ...] = _brief(())
    """What its sender sent along."""
    is_plain: bool = _brief(False)
    """Whether an ``@`` and a path in it name no file, because the text is a server's."""
    sent_as: str = _brief("")
    """The id that its sender gave it, if an earlier line has that id on record."""


@_record("run")
class RunBegun(_Typed):
    """A run began; ``id`` is the line that is its query. Without one, the lines that waited began it.

    ``only_compacts``: the user asked for a compaction, and for nothing else.
    """

    id: str = ""
    only_compacts: bool = _brief(False)


@_record("receipt")
class Receipt(_Typed):
    """What became of an accepted line; ``point`` and ``waited_s`` of one that was delivered."""

    id: str
    state: State
    agent: str
    iteration: int
    point: Point | None = None
    waited_s: float | None = None
    reason: str = ""


@_record("message")
class Message(_Typed):
    """A message was appended to an agent's conversation; ``line_ids`` are the lines that it delivers.

    For those, ``source`` is the handler prompt's, ``remaining`` counts the model calls that the run had left, and
    ``skipped`` names the tools that an urgent line kept from starting. ``outcomes`` say what code did about each line,
    empty where it did nothing. ``iteration`` is the run's; it may have begun without a record of its own. ``waited_s``
    is how long the first of the lines waited. ``is_cut``: it is what was shown of a reply that a now line cut.
    """

    message: messages.Message
    agent: str
    parent_id: str
    is_interjection: bool = False
    line_ids: tuple[str, ...] = ()
    point: Point | None = None
    source: str = _brief("")
    remaining: int = _brief(0)
    skipped: tuple[str, ...] = _brief(())
    outcomes: tuple[str, ...] = _brief(())
    iteration: int = _brief(0)
    waited_s: float = _brief(0.0)
    is_cut: bool = _brief(False)


@_record("withdrawn")
class Withdrawn(_Typed):
    """The last ``messages`` messages left the conversation, and these lines with them.

    ``reason`` is how the run ended: ``refused`` by the service, or ``context_full`` of that alone.

    Lines that code had carried out are not among them: sent again they would be done twice.
    """

    messages: int
    agent: str
    reason: str
    line_ids: tuple[str, ...] = _brief(())


REFUSED = "the service refused it"
"""Why content was removed."""


@_record("removed")
class Removed(_Typed):
    """Content is no longer sent, and stubs replace it in the conversation; ``names`` are for people.

    ``content``: the blocks with these ``digests``, of each as many of the first as it is named. ``thinking``: that of
    all replies so far. ``tools``: those with these ``names``, for the rest of the session.
    """

    agent: str
    iteration: int
    what: Literal["content", "thinking", "tools"]
    digests: tuple[str, ...] = _brief(())
    names: tuple[str, ...] = ()
    why: str = _brief(REFUSED)


@_record("tool_started")
class ToolStarted(_Typed):
    """A tool is about to run: from here on it may have had effects."""

    id: str
    name: str
    agent: str


@_record("tool_finished")
class ToolFinished(_Typed):
    """A tool that had started has a result: ``text`` and ``images``, where other calls of the reply have none yet.

    All results of a reply are in the message that comes when the last one is there. ``exit_code`` and ``summary`` are
    as in ``ToolOutput``.
    """

    id: str
    agent: str
    is_error: bool
    seconds: float
    text: str = _brief("")
    images: tuple[messages.Image, ...] = _brief(())
    exit_code: int | None = _brief(None)
    summary: tuple[str, ...] = _brief(())


@_record("question")
class Question(_Typed):
    """The user is asked something."""

    id: str
    kind: QuestionKind
    text: str
    agent: str
    tool_call_id: str
    name: str
    options: tuple[str, ...] = ()
    preview: str = ""
    protections: tuple[str, ...] = ()
    only_by_name: str = _brief("")
    """What a pattern must have in it."""
    always: Literal["tool", "subject"] = _brief("tool")
    """What the answer "always" would allow beside the call."""
    diff: FileDiff | None = _brief(None)
    """What the call would change in a file, instead of a preview."""
    subject: str = _brief("")
    """The path, command or host that an approval is about, on one row and cut where it is long."""


@_record("answer")
class Answer(_Typed):
    """What became of a question. ``is_for_always``: it, or an answer before it, allowed all such calls."""

    id: str
    text: str
    decision: Decision
    by: AnsweredBy
    agent: str
    is_for_always: bool = _brief(False)


@_record("plan", "added")
class TaskAdded(_Typed):
    """A task came to the end of the plan; ``line_id``, here and below, is the line that asked for the change."""

    text: str
    by: Author
    line_id: str = _brief("")


@_record("plan", "closed")
class TaskClosed(_Typed):
    """Task ``n`` of the plan, counted from 1, is done or failed."""

    n: int
    state: Literal["DONE", "FAILED"]
    reason: str
    by: Author
    line_id: str = _brief("")


@_record("plan", "replaced")
class PlanReplaced(_Typed):
    """The plan is these tasks now, all of them pending; none: it was cleared."""

    texts: tuple[str, ...]
    by: Author
    line_id: str = _brief("")


@_record("plan", "restored")
class PlanRestored(_Typed):
    """The plan is these tasks now, each in its state: one that was copied, and how every change was recorded once."""

    tasks: tuple[TaskView, ...]
    by: Author
    line_id: str = _brief("")


PlanChange: TypeAlias = TaskAdded | TaskClosed | PlanReplaced | PlanRestored
"""What happened to a plan, from which with the plan before follows the plan after."""


@_record("agent_started")
class AgentStarted(_Typed):
    """An agent begins to work for ``agent``, or is asked again; ``parent_id`` is the tool call that it works for."""

    name: str
    kind: str
    parent_id: str
    task: str
    agent: str


@_record("agent_ended")
class AgentEnded(_Typed):
    """An agent has ended what it was started for; ``usage`` is with that of the agents that it started itself."""

    name: str
    parent_id: str
    status: Status
    iterations: int
    agent: str
    usage: Usage = field(default_factory=Usage)
    forgotten: tuple[str, ...] = _brief(())
    """The names of agents that can no longer be asked, since too many have finished."""


@_record("model")
class Model(_Typed):
    """Another model is asked from the next run on."""

    name: str


@_record("request", "sent")
class RequestSent(_Typed):
    """A model call begins: what it carries beside the conversation.

    ``system`` and ``tools`` are each the ``text_digest`` of the system prompt and the tools; ``attempt`` counts from 1.
    """

    agent: str
    iteration: int
    system: str
    tools: str
    max_iterations: int = _brief(0)
    attempt: int = _brief(1)
    tail: tuple[str, ...] = _brief(())
    overrides: Overrides = _brief(Overrides())
    compacts: bool = _brief(False)
    """Whether it asks for a summary, as the conversation is to be compacted: it is no iteration's own call."""
    window: int = _brief(0)
    """The model's context window in tokens, as it is known then; 0 where it is not."""
    beside: int = _brief(0)
    """Characters of the system prompt and the tools."""


@_record("request", "ended")
class RequestEnded(_Typed):
    """A model call came to its end; one that was cut has no such record.

    ``message`` is the reply if it was not appended. A call that failed has an ``error`` instead of a ``stop_reason``,
    with its short ``cause`` and the ``parameters`` and content that the service ``refused``. ``window`` is as in
    ``RequestSent``: the first call may have brought it.
    """

    agent: str
    iteration: int
    stop_reason: StopReason | None = None
    usage: Usage = _brief(Usage())
    message: messages.Message | None = _brief(None)
    error: str = _brief("")
    parameters: tuple[str, ...] = _brief(())
    refused: tuple[str, ...] = _brief(())
    cause: str = _brief("")
    window: int = _brief(0)
    asked_tokens: int = _brief(0)
    """How many tokens the request has that the service found too long, where it said so."""
    delay_s: float = _brief(0.0)
    """The pause before the next attempt."""


@_record("compact")
class CompactionAsked(_Typed):
    """The user asks that a conversation be compacted; ``focus`` is what they said matters."""

    agent: str
    focus: str = _brief("")


@_record("compacted")
class Compacted(_Typed):
    """A conversation was compacted (SPEC section 15): it now begins with the summary and the user's ``words``.

    The ``plan`` follows as it stood, then the latest ``kept`` messages as they were. Without a summary all messages
    stay, and the results with the ids in ``stubbed`` became stubs. ``left_out`` counts the lines that had no room.
    Tokens are estimates.
    """

    agent: str
    iteration: int
    by: CompactedBy
    summary: str = ""
    words: str = _brief("")
    left_out: int = _brief(0)
    kept: int = _brief(0)
    stubbed: tuple[str, ...] = _brief(())
    images: tuple[str, ...] = _brief(())
    """The names of those that have left the conversation."""
    plan: str = _brief("")
    tokens_before: int = 0
    tokens_after: int = 0


@_record("interrupted")
class Interrupted(_Typed):
    """An agent's work in hand was cut: ``what`` it was doing, and ``by`` whom.

    ``user``: by an interrupt, which is for all agents below it too. ``exit``: likewise, as the program was about to
    end, so that waiting lines stay queued. ``line``: by a now line or a stop. ``time``: by the time limit. ``usage`` is
    what a reply had used that was cut; after an interrupt it is in the result alone.
    """

    agent: str
    iteration: int
    what: Phase
    by: Literal["user", "exit", "line", "time"]
    usage: Usage = _brief(Usage())


@_record("draft")
class Draft(_Typed):
    """The text that was in the editor when its program ended; empty if there was one before and it was sent."""

    text: str


@_record("instructions")
class InstructionsRead(_Typed):
    """What the project's instructions are from the next run on, which they were not before.

    ``text`` is what the agents are told, ``files`` are the paths of those that it is from, relative to the workspace;
    ``faults`` say in sentences what was left out.
    """

    text: str = ""
    files: tuple[str, ...] = ()
    faults: tuple[str, ...] = _brief(())


@_record("server_tools")
class ServerTools(_Typed):
    """The tools that servers offer from the next run on, which they did not before."""

    tools: tuple[OfferedTool, ...] = ()


@_record("result")
class Result(_Typed):
    """A run ended; ``phase_reached`` is how far one had come that the user ended.

    ``program_ended``: its process had ended before; the result is written when the session is resumed.
    """

    status: Status
    result: str
    iterations: int
    usage: Usage = field(default_factory=Usage)
    phase_reached: Phase | None = _brief(None)
    program_ended: bool = _brief(False)
    short: str = _brief("")
    """As in ``Outcome``."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A record of a type that this version does not know, with all of its fields."""

    type: str
    raw: Mapping[str, Any]


_OfCalls: TypeAlias = Message | Withdrawn | Compacted | Removed | RequestSent | RequestEnded
_OfTools: TypeAlias = ServerTools | ToolStarted | ToolFinished
_OfUsers: TypeAlias = Line | Receipt | Question | Answer | PlanChange | Model | CompactionAsked | Interrupted | Draft

Record: TypeAlias = (
    Session
    | InstructionsRead
    | ServerTools
    | RunBegun
    | Result
    | AgentStarted
    | AgentEnded
    | _OfCalls
    | _OfTools
    | _OfUsers
)
"""What this version writes."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A record with its place in the journal."""

    seq: int
    time: float
    record: Record | Unknown


def text_digest(text: str) -> str:
    """What stands for a long text that is not recorded again and again."""
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:16]
