"""The record types of a session's journal, as a union of frozen dataclasses. The module ``json`` converts them."""

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
from chain.messages import Overrides, StopReason, Usage
from chain.text.escalations import Escalation
from chain.text.hunks import FileDiff
from chain.text.modes import Mode as ModeName

Effect: TypeAlias = Literal["waits", "starts", "acts"]
"""The effect of a line when it is accepted: it waits for a safe point, starts a run, or is carried out at once."""

OMIT_DEFAULT = {"omit_default": True}
"""The metadata of a field that the JSON omits if the field has its default value."""

_T = TypeVar("_T")


def _omitted_if(default: _T) -> _T:
    """Declare a field with this default. The JSON omits the field if it has the default value."""
    return field(default=default, metadata=OMIT_DEFAULT)


@dataclass(frozen=True, slots=True)
class _Typed:
    """The base class of record types. ``type`` is in the JSON; ``form`` distinguishes classes of the same type."""

    type: ClassVar[str]
    form: ClassVar[str]


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def _record(type: str, form: str = "") -> Callable[[type[_T]], type[_T]]:
    def make(kind: Any) -> Any:  # noqa: ANN401 - a class
        kind.type, kind.form = type, form
        return dataclass(frozen=True, slots=True)(kind)

    return make


@_record("session")
class Session(_Typed):
    """The session was opened. A second or later record of this type means that the session was resumed.

    ``whereabouts`` tells agents their folder, system and date. The text stays the same when the session is resumed.
    """

    id: str
    version: str
    model: str
    workspace: str
    tools: tuple[str, ...] = _omitted_if(())
    whereabouts: str = _omitted_if("")


@_record("line")
class Line(_Typed):
    """A line was accepted. A second record of the same id means that the line now waits for another agent.

    ``iteration`` is the agent's iteration, 0 without a run. ``by_rule``: a rule of the handler prompt set the urgency
    of the line or made it a stop. ``waiting`` is the position of the line in the queue, counted from 1. ``is_plain``:
    ``@path`` in the line attaches no file, because a server wrote the line. ``sent_as`` is the id that the sender gave
    the line, if ``id`` had to differ from it because an earlier line has it. ``job`` is the background job whose end
    the line reports.
    """

    id: str
    text: str
    kind: str
    urgency: str
    agent: str
    origin: str = "prompt"
    effect: Effect = _omitted_if("waits")
    iteration: int = _omitted_if(0)
    by_rule: bool = _omitted_if(False)
    waiting: int = _omitted_if(0)
    images: tuple[messages.Image, ...] = _omitted_if(())
    is_plain: bool = _omitted_if(False)
    sent_as: str = _omitted_if("")
    job: str = _omitted_if("")


@_record("run")
class RunBegun(_Typed):
    """A run started. ``id`` is the id of the line that is its query; empty if the run has no query.

    ``only_compacts``: the run only compacts the conversation.
    """

    id: str = ""
    only_compacts: bool = _omitted_if(False)


@_record("receipt")
class Receipt(_Typed):
    """The state of an accepted line has changed.

    ``point`` (the safe point) and ``waited_s`` (seconds) are set if the line was delivered.
    """

    id: str
    state: State
    agent: str
    iteration: int
    point: Point | None = None
    waited_s: float | None = None
    reason: str = ""


@_record("message")
class Message(_Typed):
    """A message was appended to an agent's conversation. ``line_ids`` are the ids of the lines that it delivers.

    If the message delivers lines, ``source`` is the handler prompt, and ``remaining`` the number of model calls that
    the run has left. ``skipped`` names the tools that did not start because of an urgent line. ``outcomes`` has a text
    for each line: what the program did about it, or an empty text. The first line waited for ``waited_s`` seconds.

    ``is_cut``: the message is the part of a reply that was shown before a now line cancelled the reply.
    """

    message: messages.Message
    agent: str
    parent_id: str
    is_interjection: bool = False
    line_ids: tuple[str, ...] = ()
    point: Point | None = None
    source: str = _omitted_if("")
    remaining: int = _omitted_if(0)
    skipped: tuple[str, ...] = _omitted_if(())
    outcomes: tuple[str, ...] = _omitted_if(())
    iteration: int = _omitted_if(0)
    waited_s: float = _omitted_if(0.0)
    is_cut: bool = _omitted_if(False)


