"""A run, and the table of its endings (SPEC section 7). Nothing here awaits.

The user and the clock move a run's state forward, never back::

    running ──> stop asked ──> cut off ──> interrupted

- *stop asked*: the run ends at its next safe point. A streaming reply is cancelled, but a running tool finishes.
- *cut off*: the time limit cancelled the run's scope, or the call of the parent agent ended. This state replaces *stop
  asked*, because the user has to know about the limit.
- *interrupted*: the user cancelled the run's scope.

The loop may decide an outcome although the user has stopped or interrupted the run. The table shows which outcome the
run then has::

    outcome that the loop decided                     stop asked    interrupted
    done, max_iterations, limit_reached, truncated    the stop      the interrupt
    error of the model                                itself        the interrupt
    empty, refused, context_full, error of the disk   itself        itself
    none: the scope was cancelled                     cut off       the interrupt

The outcomes marked ``itself`` stay, because the user has to know about them. An interrupt replaces an error of the
model, because the interrupt may have caused the error.

Lines may still wait when a run ends. After ``done``, only follow-ups wait, and they start the next run. After
``max_iterations``, the next run delivers the waiting lines. After all other outcomes, they are returned to the user.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

import trio

from chain.events import Phase, Status
from chain.interruption.prompt import Arrival
from chain.lines.accepted import AcceptedLine
from chain.messages import Overrides, ToolResult, Usage
from chain.text.wording import FOUND, INTERRUPTED_TEXT, QUESTION, pluralize, truncate
from chain.tools.tool import Delegating

RunState: TypeAlias = Literal["running", "stop asked", "cut off", "interrupted"]

_STATES: tuple[RunState, ...] = get_args(RunState)
"""The states of a run, in the order in which a run can pass through them."""

_OVERRIDDEN_BY_USER: frozenset[Status] = frozenset({"done", "max_iterations", "limit_reached", "truncated"})
"""The statuses that the status of a stop or an interrupt replaces: see the table above."""

_MAX_SHOWN = 200
"""The limit, in characters, of a result in the list of findings: enough to recognise the result."""

MAX_RESULTS, MAX_RESULT_CHARS = 1_000, 200_000
"""The limits of the tool results that a run stores: their number, and their characters. A run may last for a month."""


def keeps_lines(status: Status, *, run_follows: bool) -> bool:
    """Return whether lines that wait at the end of a run stay queued for the next run.

    ``status`` is the status of the ended run. ``run_follows``: another run will start, or a person can start one.
    """
    return status == "done" or (status == "max_iterations" and run_follows)


@dataclass(frozen=True, slots=True)
class PartialResult:
    """A finding: a tool result that is not an error."""

    tool: str
    text: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a run. ``result`` is the text for the user.

    ``short`` is the end of ``result``, with the number of findings instead of their list. It is set only after a stop
    with findings.
    """

    status: Status
    result: str
    phase_reached: Phase | None = None
    partial_results: tuple[str, ...] = ()
    short: str = ""


class PausableDeadline:
    """The deadline of a cancel scope, paused while a question is open. Pauses nest."""

    def __init__(self, scope: trio.CancelScope) -> None:
        self._scope = scope
        self._pauses = 0
        self._remaining_s = 0.0

    def pause(self) -> None:
        """Pause the deadline. It stays paused until ``resume`` has been called once for each pause."""
        if self._pauses == 0:
            self._remaining_s = self._scope.deadline - trio.current_time()
            self._scope.deadline = float("inf")
        self._pauses += 1

    def resume(self) -> None:
        """End one pause. If it was the last one, restore the deadline with the time that remained before the pause."""
        self._pauses -= 1
        if self._pauses == 0:
            self._scope.deadline = trio.current_time() + self._remaining_s


@dataclass(eq=False)
class Step:
    """The current iteration of a run."""

    shown: list[str] = field(default_factory=list)
    """The pieces of the reply's text that were displayed so far."""
    is_appended: bool = False
    """Whether the reply is in the conversation."""
    is_asking: bool = False
    """Whether a model call is active. It is false in a pause before a retry."""
    was_cut: bool = False
    """Whether a ``now`` line cancelled the tool calls."""
    cut_usage: Usage = field(default_factory=Usage)
    """The usage that was streamed with the reply. It is recorded if the reply is cancelled."""
    tools: Literal["not begun", "running", "over"] = "not begun"
    answered: dict[str, ToolResult] = field(default_factory=dict)
    """The results of the tool calls, by the ids of the calls."""
    clocks: dict[str, PausableDeadline] = field(default_factory=dict)
    """The deadlines of the tool calls, by the ids of the calls."""
    cut_scopes: list[tuple[trio.CancelScope, Sequence[str]]] = field(default_factory=list)
    """The cancel scopes of this iteration's work, each with the acts of the user that cancel it."""
    children_findings: dict[str, list[PartialResult]] = field(default_factory=dict)
    """The findings of child agents that ended without an answer, by the ids of the calls that started them."""

    @property
    def phase(self) -> Phase:
        """``tools`` while tools run, ``answering`` if text was shown and no tool has started, else ``thinking``."""
        if self.tools == "running":
            return "tools"
        return "answering" if self.shown and self.tools == "not begun" else "thinking"


