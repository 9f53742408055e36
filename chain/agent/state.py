"""A run, and the table of how it may end (SPEC section 7). It waits for nothing.

What is to end a run is one state. The user and the clock move it on at any time, to any further on, and never back::

    running ──> stop asked ──> cut off ──> interrupted

- *stop asked*: the run ends at its next safe point. A reply that streams is cut, a running tool finishes.
- *cut off*: its scope was cancelled by its time limit, or with the call of another agent that it works for. A stop that
  was asked for before no longer counts: people have to hear of the limit.
- *interrupted*: the user cancelled its scope, and sees that, whatever else was about to end it.

The loop may come to an ending of its own in the very step of one of these. Which of the two stands::

    own ending of the loop                            stop asked    interrupted
    done, max_iterations, limit_reached, truncated    the stop      the interrupt
    error of the model                                itself        the interrupt
    empty, refused, context_full, error of the disk   itself        itself
    none: the scope was cancelled                     cut off       the interrupt

The first row gives way because the user wanted nothing to follow. The others stay because the user has to know of them;
but an error of the model gives way to an interrupt, which may have caused it.

The lines that still wait then: after ``done`` there are none but follow-ups, which start the next run; after
``max_iterations`` they are carried over; after all others they go back to the user.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

import trio

from chain.events import Phase, Status
from chain.interruption.prompt import Arrival
from chain.lines.accepted import Accepted
from chain.messages import Overrides, ToolResult, Usage
from chain.text.wording import FOUND, INTERRUPTED_TEXT, QUESTION, beginning, counted
from chain.tools.tool import Delegating

RunState: TypeAlias = Literal["running", "stop asked", "cut off", "interrupted"]

_STATES: tuple[RunState, ...] = get_args(RunState)
"""In the order in which they follow each other."""

_OVERRIDDEN_BY_USER: frozenset[Status] = frozenset({"done", "max_iterations", "limit_reached", "truncated"})

_SHOWN = 200
"""Characters of a result in the list of what was found: enough to recognise it, and the whole is in the result."""


MOST_FOUND, MOST_CHARS = 1_000, 200_000
"""The latest results of a run that are kept, and their characters: a run may go on for a month."""


def keeps_lines(status: Status, *, run_follows: bool) -> bool:
    """Whether waiting lines stay for the next run; ``run_follows``: one will start, or a person can start one."""
    return status == "done" or (status == "max_iterations" and run_follows)


@dataclass(frozen=True, slots=True)
class PartialResult:
    """A tool result that was no error."""

    tool: str
    text: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended; the waiting lines are still where they were.

    ``short``: what the result says after the reply, with the number of what was found instead of the list; empty where
    nothing was.
    """

    status: Status
    result: str
    phase_reached: Phase | None = None
    partial_results: tuple[str, ...] = ()
    short: str = ""


class Clock:
    """The time limit of a cancel scope. It stands still while anybody holds it: whoever waits for the user's answer."""

    def __init__(self, scope: trio.CancelScope) -> None:
        self._scope = scope
        self._holders = 0
        self._left_s = 0.0

    def hold(self) -> None:
        """Stand still until ``release``; each who holds it calls that once."""
        if self._holders == 0:
            self._left_s = self._scope.deadline - trio.current_time()
            self._scope.deadline = float("inf")
        self._holders += 1

    def release(self) -> None:
        """Go on, if nobody else holds it."""
        self._holders -= 1
        if self._holders == 0:
            self._scope.deadline = trio.current_time() + self._left_s


@dataclass(eq=False)
class Step:
    """The iteration under way: what of its reply was shown, and which of its calls have a result."""

    shown: list[str] = field(default_factory=list)
    appended: bool = False
    is_asking: bool = False
    """Whether the model has been asked, and is not to be asked again."""
    was_cut: bool = False
    """Whether a now line cut tools of the step."""
    cut_usage: Usage = field(default_factory=Usage)
    """What a reply had used that was cut."""
    tools: Literal["not begun", "running", "over"] = "not begun"
    answered: dict[str, ToolResult] = field(default_factory=dict)
    clocks: dict[str, Clock] = field(default_factory=dict)
    """Of the calls that have begun."""
    cut_by: list[tuple[trio.CancelScope, Sequence[str]]] = field(default_factory=list)
    """The scopes of the step's work, each with the acts of the user that cut it short."""
    children_findings: dict[str, list[PartialResult]] = field(default_factory=dict)
    """By calls: what their agents had found that ended without an answer."""

    @property
    def phase(self) -> Phase:
        """How far the iteration has come."""
        if self.tools == "running":
            return "tools"
        return "answering" if self.shown and self.tools == "not begun" else "thinking"


