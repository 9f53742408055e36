"""What happens in a chain, as a union of frozen events.

Every event names its agent and iteration (0 before the first) and has the wall-clock ``time`` in seconds since the
epoch. ``event_json`` gives the form that users' scripts read, in which the names of the fields are a contract.
"""

from __future__ import annotations

import time as _time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

from chain.hunks import FileDiff, read_diff
from chain.messages import Usage
from chain.text.wording import MAIN, ROOT

Point: TypeAlias = Literal["start", "A", "B", "C", "D", "N"]
"""Where a line entered the conversation: as a run's query, or at one of the safe points."""

State: TypeAlias = Literal["queued", "delivered", "handled", "returned", "dropped", "refused", "unsent"]
"""What became of a line (SPEC section 3)."""

Origin: TypeAlias = Literal["prompt", "script", "json", "door", "acp"]
"""Where a line came from: typed at the prompt, a script (``--say`` and a pipe are scripts too), JSON input, another
terminal, an editor."""

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
"""How a run ended (SPEC section 7)."""

TaskState: TypeAlias = Literal["PENDING", "DONE", "FAILED"]
"""The state of a task of the plan."""

Author: TypeAlias = str
"""Who changed the plan: ``user``, or the name of an agent."""

QuestionKind: TypeAlias = Literal["approval", "choice"]
"""What the user is asked: whether a call may run, or which of these."""

Decision: TypeAlias = Literal["allowed", "refused", "answered", "withdrawn"]
"""What became of a question: an approval was given or not, a choice was made, or it is no longer asked."""

AnsweredBy: TypeAlias = Literal["user", "config", "nobody"]
"""Who decided: the user, an allowance, or nobody, since nobody could be asked."""

Phase: TypeAlias = Literal["thinking", "tools", "answering"]
"""How far a run had come in its iteration when the user stopped it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    type: ClassVar[str]
    agent: str = MAIN
    iteration: int = 0
    time: float = field(default_factory=_time.time)


@dataclass(frozen=True, slots=True, kw_only=True)
class Init(_Event):
    """The first event of a session that was opened."""

    type: ClassVar[str] = "init"
    session: str
    version: str
    model: str
    workspace: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(_Event):
    """A run begins. ``id`` is its query's line; both are empty when only carried lines start it."""

    type: ClassVar[str] = "run_started"
    id: str
    query: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationStarted(_Event):
    """A model call is about to be made, the ``iteration``-th of at most ``max_iterations``."""

    type: ClassVar[str] = "iteration_started"
    max_iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingDelta(_Event):
    """A piece of the model's reasoning."""

    type: ClassVar[str] = "thinking_delta"
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta(_Event):
    """A piece of the reply's text."""

    type: ClassVar[str] = "text_delta"
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply(_Event):
    """A reply was appended to the conversation: its text, and how many tools it asked for."""

    type: ClassVar[str] = "reply"
    text: str
    tool_calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall(_Event):
    """A tool starts. ``parent_id`` is the call that made the agent which asked for it, or ``root``."""

    type: ClassVar[str] = "tool_call"
    id: str
    name: str
    input: Mapping[str, Any]
    parent_id: str = ROOT


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolProgress(_Event):
    """A running tool says something for people to watch."""

    type: ClassVar[str] = "tool_progress"
    id: str
    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult(_Event):
    """A tool call was answered: ``text`` is what the model reads, ``seconds`` how long it ran (0: it never did)."""

    type: ClassVar[str] = "tool_result"
    id: str
    name: str
    text: str
    is_error: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class AdjustmentView:
    """Guidance in a form that a running tool can act on, as events show it."""

    type: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LineQueued(_Event):
    """A line waits for a safe point, and its record is on disk. A second one: it now waits for another agent.

    ``waiting`` counts it and those before it, ``origin`` is where it came from, and ``adjustment`` what running tools
    are told of it, if it is guidance.
    """

    type: ClassVar[str] = "line_queued"
    id: str
    text: str
    kind: str
    urgency: str
    target_agent: str
    waiting: int
    origin: Origin
    adjustment: AdjustmentView | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LineRefused(_Event):
    """A line was not accepted; ``reason`` says why and what to do."""

    type: ClassVar[str] = "line_refused"
    id: str
    text: str
    kind: str
    urgency: str
    target_agent: str
    waiting: int
    origin: Origin
    reason: str
    adjustment: AdjustmentView | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UserInterruption(_Event):
    """Lines entered the conversation as one message.

    ``message`` is what the user typed, ``point`` the safe point, ``waited_s`` how long the first of them waited,
    ``remaining`` the model calls that the run has left, ``tools_skipped`` the names of the tools that an urgent line
    kept from starting.
    """

    type: ClassVar[str] = "user_interruption"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt(_Event):
    """What became of a line from ``origin`` (not in the JSON). Undelivered: ``point`` and ``waited_s`` are ``None``."""

    type: ClassVar[str] = "receipt"
    id: str
    text: str
    state: State
    point: Point | None = None
    waited_s: float | None = None
    reason: str = ""
    origin: Origin = "prompt"