@dataclass(frozen=True, slots=True)
class ReplyExpectation:
    """What the last delivered lines require of the reply. ``source`` names the handler prompt with the requirements.

    ``post_prompt`` is sent after the messages, and ``overrides`` has settings of the model call. ``resume`` is the
    message that asks the model to resume its task after the reply, or ``None`` if the lines interrupted no task.
    ``asides_only``: the reply answers only asides, so it does not become the run's result. ``aside_task``: the model
    works on an aside that was delivered after the task was done.
    """

    post_prompt: str = ""
    overrides: Overrides = field(default_factory=Overrides)
    source: str = ""
    resume: str | None = None
    asides_only: bool = False
    aside_task: bool = False

    def after_reply(self) -> ReplyExpectation:
        """Return the expectation for the next reply: asides only while the work on an aside (``aside_task``) lasts."""
        return ReplyExpectation(asides_only=self.aside_task, aside_task=self.aside_task)


@dataclass(eq=False)
class Run:
    """One run of an agent.

    A run of the main agent starts with the user's ``query``, or with lines that an earlier run left waiting. A run of a
    child agent starts with a ``task`` from the tool call ``call_id`` of its parent agent's run, ``above``. Tools start
    child agents through ``delegating``, and ``usage`` includes the usage of these agents.

    ``focus`` is what the user wants a requested compaction to emphasize, and ``None`` if no compaction is requested.
    ``only_compacts``: the run does nothing but the requested compaction. ``compacted_at`` is the iteration of the last
    compaction, even if it failed. ``phase_reached`` is the phase of the iteration in which ``state`` last changed.
    ``findings`` are the results of the run's tools, without the first ``dropped_findings`` results. ``unanswered`` are
    the lines that were delivered after the last reply. ``was_nudged``: the model was asked to continue after an empty
    reply. ``is_effort_refused``: the service refused the effort that the user chose.
    """

    query: AcceptedLine | None = None
    task: str = ""
    above: Run | None = None
    call_id: str = ""
    delegating: Delegating = field(default_factory=Delegating)
    focus: str | None = None
    only_compacts: bool = False
    compacted_at: int = -1
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    clock: PausableDeadline = field(init=False)
    state: RunState = "running"
    phase_reached: Phase = "thinking"
    step: Step = field(default_factory=Step)
    iteration: int = 0
    usage: Usage = field(default_factory=Usage)
    last_reply: str = ""
    answer: str = ""
    findings: list[PartialResult] = field(default_factory=list)
    dropped_findings: int = 0
    _findings_chars: int = 0
    skipped_calls: int = 0
    was_nudged: bool = False
    is_effort_refused: bool = False
    expectation: ReplyExpectation = field(default_factory=ReplyExpectation)
    unanswered: list[Arrival] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = PausableDeadline(self.scope)

    def stop(self) -> None:
        """Let the run end at its next safe point. Cancel a streaming reply, but let a running tool finish."""
        self._advance("stop asked")
        self.cut("stop")

    def interrupt(self) -> None:
        """Cancel the run, including its running tools."""
        self._advance("interrupted")
        self.cut("interrupt")
        self.scope.cancel()

    def cut(self, act: Literal["stop", "now", "interrupt"]) -> None:
        """Cancel the scopes of this iteration that ``cut_scope`` has created for this act of the user.

        A stop and a ``now`` line cancel a model call. A ``now`` line also cancels running tools.
        """
        for scope, acts in self.step.cut_scopes:
            if act in acts:
                scope.cancel()

    def cut_scope(self, *acts: Literal["stop", "now", "interrupt"]) -> trio.CancelScope:
        """Return a new cancel scope for work of this iteration. Each of these acts of the user cancels the scope."""
        scope = trio.CancelScope()
        self.step.cut_scopes.append((scope, acts))
        return scope

    def _advance(self, state: RunState) -> None:
        """Change ``self.state`` to ``state``, unless the run is already in this state or a later one."""
        if _STATES.index(state) > _STATES.index(self.state):
            self.state, self.phase_reached = state, self.step.phase

    @property
    def is_stop_requested(self) -> bool:
        """Whether the user has stopped the run, so that it ends at its next safe point."""
        return self.state == "stop asked"

    @property
    def is_interrupted(self) -> bool:
        """Whether the user has interrupted the run, which cancels it."""
        return self.state == "interrupted"

    @property
    def is_ending(self) -> bool:
        """Whether the user has stopped or interrupted the run."""
        return self.is_stop_requested or self.is_interrupted

    def outcome(self, decided: Outcome | None, timeout_s: float) -> Outcome:
        """Return the outcome of the run, by the table of this module.

        ``decided`` is the outcome that the loop decided, and ``None`` if the run's scope was cancelled.
        """
        if decided is None:
            self._advance("cut off")
        elif decided.status not in _OVERRIDDEN_BY_USER:
            return decided
        match self.state:
            case "interrupted":
                results = tuple(each.text for each in self.findings)
                return Outcome("interrupted", INTERRUPTED_TEXT, self.phase_reached, results)
            case "stop asked":
                shown, dropped = "".join(self.step.shown), self.dropped_findings
                return stop_outcome(self.phase_reached, self.findings, self.skipped_calls, shown, dropped)
            case _:
                late = f"Stopped after {timeout_s:g} s, the time limit, without an answer."
                return decided or Outcome("limit_reached", self.result or late)

    @property
    def task_text(self) -> str:
        """The text of the task or query. It is empty for a run that starts with lines of an earlier run."""
        return self.task if self.query is None else self.query.line.message

    @property
    def undelivered(self) -> tuple[AcceptedLine, ...]:
        """The query, if it is not in the conversation yet. If the run ends now, the query is returned to the user."""
        query = self.query
        return () if query is None or query.delivered_at is not None or query.state != "queued" else (query,)

    @property
    def result(self) -> str:
        """The text of the last reply that answers the task and not only side questions, or else of the last reply."""
        return self.answer or self.last_reply

    @property
    def clocks(self) -> tuple[PausableDeadline, ...]:
        """The deadlines of this run, of the tool call that started it, and of all runs and calls above."""
        return (self.clock,) if self.above is None else (self.clock, *self.above.clocks_of(self.call_id))

    def clocks_of(self, call_id: str) -> tuple[PausableDeadline, ...]:
        """Return the deadlines of a tool call of this iteration, of this run, and of all calls and runs above.

        If no call of this iteration has the id, return the deadlines without that of the call: a tool can pass any id.
        """
        call = self.step.clocks.get(call_id)
        return self.clocks if call is None else (call, *self.clocks)

    @property
    def tree_usage(self) -> Usage:
        """The usage of the whole tree of runs that this run belongs to. The budgets limit this usage."""
        return self.usage if self.above is None else self.above.tree_usage

    def add_results(self, found: Sequence[PartialResult]) -> None:
        """Add the results of a tool call to ``findings``. Remove the oldest findings if they exceed the limits."""
        self.findings += found
        self._findings_chars += sum(len(each.text) for each in found)
        while len(self.findings) > MAX_RESULTS or (self._findings_chars > MAX_RESULT_CHARS and len(self.findings) > 1):
            self._findings_chars -= len(self.findings.pop(0).text)
            self.dropped_findings += 1

    def add_usage(self, usage: Usage) -> None:
        """Add the usage of a model call to this run and to all runs above it."""
        self.usage += usage
        if self.above is not None:
            self.above.add_usage(usage)

    @property
    def deadline(self) -> float:
        """The earliest deadline of this run and of all runs above, on trio's clock."""
        return self.scope.deadline if self.above is None else min(self.scope.deadline, self.above.deadline)

    @property
    def is_timed_out(self) -> bool:
        """Whether a time limit cancelled this run or a run above it."""
        is_own = self.scope.cancel_called and not self.is_interrupted
        return is_own or (self.above is not None and self.above.is_timed_out)