@dataclass(frozen=True, slots=True)
class ReplyExpectation:
    """What the last delivery wants of the reply to it.

    ``asides_only``: the reply answers asides alone, so it is not the run's result. ``aside_task``: the work that the
    reply goes on with, or comes back to, is for an aside that came after the task was done. ``source``: whose settings.
    """

    post_prompt: str = ""
    overrides: Overrides = field(default_factory=Overrides)
    source: str = ""
    resume: str | None = None
    asides_only: bool = False
    aside_task: bool = False

    def after_reply(self) -> ReplyExpectation:
        """What still holds once the reply is there: whom the work is for."""
        return ReplyExpectation(asides_only=self.aside_task, aside_task=self.aside_task)


@dataclass(eq=False)
class Run:
    """One run of an agent.

    What starts it is the user's ``query``, or the ``task`` that the agent of the run ``above`` has for this one in its
    call ``call_id``, or carried lines alone. ``delegating`` is how its tools start agents. ``usage`` includes theirs.
    """

    query: Accepted | None = None
    task: str = ""
    above: Run | None = None
    call_id: str = ""
    delegating: Delegating = field(default_factory=Delegating)
    focus: str | None = None
    """What matters in the compaction that the user has asked for; ``None``: they have asked for none."""
    only_compacts: bool = False
    """Whether it was begun for that alone."""
    compacted_at: int = -1
    """The iteration after which the conversation was compacted last, or could not be."""
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    clock: Clock = field(init=False)
    state: RunState = "running"
    phase_reached: Phase = "thinking"
    """How far its iteration had come when the state was entered."""
    step: Step = field(default_factory=Step)
    iteration: int = 0
    usage: Usage = field(default_factory=Usage)
    last_reply: str = ""
    answer: str = ""
    found: list[PartialResult] = field(default_factory=list)
    """What its tools have found, but for ``earlier`` results that were too much to keep."""
    earlier: int = 0
    _found_chars: int = 0
    skipped: int = 0
    was_nudged: bool = False
    expectation: ReplyExpectation = field(default_factory=ReplyExpectation)
    unanswered: list[Arrival] = field(default_factory=list)
    """The lines delivered since the last reply that is in the conversation."""

    def __post_init__(self) -> None:
        self.clock = Clock(self.scope)

    # ----------------------------------------------------------------------------------------- what is to end it

    def stop(self) -> None:
        """End the run at the next safe point; a reply that streams is cut, a running tool finishes."""
        self._enter("stop asked")
        self.cut("stop")

    def interrupt(self) -> None:
        """Cancel the work in hand."""
        self._enter("interrupted")
        self.cut("interrupt")
        self.scope.cancel()

    def cut(self, act: Literal["stop", "now", "interrupt"]) -> None:
        """Cut the work of this step that the act cuts short: a reply that streams, for a now line also its tools."""
        for scope, acts in self.step.cut_by:
            if act in acts:
                scope.cancel()

    def cut_by(self, *acts: Literal["stop", "now", "interrupt"]) -> trio.CancelScope:
        """A scope for work of this step that these acts of the user cut short."""
        scope = trio.CancelScope()
        self.step.cut_by.append((scope, acts))
        return scope

    def _enter(self, state: RunState) -> None:
        if _STATES.index(state) > _STATES.index(self.state):
            self.state, self.phase_reached = state, self.step.phase

    @property
    def stop_asked(self) -> bool:
        """Whether it ends at its next safe point."""
        return self.state == "stop asked"

    @property
    def interrupted(self) -> bool:
        """Whether the user cancelled it."""
        return self.state == "interrupted"

    @property
    def is_ending(self) -> bool:
        """Whether the user wants it to end."""
        return self.stop_asked or self.interrupted

    def outcome(self, own: Outcome | None, timeout_s: float) -> Outcome:
        """How it ends, by the table. ``own`` is how its loop ended, ``None`` if its scope was cancelled first."""
        if own is None:
            self._enter("cut off")
        elif own.status not in _OVERRIDDEN_BY_USER:
            return own
        match self.state:
            case "interrupted":
                results = tuple(each.text for each in self.found)
                return Outcome("interrupted", INTERRUPTED_TEXT, self.phase_reached, results)
            case "stop asked":
                return stopped(self.phase_reached, self.found, self.skipped, "".join(self.step.shown), self.earlier)
            case _:
                late = f"Stopped after {timeout_s:g} s, the time limit, without an answer."
                return own or Outcome("limit_reached", self.result or late)

    # ------------------------------------------------------------------------------------------ what it is made of

    @property
    def asked_for(self) -> str:
        """What the run was started with; empty if only carried lines did."""
        return self.task if self.query is None else self.query.line.message

    @property
    def undelivered(self) -> tuple[Accepted, ...]:
        """The query, until it is in the conversation: every ending returns it."""
        query = self.query
        return () if query is None or query.entered is not None or query.state != "queued" else (query,)

    @property
    def result(self) -> str:
        """The last reply that answered more than asides, or else the last reply."""
        return self.answer or self.last_reply

    @property
    def clocks(self) -> tuple[Clock, ...]:
        """The run's clock, and those of all calls and runs above it."""
        return (self.clock,) if self.above is None else (self.clock, *self.above.clocks_of(self.call_id))

    def clocks_of(self, call_id: str) -> tuple[Clock, ...]:
        """The clock of a call that has begun in this step, and all above it. A tool may make up the id of its call."""
        call = self.step.clocks.get(call_id)
        return self.clocks if call is None else (call, *self.clocks)

    @property
    def used(self) -> Usage:
        """What the whole tree has used, for which the budgets are."""
        return self.usage if self.above is None else self.above.used

    def add_found(self, found: Sequence[PartialResult]) -> None:
        """Keep what a call has found."""
        self.found += found
        self._found_chars += sum(len(each.text) for each in found)
        while len(self.found) > MOST_FOUND or (self._found_chars > MOST_CHARS and len(self.found) > 1):
            self._found_chars -= len(self.found.pop(0).text)
            self.earlier += 1

    def add_usage(self, usage: Usage) -> None:
        """Count what a model call has used, in the runs above too."""
        self.usage += usage
        if self.above is not None:
            self.above.add_usage(usage)

    @property
    def deadline(self) -> float:
        """When the run is cancelled, or one above it, on trio's clock."""
        return self.scope.deadline if self.above is None else min(self.scope.deadline, self.above.deadline)

    @property
    def is_timed_out(self) -> bool:
        """Whether the run, or one above it, was cancelled by its time limit."""
        is_own = self.scope.cancel_called and not self.interrupted
        return is_own or (self.above is not None and self.above.is_timed_out)


