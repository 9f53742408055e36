"""One run: its state so far, and the handle that stops it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import trio

from chain.agent.clock import Clock
from chain.agent.endings import Found
from chain.events import Phase
from chain.interruption.prompt import Arrival
from chain.lines.receipts import Accepted
from chain.messages import Overrides, ToolResult, Usage
from chain.tools.tool import Alone, Delegating


@dataclass(eq=False)
class Step:
    """The iteration under way: what of its reply was shown, and which of its tools have started or been answered."""

    shown: list[str] = field(default_factory=list)
    appended: bool = False
    is_asking: bool = False
    """Whether the model has been asked, and is not to be asked again."""
    was_cut: bool = False
    """Whether a now line cut tools of the step."""
    tools: Literal["not begun", "running", "over"] = "not begun"
    started: set[str] = field(default_factory=set)
    answered: dict[str, ToolResult] = field(default_factory=dict)
    clocks: dict[str, Clock] = field(default_factory=dict)
    """Of the calls that have begun."""
    beneath: dict[str, list[Found]] = field(default_factory=dict)
    """By calls: what their agents had found that ended without an answer."""

    @property
    def phase(self) -> Phase:
        """How far the iteration has come."""
        if self.tools == "running":
            return "tools"
        return "answering" if self.shown and self.tools == "not begun" else "thinking"


@dataclass(frozen=True, slots=True)
class Asked:
    """What the last delivery wants of the reply to it.

    ``asides_only``: the reply answers asides alone, so it is not the run's result. ``aside_task``: the work that the
    reply goes on with, or comes back to, is itself for an aside, one that came after the task was done. ``source`` is
    where the settings are from.
    """

    post_prompt: str = ""
    overrides: Overrides = field(default_factory=Overrides)
    source: str = ""
    resume: str | None = None
    asides_only: bool = False
    aside_task: bool = False

    def after_reply(self) -> Asked:
        """What still holds once the reply is there: whom the work is for."""
        return Asked(asides_only=self.aside_task, aside_task=self.aside_task)


@dataclass(eq=False)
class Run:
    """The handle on one run of an agent.

    What starts it is the user's ``query``, or the ``task`` that the agent of the run ``above`` has for this one in its
    call ``call_id``, or carried lines alone. ``delegating`` is how its tools start agents. ``usage`` counts that of all
    runs below as well.
    """

    query: Accepted | None = None
    task: str = ""
    above: Run | None = None
    call_id: str = ""
    delegating: Delegating = field(default_factory=Alone)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    clock: Clock = field(init=False)
    iteration: int = 0
    replies: list[str] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    stop_asked: bool = False
    interrupted: bool = False
    phase_reached: Phase | None = None
    call_scope: trio.CancelScope | None = None
    tools_scope: trio.CancelScope | None = None
    idle_scopes: set[trio.CancelScope] = field(default_factory=set)
    """In which its calls wait for what others have in use, and have done nothing yet that a stop would let finish."""
    step: Step = field(default_factory=Step)
    asked: Asked = field(default_factory=Asked)
    unanswered: list[Arrival] = field(default_factory=list)
    """The lines delivered since the last reply that is in the conversation."""
    answer: str = ""
    found: list[Found] = field(default_factory=list)
    skipped: int = 0
    nudged: bool = False
    stranded: list[Accepted] = field(init=False)
    """Lines, the query first, that wait in no inbox and are not in the conversation yet: every ending returns them."""
    carried_out: set[str] = field(default_factory=set)
    """Ids on record of the todo lines that code has done."""

    def __post_init__(self) -> None:
        self.clock = Clock(self.scope)
        self.stranded = [] if self.query is None else [self.query]

    def stop(self) -> None:
        """End the run at the next safe point; a reply that streams is cut, a running tool finishes."""
        if not self.stop_asked:
            self.stop_asked = True
            self.phase_reached = self.step.phase
        for scope in (self.call_scope, *self.idle_scopes):
            if scope is not None:
                scope.cancel()

    def cut(self) -> None:
        """Cut the work in hand for a now line: the reply that streams, or the tools that run. The run goes on."""
        for scope in (self.call_scope, self.tools_scope):
            if scope is not None:
                scope.cancel()

    @property
    def asked_for(self) -> str:
        """What the run was started with; empty if only carried lines did."""
        return self.task if self.query is None else self.query.line.message

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

    @property
    def result(self) -> str:
        """The last reply that answered more than asides, or else the last reply."""
        return self.answer or (self.replies[-1] if self.replies else "")

    def interrupt(self) -> None:
        """Cancel the work in hand."""
        if not self.interrupted:
            self.interrupted = True
            self.phase_reached = self.step.phase
        self.scope.cancel()