def stop_outcome(
    phase: Phase, found: Sequence[PartialResult], skipped: int, streamed: str, dropped_count: int = 0
) -> Outcome:
    """Return the outcome of a run that the user stopped in this phase.

    ``found`` are the findings to list. ``dropped_count`` is the number of older findings that are no longer stored.
    ``skipped`` is the number of skipped tool calls. ``streamed`` is the displayed text of the cancelled reply.
    """
    reply = streamed.strip() if phase == "answering" else ""
    rows = [f"• {pluralize(dropped_count, 'earlier result')}"] if dropped_count else []
    rows += [f"• {each.tool}: {_first_row(each.text)}" for each in found]
    count = f"[{len(found) + dropped_count} done, {skipped} skipped]"
    listed = "\n".join([FOUND, *rows, count])
    status: Status = "cancelled"
    short: list[str] = []
    if found and phase == "answering":
        note = "Results found but response generation was cancelled."
        status, parts, short = "cancelled_during_synthesis", [reply, listed, note, QUESTION], [count, note, QUESTION]
    elif found:
        status, parts, short = "cancelled_with_partial", [listed, QUESTION], [count, QUESTION]
    elif phase == "tools":
        parts = ["Cancelled before any results. What would you like to do?"]
    else:
        parts = [reply, QUESTION] if reply else [f"Cancelled. {QUESTION}"]
    text = "\n\n".join(part for part in parts if part)
    return Outcome(status, text, phase, tuple(each.text for each in found), "\n".join(short))


def _first_row(text: str) -> str:
    """Return the first row that is not blank, stripped and truncated to ``_MAX_SHOWN`` characters."""
    return truncate(next((line.strip() for line in text.splitlines() if line.strip()), ""), _MAX_SHOWN)
