"""The events of a chain, as a union of frozen dataclasses.

Every event names its agent and iteration (0 before the first) and has the wall-clock ``time`` in seconds since the
epoch. ``event_json`` converts events to the form that users' scripts read, in which the names of the fields are a
contract.
"""

from __future__ import annotations

import time as _time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar, dataclass_transform

from chain.messages import Usage
from chain.text.escalations import Escalation
from chain.text.hunks import FileDiff
from chain.text.wording import MAIN, ROOT

_T = TypeVar("_T")

State: TypeAlias = Literal["queued", "delivered", "handled", "returned", "dropped", "refused", "unsent"]
"""The state of a line. ``unsent``: the line of a script or a pipe was given up without being sent."""

Origin: TypeAlias = Literal["prompt", "script", "json", "door", "acp", "job"]
"""The source of a line.

``prompt`` is the input editor, ``script`` a ``--say`` option or a pipe, ``json`` JSON input, ``door`` another terminal,
``acp`` an editor such as Zed, and ``job`` a background job that has ended.
"""

Status: TypeAlias = Literal[
    "done",
    "cancelled",
    "cancelled_with_partial",
    "cancelled_during_synthesis",
    "interrupted",
    "max_iterations",
    "limit_reached",
    "truncated",
    "empty",
    "refused",
    "context_full",
    "error",
]
"""The status of a run that ended."""

TaskState: TypeAlias = Literal["PENDING", "DONE", "FAILED"]
"""The state of a task of the plan."""

Author: TypeAlias = str
"""The author of a change of the plan: ``user``, or the name of an agent."""

QuestionKind: TypeAlias = Literal["approval", "choice"]
"""The kind of a question: whether a call may run, or which option to choose."""

Decision: TypeAlias = Literal["allowed", "refused", "answered", "withdrawn"]
"""The decision on a question: an approval was given or denied, a choice was made, or the question was withdrawn."""

CompactedBy: TypeAlias = Literal["fill", "service", "user"]
"""The reason for a compaction: a nearly full window, a service that refused a too long request, or the user's command.
"""

CompactionState: TypeAlias = Literal["started", "ended", "failed"]
"""The progress of a compaction."""

AnsweredBy: TypeAlias = Literal["user", "config", "nobody"]
"""The source of a decision: the user, an allowance, or ``nobody`` if no one could be asked."""

Phase: TypeAlias = Literal["thinking", "tools", "answering"]
"""The phase of an iteration in which the user stopped the run."""


class Point(StrEnum):
    """A point at which a line enters the conversation: as the query of a run, or at one of the safe points.

    Events, journals and handler prompts contain the values. To add a safe point, name it here, deliver lines at it
    in ``chain.agent.executor``, and describe it in ``chain.text.phrases``.
    """

    START = "start"
    """The line is the query of a run."""
    BEFORE_FIRST_CALL = "A"
    """After the query. Lines left over from an earlier run enter here."""
    AFTER_REPLY = "B"
    """After a reply without tool calls, before the run would end."""
    BEFORE_TOOL = "C"
    """Before a tool call. An urgent line enters here; this call and the calls after it are skipped."""
    AFTER_TOOLS = "D"
    """After the results of all tool calls of a reply."""
    AT_ONCE = "N"
    """Immediately: a now line cancels the reply or the running tools."""


MID_TASK = frozenset({Point.BEFORE_TOOL, Point.AFTER_TOOLS, Point.AT_ONCE})
"""The safe points at which the model has not finished its task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    """The base class of events, with the fields of every event."""

    type: ClassVar[str]
    agent: str = MAIN
    iteration: int = 0
    time: float = field(default_factory=_time.time)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def _event(type: str) -> Callable[[type[_T]], type[_T]]:
    def make(kind: Any) -> Any:  # noqa: ANN401 - a class
        kind.type = type
        return dataclass(frozen=True, slots=True, kw_only=True)(kind)

    return make


@_event("init")
class Init(_Event):
    """The first event of a feed. It describes the open session."""

    session: str
    version: str
    model: str
    workspace: str


@_event("run_started")
class RunStarted(_Event):
    """A run starts. ``id`` is the id of the line with the ``query``.

    ``id`` and ``query`` are empty if the run starts only with lines that an earlier run left over.
    """

    id: str
    query: str


@_event("iteration_started")
class IterationStarted(_Event):
    """A model call is about to be made, the ``iteration``-th of at most ``max_iterations``."""

    max_iterations: int


@_event("thinking_delta")
class ThinkingDelta(_Event):
    """A piece of the model's reasoning."""

    text: str


