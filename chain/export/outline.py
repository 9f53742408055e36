"""A session as a tree: runs, their iterations, the items of each, and agents inside the calls that started them.

``outline_of`` builds the tree from the events of a journal (``chain.session.restored_state``), in their order. An
incomplete journal also has an outline. To show another event in exports, add it to ``ShownEvent`` and to
``_Builder.add``, and render the event in ``html`` and ``markdown``. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from chain import events
from chain.events import Event
from chain.text import phrases
from chain.text.phrases import RemarkEvent, duration
from chain.text.wording import MAIN

MAX_DEPTH = 16
"""The maximum depth of nested agents. Deeper agents, in a forged journal, are shown on the level of the run."""

_OfModel: TypeAlias = events.Reply | events.ThinkingDelta | events.Question | events.PlanChanged
_OfUser: TypeAlias = events.UserInterruption | events.Answer | events.LineQueued
ShownEvent: TypeAlias = _OfModel | _OfUser | events.Result | RemarkEvent
"""The types of events that the outline contains as they are, each in a ``Moment``."""


@dataclass(slots=True, kw_only=True)
class _Part:
    index: int
    """The index of the part's first event in ``Outline.times``."""

    @property
    def anchor(self) -> str:
        return f"e{self.index}"


@dataclass(slots=True, kw_only=True)
class Moment(_Part):
    """An event without a duration.

    The ``urgency`` of a ``UserInterruption`` is that of its most urgent line. A ``Result`` contains only the part of
    its text that the earlier replies do not contain.
    """

    event: ShownEvent
    urgency: str = "next"


@dataclass(slots=True, kw_only=True)
class _Stretch(_Part):
    """A part of the session with a duration. ``last_index`` and ``end_time`` are index and time of the last event."""

    time: float
    last_index: int = 0
    end_time: float = 0.0
    is_lost: bool = False
    """Whether the program ended during the part, at an unknown time.

    Then ``end_time`` is the time at which the session was resumed.
    """

    def __post_init__(self) -> None:
        self.last_index, self.end_time = self.index, self.time

    @property
    def duration_text(self) -> str:
        """The duration in words."""
        return "an unknown time" if self.is_lost else duration(self.end_time - self.time)

    def extend(self, index: int, time: float) -> None:
        """Extend the part to the event with this ``index`` and ``time``."""
        self.last_index, self.end_time = index, max(self.end_time, time)


@dataclass(slots=True, kw_only=True)
class CallItem(_Stretch):
    """A tool call, with the agents that it started."""

    name: str
    input: Mapping[str, object]
    depth: int
    """The depth of the agent that made the call."""
    has_started: bool
    result: events.ToolResult | None = None
    agents: list[AgentRun] = field(default_factory=list)

    @property
    def has_failed(self) -> bool:
        """Whether the call started and has an error or no result."""
        return self.has_started and (self.result is None or self.result.is_error)

    @property
    def state(self) -> str:
        """The outcome of the call in words."""
        if self.result is None:
            return "did not end"
        duration_text = f"{'failed, ' if self.has_failed else ''}{duration(self.result.seconds)}"
        return duration_text if self.has_started else "not started"

    @property
    def result_text(self) -> str:
        """The text of the result; empty if it repeats the last reply of the agent that the call started."""
        text = "" if self.result is None else self.result.text
        is_repeated = self.agents and text.strip() == self.agents[-1].last_reply.strip()
        return "" if is_repeated else text


@dataclass(slots=True, kw_only=True)
class Iteration(_Stretch):
    """One iteration of an agent. With the number 0, it has items before the first or after the last real iteration."""

    number: int = 0
    tokens: int = 0
    items: list[Item] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class AgentRun(_Stretch):
    """One activity of an agent, from start to end. An activity of the main agent (``depth`` 0) is a run."""

    agent: str
    task: str
    depth: int = 0
    status: events.Status | None = None
    last_reply: str = ""
    steps: list[Iteration] = field(default_factory=list)

    @property
    def iterations(self) -> int:
        """The number of real iterations: those with a number other than 0."""
        return sum(step.number > 0 for step in self.steps)

    @property
    def last_iteration(self) -> Iteration:
        """The last iteration. If there is none yet, an iteration with the number 0 is added."""
        if not self.steps:
            self.steps.append(Iteration(index=self.index, time=self.time))
        return self.steps[-1]

    def items(self) -> Iterator[Item]:
        """Yield the items of all iterations, without the items of agents that this agent started."""
        return (item for step in self.steps for item in step.items)

    def extend(self, index: int, time: float) -> None:
        """Extend the activity and its last iteration to the event with this ``index`` and ``time``."""
        _Stretch.extend(self, index, time)
        self.last_iteration.extend(index, time)