def stopped(phase: Phase, found: Sequence[PartialResult], skipped: int, streamed: str, earlier: int = 0) -> Outcome:
    """The outcome of a stop; ``streamed`` is the text of the reply that was under way or just ended.

    There were so many results ``earlier`` than the ones ``found``.
    """
    said = streamed.strip() if phase == "answering" else ""
    rows = [f"• {counted(earlier, 'earlier result')}"] if earlier else []
    rows += [f"• {each.tool}: {_short(each.text)}" for each in found]
    count = f"[{len(found) + earlier} done, {skipped} skipped]"
    listed = "\n".join([FOUND, *rows, count])
    status: Status = "cancelled"
    short: list[str] = []
    if found and phase == "answering":
        note = "Results found but response generation was cancelled."
        status, parts, short = "cancelled_during_synthesis", [said, listed, note, QUESTION], [count, note, QUESTION]
    elif found:
        status, parts, short = "cancelled_with_partial", [listed, QUESTION], [count, QUESTION]
    elif phase == "tools":
        parts = ["Cancelled before any results. What would you like to do?"]
    else:
        parts = [said, QUESTION] if said else [f"Cancelled. {QUESTION}"]
    text = "\n\n".join(part for part in parts if part)
    return Outcome(status, text, phase, tuple(each.text for each in found), "\n".join(short))


def _short(text: str) -> str:
    return beginning(next((line.strip() for line in text.splitlines() if line.strip()), ""), _SHOWN)