@_event("text_delta")
class TextDelta(_Event):
    """A piece of a reply's text."""

    text: str


@_event("reply")
class Reply(_Event):
    """A reply was appended to the conversation: its text, and the number of its tool calls."""

    text: str
    tool_calls: int


@_event("tool_call")
class ToolCall(_Event):
    """A tool starts. ``parent_id`` is the id of the call that started the agent; ``root`` for the main agent."""

    id: str
    name: str
    input: Mapping[str, Any]
    parent_id: str = ROOT


@_event("tool_progress")
class ToolProgress(_Event):
    """A report of a running tool, for display."""

    id: str
    name: str
    text: str


@_event("tool_result")
class ToolResult(_Event):
    """A tool call has a result. ``text`` is the result for the model, ``seconds`` the duration (0 if it never ran).

    ``exit_code`` is the exit code of a command; a negative one is the number of the signal that killed the command.
    ``summary`` are the parts of a one-row summary of the result, most important first; empty if the tool has none.
    ``input`` (not in the JSON) is the input of a call that never started, and is otherwise empty.
    """

    id: str
    name: str
    text: str
    is_error: bool
    seconds: float
    exit_code: int | None = None
    summary: tuple[str, ...] = ()
    input: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AdjustmentView:
    """The user's guidance for a running tool in an event: the type and the value of the guidance."""

    type: str
    value: str


@_event("line_queued")
class LineQueued(_Event):
    """A line was accepted: its record is on disk, and the line waits for a safe point.

    A second event for a line means that the line now waits for another agent. ``waiting`` is the line's position in the
    queue, counted from 1. ``origin`` is the line's source, and ``adjustment`` its guidance for running tools.
    """

    id: str
    text: str
    kind: str
    urgency: str
    target_agent: str
    waiting: int
    origin: Origin
    adjustment: AdjustmentView | None = None


@_event("line_refused")
class LineRefused(_Event):
    """A line was not accepted. ``reason`` says why and what to do."""

    id: str
    text: str
    kind: str
    urgency: str
    target_agent: str
    waiting: int
    origin: Origin
    reason: str
    adjustment: AdjustmentView | None = None


@_event("user_interruption")
class UserInterruption(_Event):
    """Lines entered the conversation as one message.

    ``message`` is the text that the user typed, ``point`` the safe point, ``prompt_source`` the handler prompt, and
    ``waited_s`` the time in seconds that the first of the lines waited. ``remaining`` counts the model calls that the
    run has left, and ``tools_skipped`` names the tools that an urgent line skipped.
    """

    ids: tuple[str, ...]
    message: str
    point: Point
    prompt_source: str
    target_agent: str
    parent_id: str
    waited_s: float
    remaining: int
    tools_skipped: tuple[str, ...] = ()
    trace_path: str | None = None


@_event("receipt")
class Receipt(_Event):
    """The state of a line has changed. ``kind`` is the kind of the line; empty for a line that was never sent.

    ``point`` and ``waited_s`` (in seconds) are ``None`` unless the line was delivered. ``origin`` (not in the JSON) is
    the source of the line.
    """

    id: str
    text: str
    state: State
    point: Point | None = None
    waited_s: float | None = None
    reason: str = ""
    kind: str = ""
    origin: Origin = "prompt"

    @property
    def is_stop(self) -> bool:
        """Whether the line was a stop that was carried out."""
        return self.kind == "stop" and self.state == "handled"


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool that a server offers. The model calls it ``name``, and the server calls it ``tool``."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    read_only: bool = False
    needs_approval: bool = True
    server: str = ""
    tool: str = ""


@dataclass(frozen=True, slots=True)
class TaskView:
    """One task of the plan in an event. ``n`` is the number of the task, counted from 1."""

    n: int
    text: str
    state: TaskState
    reason: str = ""


@_event("plan_changed")
class PlanChanged(_Event):
    """The plan has changed. ``tasks`` is the whole plan after the change, ``by`` the author of the change."""

    tasks: tuple[TaskView, ...]
    by: Author


@_event("question")
class Question(_Event):
    """A question to the user: whether a call may run, or which of the ``options`` to choose.

    The answer may be another text. ``preview`` shows what the call would do (a command, or ``diff`` as a text).
    ``protections`` are short names of the call's restrictions. ``subject`` is the path, command or host to approve,
    shortened to one row. ``always`` is what the answer "always" allows: every call of the ``tool``, or this
    ``subject``. ``only_by_name`` is a sensitive part of the path, such as ``.git``; if it is set, "always" allows only
    this one call. ``escalations`` are the restrictions of the sandbox that an answer can lift for this call.
    """

    id: str
    kind: QuestionKind
    text: str
    options: tuple[str, ...]
    tool_call_id: str
    name: str
    preview: str = ""
    protections: tuple[str, ...] = ()
    always: Literal["tool", "subject"] = "tool"
    only_by_name: str = ""
    subject: str = ""
    diff: FileDiff | None = None
    escalations: tuple[Escalation, ...] = ()