@_record("withdrawn")
class Withdrawn(_Typed):
    """The last messages were removed from the conversation. ``messages`` is the number of these messages.

    ``line_ids`` are the lines that these messages had delivered, without lines that code had carried out. ``reason`` is
    the status of the run: ``refused`` or ``context_full``.
    """

    messages: int
    agent: str
    reason: str
    line_ids: tuple[str, ...] = _omitted_if(())


REFUSED = "the service refused it"
"""The default reason in ``Removed``."""


@_record("removed")
class Removed(_Typed):
    """Content or tools are no longer sent to the model. Stubs replace removed content in the conversation.

    ``what`` is ``content`` (the blocks with these ``digests``; a digest that occurs n times means the first n of its
    blocks), ``thinking`` (the thinking of all replies so far), or ``tools`` (the tools with these ``names``, for the
    rest of the session). For the first two, ``names`` are only shown to people.
    """

    agent: str
    iteration: int
    what: Literal["content", "thinking", "tools"]
    digests: tuple[str, ...] = _omitted_if(())
    names: tuple[str, ...] = ()
    why: str = _omitted_if(REFUSED)


@_record("tool_started")
class ToolStarted(_Typed):
    """A tool starts, and may have effects from now on."""

    id: str
    name: str
    agent: str


@_record("tool_finished")
class ToolFinished(_Typed):
    """A tool has ended.

    ``text`` and ``images`` are the result, which a crash must not lose. Both are empty for the last tool that
    ends, because a ``Message`` with the results of all tools follows. ``seconds`` is the duration. ``exit_code`` and
    ``summary`` are as in the event ``ToolResult``.
    """

    id: str
    agent: str
    is_error: bool
    seconds: float
    text: str = _omitted_if("")
    images: tuple[messages.Image, ...] = _omitted_if(())
    exit_code: int | None = _omitted_if(None)
    summary: tuple[str, ...] = _omitted_if(())


@_record("file_changed")
class FileChanged(_Typed):
    """An edit tool is about to replace a file, as part of the call with the id ``call``.

    ``path`` is relative to the workspace, or absolute in an added directory, and contains no symbolic links. ``before``
    and ``after`` are the SHA-256 digests of the old and the new content. An attachment named ``before`` contains the
    old content. ``before`` is empty if the file is new.
    """

    agent: str
    call: str
    path: str
    before: str
    after: str


@_record("job_started")
class JobStarted(_Typed):
    """A command was started in the background by the tool call with the id ``call``.

    ``wakes``: the end of the command starts a run if none is active.
    """

    id: str
    agent: str
    call: str
    command: str
    wakes: bool = _omitted_if(False)


@_record("job_ended")
class JobEnded(_Typed):
    """A background job has ended. The record of the line that reports this follows.

    ``outcome`` says in words how the job ended. ``exit_code`` is ``None`` if the command did not exit by itself.
    ``seconds`` is the duration; ``None`` if chain ended before the command. ``note`` is a remark for the model.
    """

    id: str
    agent: str
    outcome: str
    exit_code: int | None = None
    seconds: float | None = None
    note: str = _omitted_if("")


@_record("rewound")
class Rewound(_Typed):
    """The last ``runs`` runs were undone.

    ``restored`` are the files that have their old content again. ``left`` are the files that were not restored, since
    they were changed after the runs. ``keeps_conversation``: only files were restored. Otherwise the main agent's
    conversation was restored too.
    """

    runs: int
    keeps_conversation: bool = _omitted_if(False)
    restored: tuple[str, ...] = _omitted_if(())
    left: tuple[str, ...] = _omitted_if(())


@_record("directory_added")
class DirectoryAdded(_Typed):
    """The user lets the tools use a directory outside the workspace. ``path`` is its real path."""

    path: str


