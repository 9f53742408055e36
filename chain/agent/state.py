"""A run, and the table of its endings (SPEC section 7). Nothing here awaits.

The user and the clock move a run's state forward, never back::

    running ──> stop asked ──> cut off ──> interrupted

- *stop asked*: the run ends at its next safe point. A streaming reply is cancelled, a running tool finishes.
- *cut off*: the time limit cancelled its scope, or the parent's call ended. It replaces a stop, because the user has to
  know about the limit.
- *interrupted*: the user cancelled its scope.

If the loop decides an ending of its own in the same step, this table applies::

    own ending of the loop                            stop asked    interrupted
    done, max_iterations, limit_reached, truncated    the stop      the interrupt
    error of the model                                itself        the interrupt
    empty, refused, context_full, error of the disk   itself        itself
    none: the scope was cancelled                     cut off       the interrupt

The user has to know about the endings marked ``itself``. An error of the model is replaced by an interrupt, which may
have caused it.

Lines that still wait: after ``done`` these are follow-ups, which start the next run. After ``max_iterations`` they are
carried over. After all other endings they are returned to the user.
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
"""The states in their order."""

_OVERRIDDEN_BY_USER: frozenset[Status] = frozenset({"done", "max_iterations", "limit_reached", "truncated"})
"""The statuses that a stop or an interrupt replaces."""

_MAX_SHOWN = 200
"""The limit, in characters, of a result in the list of findings: enough to recognise it."""

MAX_RESULTS, MAX_RESULT_CHARS = 1_000, 200_000
"""The limits of a run's kept results, in number and characters, since a run may last for a month."""


def keeps_lines(status: Status, *, run_follows: bool) -> bool:
    """Return whether waiting lines stay queued for the next run.

    ``run_follows``: another run will start, or a person can start one.
    """
    return status == "done" or (status == "max_iterations" and run_follows)