@_event("answer")
class Answer(_Event):
    """The decision on a question, emitted after its record is on disk. ``text`` is the answer as the agent reads it.

    ``is_for_always`` (not in the JSON): the decision comes from the answer "always", to this question or to an earlier
    one. ``escalation`` is the restriction of the sandbox that the user lifted for this call.
    """

    id: str
    text: str
    decision: Decision
    by: AnsweredBy
    is_for_always: bool = False
    escalation: Escalation | None = None


@_event("agent_started")
class AgentStarted(_Event):
    """An agent starts to work on a task: a new agent, or a finished one that is asked again.

    ``agent`` is the agent that gives the task, and ``parent_id`` the id of that agent's tool call.
    """

    name: str
    kind: str
    parent_id: str
    task: str


@_event("agent_ended")
class AgentEnded(_Event):
    """An agent has ended its work on a task."""

    name: str
    kind: str
    parent_id: str
    task: str
    status: Status


@_event("retry")
class Retry(_Event):
    """A failed request will be retried in ``delay_s`` seconds. Front ends discard the text since the last reply."""

    attempt: int
    delay_s: float
    reason: str


@_event("notice")
class Notice(_Event):
    """A message for the user. The run continues."""

    message: str
    file: str | None = None
    line: int | None = None


@_event("error")
class Error(_Event):
    """The error that ended a run. ``kind`` is ``model`` or ``journal``."""

    message: str
    kind: str
    file: str | None = None
    line: int | None = None


@_event("compaction")
class Compaction(_Event):
    """A conversation is compacted (SPEC section 15).

    Tokens are estimates. ``summary`` is set when the compaction ends.
    """

    state: CompactionState
    by: CompactedBy
    tokens_before: int
    tokens_after: int = 0
    summary: str = ""


@_event("usage")
class UsageReport(_Event):
    """The usage of one model call.

    ``context_tokens`` is the size of the conversation after the call, in tokens. ``context_window`` is the size of the
    model's window in tokens; ``None`` if it is unknown.
    """

    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cost_usd: float | None
    context_tokens: int = 0
    context_window: int | None = None

    @classmethod
    def of(cls, used: Usage, window: int, **common: Any) -> UsageReport:  # noqa: ANN401 - agent, iteration, time
        """Return the report of a call with this usage. ``window`` is the model's window in tokens; 0 if unknown."""
        return cls(
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            cache_read_tokens=used.cache_read_tokens,
            cache_write_tokens=used.cache_write_tokens,
            cost_usd=used.cost_usd,
            context_tokens=used.total_tokens,
            context_window=window or None,
            **common,
        )


@_event("result")
class Result(_Event):
    """The end of a run.

    Three fields are about the process, not only about this run: ``exit_code`` is the exit code of the process if it
    ended now. ``receipts`` has each line that was settled or refused since the previous result, once. ``unsent`` has
    the lines of a script or a pipe, as written, that were given up since then without being sent.

    ``program_ended``: the process ended during the run, at an unknown time. ``short`` (not in the JSON) is only set
    after a stop with findings: the part of ``result`` after the reply, with the findings counted instead of listed.
    """

    status: Status
    result: str
    replies: tuple[str, ...] = ()
    iterations: int = 0
    usage: Usage = field(default_factory=Usage)
    partial: bool = False
    phase_reached: Phase | None = None
    partial_results: tuple[str, ...] = ()
    termination_reason: str | None = None
    trace_path: str | None = None
    exit_code: int = 0
    receipts: tuple[Receipt, ...] = ()
    unsent: tuple[str, ...] = ()
    program_ended: bool = False
    short: str = ""


Piece: TypeAlias = TextDelta | ThinkingDelta | ToolProgress
"""An event with one piece of a text that arrives bit by bit."""

_OfLines: TypeAlias = LineQueued | LineRefused | UserInterruption | Receipt
_OfRuns: TypeAlias = Init | RunStarted | IterationStarted | Reply | Retry | Notice | Error | UsageReport | Result
_OfAgents: TypeAlias = Compaction | ToolCall | ToolResult | PlanChanged | Question | Answer | AgentStarted | AgentEnded

Event: TypeAlias = _OfRuns | Piece | _OfAgents | _OfLines