@_record("question")
class Question(_Typed):
    """A question to the user.

    ``only_by_name`` is as in the event ``Question``. ``always`` is what the answer "always" would allow.
    ``diff`` is the change that the call would make to a file; it is shown instead of ``preview``. ``subject`` is the
    path, command or host that an approval is about, on one row. ``escalations`` are the restrictions of the sandbox
    that an answer can lift for this call.
    """

    id: str
    kind: QuestionKind
    text: str
    agent: str
    tool_call_id: str
    name: str
    options: tuple[str, ...] = ()
    preview: str = ""
    protections: tuple[str, ...] = ()
    only_by_name: str = _omitted_if("")
    always: Literal["tool", "subject"] = _omitted_if("tool")
    diff: FileDiff | None = _omitted_if(None)
    subject: str = _omitted_if("")
    escalations: tuple[Escalation, ...] = _omitted_if(())


@_record("answer")
class Answer(_Typed):
    """A question was answered or withdrawn. ``is_for_always``: this or an earlier answer was "always".

    ``escalation`` is the restriction of the sandbox that the user lifted for this call.
    """

    id: str
    text: str
    decision: Decision
    by: AnsweredBy
    agent: str
    is_for_always: bool = _omitted_if(False)
    escalation: Escalation | None = _omitted_if(None)


@_record("plan", "added")
class TaskAdded(_Typed):
    """A task was appended to the plan.

    As in all records of the plan, ``line_id`` is the id of the line that asked for the change; empty if none did.
    """

    text: str
    by: Author
    line_id: str = _omitted_if("")


@_record("plan", "closed")
class TaskClosed(_Typed):
    """Task ``n`` of the plan, counted from 1, is done or has failed."""

    n: int
    state: Literal["DONE", "FAILED"]
    reason: str
    by: Author
    line_id: str = _omitted_if("")


@_record("plan", "replaced")
class PlanReplaced(_Typed):
    """The plan was replaced by pending tasks with these texts. Without texts, the plan was cleared."""

    texts: tuple[str, ...]
    by: Author
    line_id: str = _omitted_if("")


@_record("plan", "restored")
class PlanRestored(_Typed):
    """The plan was replaced by the tasks of another session."""

    tasks: tuple[TaskView, ...]
    by: Author
    line_id: str = _omitted_if("")


PlanChange: TypeAlias = TaskAdded | TaskClosed | PlanReplaced | PlanRestored
"""A change of the plan."""


@_record("agent_started")
class AgentStarted(_Typed):
    """The child agent ``name`` was started or asked again, by the tool call ``parent_id`` of the agent ``agent``."""

    name: str
    kind: str
    parent_id: str
    task: str
    agent: str


@_record("agent_ended")
class AgentEnded(_Typed):
    """An agent has ended. ``usage`` includes the usage of the agents below it.

    ``forgotten`` are the names of agents that can no longer be asked, since too many agents have finished.
    """

    name: str
    parent_id: str
    status: Status
    iterations: int
    agent: str
    usage: Usage = field(default_factory=Usage)
    forgotten: tuple[str, ...] = _omitted_if(())


@_record("model")
class Model(_Typed):
    """Another model is used from the next run on. With ``once``, it is used in the active run only."""

    name: str
    once: bool = _omitted_if(False)


@_record("effort")
class Effort(_Typed):
    """Another effort is used from the next run on. An empty ``level`` means the effort in the model's definition."""

    level: str


@_record("mode")
class Mode(_Typed):
    """The user chose another mode. It determines which calls need approval from now on."""

    name: ModeName


@_record("request", "sent")
class RequestSent(_Typed):
    """A model call starts.

    ``system`` and ``tools`` are digests (``text_digest``) of the system prompt and the tools. The first
    ``attempt`` is 1. ``compacts``: the call asks for a summary to compact the conversation. ``window`` is the model's
    context window in tokens, 0 if unknown. ``beside`` is the number of characters in the system prompt and the tools.
    """

    agent: str
    iteration: int
    system: str
    tools: str
    max_iterations: int = _omitted_if(0)
    attempt: int = _omitted_if(1)
    tail: tuple[str, ...] = _omitted_if(())
    overrides: Overrides = _omitted_if(Overrides())
    compacts: bool = _omitted_if(False)
    window: int = _omitted_if(0)
    beside: int = _omitted_if(0)