Item: TypeAlias = Moment | CallItem | AgentRun


@dataclass(slots=True)
class Outline:
    """The outline of a whole session."""

    init: events.Init | None = None
    preamble: list[Item] = field(default_factory=list)
    """The items before the first run."""
    runs: list[AgentRun] = field(default_factory=list)
    agents: list[AgentRun] = field(default_factory=list)
    """The activities of all agents, including runs, in the order in which they started."""
    waiting: list[Moment] = field(default_factory=list)
    """The lines that still wait at the end of the session."""
    times: list[float] = field(default_factory=list)
    """The times of all events, in the order of the events."""
    tokens: int = 0
    cost_usd: float | None = None
    """The cost in US dollars of the model calls with a known price; ``None`` if there are none."""

    @property
    def title(self) -> str:
        """The first row of the first query."""
        rows = (row.strip() for run in self.runs for row in run.task.splitlines())
        return next((row for row in rows if row), "A session without a query")

    def facts(self) -> Iterator[tuple[str, str]]:
        """Yield the facts at the top of a document, as names and values."""
        if self.init is not None:
            yield "Session", self.init.session
            yield "Workspace", self.init.workspace
            yield "Model", self.init.model
        if self.times:
            yield "Began", phrases.local_time(self.times[0])
        if self.runs and not any(run.is_lost for run in self.runs):
            yield "Active for", duration(sum(run.end_time - run.time for run in self.runs))
        bad = sum(run.status != "done" for run in self.runs)
        yield "Runs", f"{len(self.runs):,}{f' ({bad:,} not done)' if bad else ''}"
        yield "Iterations", f"{sum(agent.iterations for agent in self.agents):,}"
        shown = [item.event for agent in self.agents for item in agent.items() if isinstance(item, Moment)]
        yield "Interruptions", f"{sum(isinstance(event, events.UserInterruption) for event in shown):,}"
        yield "Other agents", f"{len({agent.agent for agent in self.agents if agent.depth}):,}"
        yield "Tokens", f"{self.tokens:,}"
        if self.cost_usd is not None:
            yield "Cost", phrases.cost(self.cost_usd)


def outline_of(stored_events: Iterable[Event]) -> Outline:
    """Return the outline of a session from the events in its journal."""
    builder = _Builder()
    for event in stored_events:
        builder.add(event)
    return builder.finish()