@dataclass(frozen=True, slots=True)
class PartialResult:
    """A tool result that is not an error."""

    tool: str
    text: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a run. ``short`` is the end of the result with the number of findings instead of their list."""

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
        """Pause the deadline until ``resume``. Pauses nest."""
        if self._pauses == 0:
            self._remaining_s = self._scope.deadline - trio.current_time()
            self._scope.deadline = float("inf")
        self._pauses += 1

    def resume(self) -> None:
        """End a pause. The deadline continues after the last pause."""
        self._pauses -= 1
        if self._pauses == 0:
            self._scope.deadline = trio.current_time() + self._remaining_s


@dataclass(eq=False)
class Step:
    """The current iteration.

    ``shown`` is the streamed text of the reply, and ``is_appended`` says whether the reply is in the conversation.
    ``is_asking``: a model call is active, and no retry is pending. ``was_cut``: a now line cancelled the tools.
    ``cut_usage`` is the usage of a cancelled reply. ``answered`` are the results by call, and ``clocks`` the deadlines
    by call. ``cut_by`` are the cancel scopes of the step's work, each with the user's acts that cancel it.
    ``children_findings`` are the results, by call, of child agents that ended without an answer.
    """

    shown: list[str] = field(default_factory=list)
    is_appended: bool = False
    is_asking: bool = False
    was_cut: bool = False
    cut_usage: Usage = field(default_factory=Usage)
    tools: Literal["not begun", "running", "over"] = "not begun"
    answered: dict[str, ToolResult] = field(default_factory=dict)
    clocks: dict[str, PausableDeadline] = field(default_factory=dict)
    cut_by: list[tuple[trio.CancelScope, Sequence[str]]] = field(default_factory=list)
    children_findings: dict[str, list[PartialResult]] = field(default_factory=dict)

    @property
    def phase(self) -> Phase:
        """``tools`` while calls run, ``answering`` once text of the reply is shown, otherwise ``thinking``."""
        if self.tools == "running":
            return "tools"
        return "answering" if self.shown and self.tools == "not begun" else "thinking"


@dataclass(frozen=True, slots=True)
class ReplyExpectation:
    """What the last delivery requires of the reply. ``source`` is the handler prompt that sets the requirements.

    ``asides_only``: the reply answers only asides, so it is not the run's result. ``aside_task``: the current work is
    for an aside that was delivered after the task was done.
    """

    post_prompt: str = ""
    overrides: Overrides = field(default_factory=Overrides)
    source: str = ""
    resume: str | None = None
    asides_only: bool = False
    aside_task: bool = False

    def after_reply(self) -> ReplyExpectation:
        """Return the requirements after the reply: only ``aside_task`` remains."""
        return ReplyExpectation(asides_only=self.aside_task, aside_task=self.aside_task)


@dataclass(eq=False)
class Run:
    """One run of an agent.

    A run starts with the user's ``query``, with a ``task`` from the call ``call_id`` of the run ``above``, or with
    carried-over lines alone. Its tools start agents by ``delegating``, and ``usage`` includes those agents.

    ``focus`` is what the user wants a requested compaction to emphasize, ``None`` if none is requested.
    ``only_compacts``: the run exists for that compaction alone. ``compacted_at`` is the iteration of the last
    compaction or attempt. ``phase_reached`` is the phase in which ``state`` was entered. ``findings`` are the results
    of its tools, without the first ``dropped_findings`` ones. ``unanswered`` are the lines delivered since the last
    reply. ``refuses_effort``: the service refused the effort that the user chose.
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
    refuses_effort: bool = False
    expectation: ReplyExpectation = field(default_factory=ReplyExpectation)
    unanswered: list[Arrival] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = PausableDeadline(self.scope)

    def stop(self) -> None:
        """End the run at the next safe point. A streaming reply is cancelled, a running tool finishes."""
        self._advance("stop asked")
        self.cut("stop")

    def interrupt(self) -> None:
        """Cancel the run."""
        self._advance("interrupted")
        self.cut("interrupt")
        self.scope.cancel()

    def cut(self, act: Literal["stop", "now", "interrupt"]) -> None:
        """Cancel the work of this step that the act cancels: a streaming reply, and for a now line also the tools."""
        for scope, acts in self.step.cut_by:
            if act in acts:
                scope.cancel()

    def cut_by(self, *acts: Literal["stop", "now", "interrupt"]) -> trio.CancelScope:
        """Return a cancel scope for work of this step that these acts cancel."""
        scope = trio.CancelScope()
        self.step.cut_by.append((scope, acts))
        return scope

    def _advance(self, state: RunState) -> None:
        """Move to a later state. Do nothing if that state or a later one has been reached."""
        if _STATES.index(state) > _STATES.index(self.state):
            self.state, self.phase_reached = state, self.step.phase

    @property
    def is_stop_requested(self) -> bool:
        """Whether the run ends at its next safe point."""
        return self.state == "stop asked"

    @property
    def is_interrupted(self) -> bool:
        """Whether the user cancelled the run."""
        return self.state == "interrupted"

    @property
    def is_ending(self) -> bool:
        """Whether the user has stopped or interrupted the run."""
        return self.is_stop_requested or self.is_interrupted

    def outcome(self, own: Outcome | None, timeout_s: float) -> Outcome:
        """Return how the run ends, by the table. ``own`` is the loop's ending, ``None`` if the scope was cancelled."""
        if own is None:
            self._advance("cut off")
        elif own.status not in _OVERRIDDEN_BY_USER:
            return own
        match self.state:
            case "interrupted":
                results = tuple(each.text for each in self.findings)
                return Outcome("interrupted", INTERRUPTED_TEXT, self.phase_reached, results)
            case "stop asked":
                shown, dropped = "".join(self.step.shown), self.dropped_findings
                return stop_outcome(self.phase_reached, self.findings, self.skipped_calls, shown, dropped)
            case _:
                late = f"Stopped after {timeout_s:g} s, the time limit, without an answer."
                return own or Outcome("limit_reached", self.result or late)

    @property
    def task_text(self) -> str:
        """The text of the task or query; empty for a run of carried-over lines."""
        return self.task if self.query is None else self.query.line.message

    @property
    def undelivered(self) -> tuple[AcceptedLine, ...]:
        """The query if it is not in the conversation yet. Every ending returns it to the user."""
        query = self.query
        return () if query is None or query.delivered_at is not None or query.state != "queued" else (query,)

    @property
    def result(self) -> str:
        """The last reply that answers more than asides; if there is none, the last reply."""
        return self.answer or self.last_reply

    @property
    def clocks(self) -> tuple[PausableDeadline, ...]:
        """The deadlines of the run and of all calls and runs above it."""
        return (self.clock,) if self.above is None else (self.clock, *self.above.clocks_of(self.call_id))

    def clocks_of(self, call_id: str) -> tuple[PausableDeadline, ...]:
        """Return the deadlines of a call of this step and of all calls and runs above it.

        If the id belongs to no call of the step, as a tool can invent one, return the deadlines of the run.
        """
        call = self.step.clocks.get(call_id)
        return self.clocks if call is None else (call, *self.clocks)

    @property
    def tree_usage(self) -> Usage:
        """The usage of the whole tree, to which the budgets apply."""
        return self.usage if self.above is None else self.above.tree_usage

    def add_results(self, found: Sequence[PartialResult]) -> None:
        """Add the results of a call. Remove the oldest results beyond the limits."""
        self.findings += found
        self._findings_chars += sum(len(each.text) for each in found)
        while len(self.findings) > MAX_RESULTS or (self._findings_chars > MAX_RESULT_CHARS and len(self.findings) > 1):
            self._findings_chars -= len(self.findings.pop(0).text)
            self.dropped_findings += 1

    def add_usage(self, usage: Usage) -> None:
        """Add the usage of a model call to this run and the runs above."""
        self.usage += usage
        if self.above is not None:
            self.above.add_usage(usage)

    @property
    def deadline(self) -> float:
        """The time when the run or one above it times out, on trio's clock."""
        return self.scope.deadline if self.above is None else min(self.scope.deadline, self.above.deadline)

    @property
    def is_timed_out(self) -> bool:
        """Whether the run or one above it was cancelled by its time limit."""
        is_own = self.scope.cancel_called and not self.is_interrupted
        return is_own or (self.above is not None and self.above.is_timed_out)


def stop_outcome(
    phase: Phase, found: Sequence[PartialResult], skipped: int, streamed: str, earlier: int = 0
) -> Outcome:
    """Return the outcome of a stop.

    ``streamed`` is the text of the last reply, ``earlier`` counts results not in ``found``.
    """
    reply = streamed.strip() if phase == "answering" else ""
    rows = [f"• {pluralize(earlier, 'earlier result')}"] if earlier else []
    rows += [f"• {each.tool}: {_first_row(each.text)}" for each in found]
    count = f"[{len(found) + earlier} done, {skipped} skipped]"
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
    """Return the first row that is not blank, shortened."""
    return truncate(next((line.strip() for line in text.splitlines() if line.strip()), ""), _MAX_SHOWN)