@_record("request", "ended")
class RequestEnded(_Typed):
    """A model call ended. A cancelled call has no such record.

    ``message`` is the reply, if it is not appended to the conversation. ``asked_tokens`` is the size of a request that
    was too long, if the service reported it.

    A call that failed has an ``error`` instead of a ``stop_reason``, and a short ``cause`` of it. ``parameters`` and
    ``refused`` are the parameters and the content that the service refused. ``delay_s`` is the pause before the next
    attempt, in seconds.
    """

    agent: str
    iteration: int
    stop_reason: StopReason | None = None
    usage: Usage = _omitted_if(Usage())
    message: messages.Message | None = _omitted_if(None)
    error: str = _omitted_if("")
    parameters: tuple[str, ...] = _omitted_if(())
    refused: tuple[str, ...] = _omitted_if(())
    cause: str = _omitted_if("")
    window: int = _omitted_if(0)
    asked_tokens: int = _omitted_if(0)
    delay_s: float = _omitted_if(0.0)


@_record("compact")
class CompactionAsked(_Typed):
    """The user asks for a compaction. ``focus`` says what matters most to the user; it may be empty."""

    agent: str
    focus: str = _omitted_if("")


@_record("compacted")
class Compacted(_Typed):
    """A conversation was compacted to a summary, the user's ``words``, the ``plan`` and the last ``kept`` messages.

    If ``summary`` is empty, all messages stay, but stubs replace the tool results with the ids in ``stubbed``.
    ``left_out`` counts the user's lines that did not fit into ``words``. ``images`` names the images that are no longer
    in the conversation. Numbers of tokens are estimates.
    """

    agent: str
    iteration: int
    by: CompactedBy
    summary: str = ""
    words: str = _omitted_if("")
    left_out: int = _omitted_if(0)
    kept: int = _omitted_if(0)
    stubbed: tuple[str, ...] = _omitted_if(())
    images: tuple[str, ...] = _omitted_if(())
    plan: str = _omitted_if("")
    tokens_before: int = 0
    tokens_after: int = 0


@_record("interrupted")
class Interrupted(_Typed):
    """An agent's work was cancelled. ``what`` is the phase of its work, ``by`` the cause.

    ``user``: an interrupt, which also cancels all agents below it. ``exit``: the end of the program, with the same
    effect. ``line``: a now line or a stop. ``time``: the time limit. ``usage`` is the usage of a cancelled reply. It
    is empty after ``user`` and ``exit``, because the result of the run contains it.
    """

    agent: str
    iteration: int
    what: Phase
    by: Literal["user", "exit", "line", "time"]
    usage: Usage = _omitted_if(Usage())


@_record("draft")
class Draft(_Typed):
    """The text that was in the editor when the program ended."""

    text: str


@_record("instructions")
class InstructionsRead(_Typed):
    """The project's instructions have changed. ``files`` are relative to the workspace.

    ``faults`` are sentences about content that was skipped.
    """

    text: str = ""
    files: tuple[str, ...] = ()
    faults: tuple[str, ...] = _omitted_if(())


@_record("server_tools")
class ServerTools(_Typed):
    """The tools that servers offer have changed."""

    tools: tuple[OfferedTool, ...] = ()


@_record("result")
class Result(_Typed):
    """A run ended. ``phase_reached`` is set if the user ended the run. ``short`` is as in the event.

    ``program_ended``: the process had ended before, and the result was written when the session was resumed.
    """

    status: Status
    result: str
    iterations: int
    usage: Usage = field(default_factory=Usage)
    phase_reached: Phase | None = _omitted_if(None)
    program_ended: bool = _omitted_if(False)
    short: str = _omitted_if("")


@dataclass(frozen=True, slots=True)
class Unknown:
    """A record of a type that this version does not know, with its fields."""

    type: str
    raw: Mapping[str, Any]


_OfCalls: TypeAlias = Message | Withdrawn | Compacted | Removed | RequestSent | RequestEnded
_OfTools: TypeAlias = ServerTools | ToolStarted | ToolFinished | FileChanged | DirectoryAdded | JobStarted | JobEnded
_OfUsers: TypeAlias = (
    Line
    | Receipt
    | Question
    | Answer
    | PlanChange
    | Model
    | Effort
    | CompactionAsked
    | Interrupted
    | Draft
    | Rewound
    | Mode
)

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
"""A record that this version writes."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A record with its ``seq`` in the journal and its time in seconds since the epoch."""

    seq: int
    time: float
    record: Record | Unknown


def text_digest(text: str) -> str:
    """Return the digest of a long text. Records contain the digest instead of the text."""
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:16]