@dataclass(frozen=True, slots=True)
class TaskView:
    """One task of the plan, as events show it; ``n`` counts from 1."""

    n: int
    text: str
    state: TaskState
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChanged(_Event):
    """The whole plan after a change ``by`` the user, or by the agent of this name."""

    type: ClassVar[str] = "plan_changed"
    tasks: tuple[TaskView, ...]
    by: Author


@dataclass(frozen=True, slots=True, kw_only=True)
class Question(_Event):
    """The user is asked whether a call may run, or which of the ``options``; other texts answer as well.

    ``preview`` shows what the call would do (a diff, a command), ``protections`` are short names of what fences it in.
    """

    type: ClassVar[str] = "question"
    id: str
    kind: QuestionKind
    text: str
    options: tuple[str, ...]
    tool_call_id: str
    name: str
    preview: str = ""
    protections: tuple[str, ...] = ()

    @property
    def diff(self) -> FileDiff | None:
        """What the call would change in a file, if the preview shows that."""
        return read_diff(self.preview)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(_Event):
    """What became of a question, once that is on disk. ``text`` is the answer as the agent reads it."""

    type: ClassVar[str] = "answer"
    id: str
    text: str
    decision: Decision
    by: AnsweredBy


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStarted(_Event):
    """An agent begins to work for ``agent``, in the tool call ``parent_id``: a new one, or one that is asked again."""

    type: ClassVar[str] = "agent_started"
    name: str
    kind: str
    parent_id: str
    task: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEnded(_Event):
    """An agent has ended what it was started for."""

    type: ClassVar[str] = "agent_ended"
    name: str
    kind: str
    parent_id: str
    task: str
    status: Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry(_Event):
    """The reply in progress is asked for again in ``delay_s`` seconds: forget the text shown since the last reply."""

    type: ClassVar[str] = "retry"
    attempt: int
    delay_s: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice(_Event):
    """Something the user should know that stops nothing."""

    type: ClassVar[str] = "notice"
    message: str
    file: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Error(_Event):
    """What ended a run with an error; ``kind`` is ``model`` or ``journal``."""

    type: ClassVar[str] = "error"
    message: str
    kind: str
    file: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageReport(_Event):
    """What one model call used."""

    type: ClassVar[str] = "usage"
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cost_usd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(_Event):
    """How a run ended.

    ``exit_code`` is the whole process's so far. ``receipts`` (final ones and those of refused lines) and ``unsent``
    (lines that a script or a pipe never sent, as they were written) are what was settled since the result before, each
    line once; all else is the run's.
    """

    type: ClassVar[str] = "result"
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


Event: TypeAlias = (
    Init
    | RunStarted
    | IterationStarted
    | ThinkingDelta
    | TextDelta
    | Reply
    | ToolCall
    | ToolProgress
    | ToolResult
    | LineQueued
    | LineRefused
    | UserInterruption
    | Receipt
    | PlanChanged
    | Question
    | Answer
    | AgentStarted
    | AgentEnded
    | Retry
    | Notice
    | Error
    | UsageReport
    | Result
)