class _Builder:
    def __init__(self) -> None:
        self._outline = Outline()
        self._started: dict[str, AgentRun] = {}
        """The latest activity of each agent in the active run, by agent name."""
        self._calls: dict[str, CallItem] = {}
        """The calls that have no result yet, by call id."""
        self._waiting: dict[str, Moment] = {}

    def finish(self) -> Outline:
        self._outline.waiting = list(self._waiting.values())
        return self._outline

    def add(self, event: Event) -> None:
        index = self._add_time(event)
        match event:
            case events.RunStarted():
                self._waiting.pop(event.id, None)
                self._start_run(event, index, event.query)
            case events.IterationStarted():
                self._agent(event).steps.append(Iteration(index=index, time=event.time, number=event.iteration))
            case events.ToolCall():
                self._calls[event.id] = self._call(event, index, has_started=True)
            case events.ToolResult():
                call = self._calls.pop(event.id, None) or self._call(event, index, has_started=False)
                call.result = event
                call.extend(index, event.time)
            case events.AgentStarted():
                self._start_agent(event, index)
            case events.AgentEnded():
                if (agent := self._started.get(event.name)) is not None:
                    agent.extend(index, event.time)
                    agent.status = event.status
            case events.Result():
                self._end_run(event, index)
            case events.UsageReport():
                self._count(event)
            case events.Init():
                self._outline.init = self._outline.init or event
            case events.LineQueued():
                self._waiting[event.id] = Moment(index=index, event=event, urgency=event.urgency)
            case events.UserInterruption():
                lines = [self._waiting.pop(id, None) for id in event.ids]
                urgencies = {line.urgency for line in lines if line is not None}
                most = next((each for each in ("now", "urgent") if each in urgencies), "next")
                self._add_item(event, Moment(index=index, event=event, urgency=most))
            case events.Receipt(state="queued" | "refused"):
                pass  # ``LineQueued`` and ``LineRefused`` are shown
            case events.Receipt():
                self._waiting.pop(event.id, None)
                if event.state != "delivered" or event.reason:  # else ``UserInterruption`` is shown
                    self._add_item(event, Moment(index=index, event=event))
            case events.Reply():
                if event.text.strip():
                    self._agent(event).last_reply = event.text
                    self._add_item(event, Moment(index=index, event=event))
            case events.Compaction(state="started" | "failed") | events.TextDelta() | events.ToolProgress():
                pass  # the end of the compaction, the reply and the result are shown
            case _:
                self._add_item(event, Moment(index=index, event=event))
        agent = self._started.get(event.agent)
        if agent is not None and agent.status is None:
            agent.extend(index, event.time)

    def _add_time(self, event: Event) -> int:
        self._outline.times.append(event.time)
        return len(self._outline.times) - 1

    def _start_run(self, event: Event, index: int, query: str = "") -> AgentRun:
        run = AgentRun(index=index, time=event.time, agent=MAIN, task=query)
        self._started = {MAIN: run}
        self._calls.clear()
        self._outline.runs.append(run)
        self._outline.agents.append(run)
        return run

    def _end_run(self, event: events.Result, index: int) -> None:
        """End the active run and its active agents. If no run is active, start a run that has only the result."""
        run = self._started.get(MAIN)
        if run is None or run.status is not None:
            run = self._start_run(event, self._add_time(event))
        for agent in self._started.values():
            if agent.status is None:
                agent.extend(index, event.time)
            if event.program_ended and agent.status in (None, "interrupted"):
                agent.is_lost = agent.last_iteration.is_lost = True
        run.status = event.status
        text = phrases.unshown_result(event)
        text = "" if text == run.last_reply.strip() else text
        run.steps.append(Iteration(index=index, time=event.time))
        self._add_item(event, Moment(index=index, event=replace(event, result=text)))

    def _start_agent(self, event: events.AgentStarted, index: int) -> None:
        """Add an agent to the call that started it. If there is no such call, add it to the parent's last iteration."""
        holder = self._calls.get(event.parent_id) or self._agent(event)
        if holder.depth >= MAX_DEPTH:
            holder = self._outline.runs[-1]
        agent = AgentRun(index=index, time=event.time, agent=event.name, task=event.task, depth=holder.depth + 1)
        self._outline.agents.append(agent)
        if isinstance(holder, CallItem):
            holder.agents.append(agent)
        else:
            holder.last_iteration.items.append(agent)
        if event.name != MAIN:
            self._started[event.name] = agent

    def _call(self, event: events.ToolCall | events.ToolResult, index: int, *, has_started: bool) -> CallItem:
        agent = self._agent(event)
        call = CallItem(
            index=index, time=event.time, name=event.name, input=event.input, depth=agent.depth, has_started=has_started
        )
        agent.last_iteration.items.append(call)
        return call

    def _count(self, event: events.UsageReport) -> None:
        tokens = event.input_tokens + event.output_tokens + event.cache_read_tokens + event.cache_write_tokens
        self._outline.tokens += tokens
        if event.cost_usd is not None:
            self._outline.cost_usd = (self._outline.cost_usd or 0.0) + event.cost_usd
        self._agent(event).last_iteration.tokens += tokens

    def _add_item(self, event: Event, item: Item) -> None:
        outline = self._outline
        items = self._agent(event).last_iteration.items if outline.runs else outline.preamble
        items.append(item)

    def _agent(self, event: Event) -> AgentRun:
        """Return the activity to which an event belongs.

        If the start of the event's agent is not recorded, return the last run. If there is no run, start one.
        """
        runs = self._outline.runs
        return self._started.get(event.agent) or (runs[-1] if runs else self._start_run(event, self._add_time(event)))
