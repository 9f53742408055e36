"""A session as a tree: its runs, their iterations, what is in these, and the agents in calls. Pure.

The parts stand where the events put them, whatever came before, so a child's work is inside its call and an
interruption where it was delivered. Events of a session that a crash cut short make an outline too: what has no end
stays without one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from chain import events
from chain.events import Event
from chain.text.phrases import Remarkable, duration
from chain.text.wording import MAIN

MAX_DRAWN_DEPTH = 16
"""Agents inside each other that are drawn so; deeper ones, which no configuration of sense makes, go to the run."""

_URGENCIES = ("next", "urgent", "now")


@dataclass(slots=True, kw_only=True)
class _Part:
    at: int
    """Its place in the order of everything that happened, from 0."""

    @property
    def anchor(self) -> str:
        return f"e{self.at}"


@dataclass(slots=True, kw_only=True)
class _Stretch(_Part):
    """What began at a time and has a last event: ``until`` is its place, ``ended`` its time."""

    time: float
    until: int = 0
    ended: float = 0.0
    is_lost: bool = False
    """Whether the program ended in it, at a time that nobody knows: ``ended`` is when the session was resumed."""

    def __post_init__(self) -> None:
        self.until, self.ended = self.at, self.time

    @property
    def seconds(self) -> float:
        """From its beginning to its last event."""
        return self.ended - self.time

    @property
    def took(self) -> str:
        """How long it took."""
        return "an unknown time" if self.is_lost else duration(self.seconds)


@dataclass(slots=True, kw_only=True)
class ReplyItem(_Part):
    """A reply of the model."""

    text: str


@dataclass(slots=True, kw_only=True)
class ThoughtItem(_Part):
    """The model's reasoning before a reply."""

    text: str


@dataclass(slots=True, kw_only=True)
class Delivered(_Part):
    """Lines of the user that entered the conversation here, with the ``urgency`` of the most urgent of them."""

    event: events.UserInterruption
    urgency: str


@dataclass(slots=True, kw_only=True)
class QuestionItem(_Part):
    """A question to the user, and the answer if there is one."""

    event: events.Question
    answer: events.Answer | None = None


@dataclass(slots=True, kw_only=True)
class PlanItem(_Part):
    """A change of the plan, which was ``before``."""

    event: events.PlanChanged
    before: tuple[events.TaskView, ...]


@dataclass(slots=True, kw_only=True)
class Remark(_Part):
    """Something else that the user was told: a notice, an error, a refused line, a line that came back."""

    event: Remarkable


@dataclass(slots=True, kw_only=True)
class CallItem(_Stretch):
    """A tool call; one that never started has no input."""

    name: str
    input: dict[str, object] | None
    result: events.ToolResult | None = None
    agents: list[AgentRun] = field(default_factory=list)

    @property
    def state(self) -> str:
        """How it went."""
        if self.result is None:
            return "did not end"
        went = f"{'failed, ' if self.result.is_error else ''}{duration(self.result.seconds)}"
        return "not started" if self.input is None else went

    @property
    def shown_input(self) -> Mapping[str, object]:
        """The input, also of a call that never started."""
        return self.input or ({} if self.result is None else self.result.input)

    @property
    def repeats(self) -> bool:
        """Whether its result is the answer that its agent is already shown to have given."""
        answer = self.agents[-1].answer if self.agents else None
        return answer is not None and self.result is not None and self.result.text.strip() == answer.text.strip()


@dataclass(slots=True, kw_only=True)
class Iteration(_Stretch):
    """An iteration; number 0 is what was before the first."""

    number: int = 0
    tokens: int = 0
    items: list[Item] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class AgentRun(_Stretch):
    """What an agent did from its start to its end. ``parent`` is the name of the agent that started it."""

    agent: str = MAIN
    task: str
    parent: str = ""
    depth: int = 0
    status: events.Status | None = None
    steps: list[Iteration] = field(default_factory=list)

    @property
    def answer(self) -> ReplyItem | None:
        """What it said last, if it came to its end."""
        said = [item for item in self.items() if isinstance(item, ReplyItem)] if self.status == "done" else []
        return said[-1] if said else None

    @property
    def iterations(self) -> int:
        """How many it had."""
        return sum(step.number > 0 for step in self.steps)

    @property
    def last_step(self) -> Iteration:
        """The iteration that it is in."""
        if not self.steps:
            self.steps.append(Iteration(at=self.at, time=self.time))
        return self.steps[-1]

    def items(self) -> Iterator[Item]:
        """All that is in it, but for what is inside the agents that it started."""
        return (item for step in self.steps for item in step.items)


@dataclass(slots=True, kw_only=True)
class SessionRun(AgentRun):
    """A run of the session: what the main agent did, and what all agents used."""

    number: int
    tokens: int = 0
    cost_usd: float | None = None
    result: events.Result | None = None


Item: TypeAlias = ReplyItem | ThoughtItem | Delivered | QuestionItem | PlanItem | Remark | CallItem | AgentRun


@dataclass(slots=True)
class Outline:
    """A whole session."""

    init: events.Init | None = None
    before: list[Item] = field(default_factory=list)
    """What was before the first run."""
    runs: list[SessionRun] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    """When everything happened, in order."""

    @property
    def title(self) -> str:
        """The first row of the first query."""
        rows = (row.strip() for run in self.runs for row in run.task.splitlines())
        return next((row for row in rows if row), "A session without a query")

    @property
    def tokens(self) -> int:
        """Of all runs."""
        return sum(run.tokens for run in self.runs)

    @property
    def cost_usd(self) -> float | None:
        """Of all runs whose price is known."""
        known = [run.cost_usd for run in self.runs if run.cost_usd is not None]
        return sum(known) if known else None

    def agents(self) -> Iterator[AgentRun]:
        """What every agent did, a parent's before its children's."""
        left: list[AgentRun] = list(reversed(self.runs))
        while left:
            agent = left.pop()
            yield agent
            inside: list[AgentRun] = []
            for item in agent.items():
                inside += [item] if isinstance(item, AgentRun) else item.agents if isinstance(item, CallItem) else []
            left += reversed(inside)


def outline_of(happened: Iterable[Event]) -> Outline:
    """The outline that events make, in their order."""
    builder = _OutlineBuilder()
    for event in happened:
        builder.add(event)
    return builder.outline


class _OutlineBuilder:
    def __init__(self) -> None:
        self.outline = Outline()
        self._working: dict[str, AgentRun] = {}
        self._calls: dict[str, CallItem] = {}
        self._asked: dict[str, QuestionItem] = {}
        self._urgency: dict[str, str] = {}
        self._tasks: tuple[events.TaskView, ...] = ()
        self._thoughts: dict[str, ThoughtItem] = {}

    def add(self, event: Event) -> None:
        match event:
            case events.TextDelta() | events.ToolProgress():
                return  # the reply and the result have it all
            case events.ThinkingDelta() if event.agent in self._thoughts:
                self._thoughts[event.agent].text += event.text
                return
            case events.LineQueued():
                self._urgency[event.id] = event.urgency if event.urgency in _URGENCIES else _URGENCIES[0]
                return
            case events.UsageReport():
                self._count(event)
                return
            case events.Init():
                self.outline.init = self.outline.init or event
                return
            case events.Receipt(state="queued" | "refused") | events.Receipt(state="delivered", reason=""):
                return  # their own events tell of them
            case _:
                pass
        self._thoughts.pop(event.agent, None)
        at = len(self.outline.times)
        self.outline.times.append(event.time)
        self._place(event, at)
        # What is told after a run's end does not make it longer.
        agent = self._working.get(event.agent)
        if agent is None or (event.agent == MAIN and self.outline.runs[-1].result is not None and agent.until != at):
            return
        for stretch in (agent, *agent.steps[-1:]):
            stretch.until, stretch.ended = max(stretch.until, at), max(stretch.ended, event.time)

    def _place(self, event: Event, at: int) -> None:
        match event:
            case events.RunStarted():
                self._start_run(event, at, event.query)
            case events.IterationStarted():
                self._agent(event).steps.append(Iteration(at=at, time=event.time, number=event.iteration))
            case events.ThinkingDelta():
                self._thoughts[event.agent] = thought = ThoughtItem(at=at, text=event.text)
                self._put(event, thought)
            case events.Reply(text=text):
                if text.strip():
                    self._put(event, ReplyItem(at=at, text=text))
            case events.ToolCall():
                self._calls[event.id] = self._call(event, at, dict(event.input))
            case events.ToolResult():
                call = self._calls.pop(event.id, None) or self._call(event, at, None)
                call.result, call.until = event, at
            case events.UserInterruption(ids=ids):
                urgency = max((self._urgency.pop(id, "next") for id in ids), key=_URGENCIES.index, default="next")
                self._put(event, Delivered(at=at, event=event, urgency=urgency))
            case events.Question():
                self._asked[event.id] = asked = QuestionItem(at=at, event=event)
                self._put(event, asked)
            case events.Answer():
                if (question := self._asked.pop(event.id, None)) is not None:
                    question.answer = event
            case events.PlanChanged():
                self._put(event, PlanItem(at=at, event=event, before=self._tasks))
                self._tasks = event.tasks
            case events.AgentStarted():
                self._start_agent(event, at)
            case events.AgentEnded():
                if (agent := self._working.pop(event.name, None)) is not None:
                    agent.status, agent.until, agent.ended = event.status, at, event.time
            case events.Result():
                self._end_run(event, at)
            case events.Notice() | events.Error() | events.Retry() | events.LineRefused() | events.Receipt():
                self._put(event, Remark(at=at, event=event))
            case events.Compaction(state="ended"):
                self._put(event, Remark(at=at, event=event))
            case _:
                pass

    def _start_run(self, event: Event, at: int, query: str = "") -> None:
        run = SessionRun(at=at, time=event.time, task=query, number=len(self.outline.runs) + 1)
        self._working = {MAIN: run}
        self._calls.clear()
        self.outline.runs.append(run)

    def _end_run(self, event: events.Result, at: int) -> None:
        if not self.outline.runs or self.outline.runs[-1].result is not None:
            return  # the last result may come twice, for its run and for the process
        run = self.outline.runs[-1]
        run.result, run.tokens, run.cost_usd = event, event.usage.total_tokens, event.usage.cost_usd
        run.status = event.status
        for agent in self._working.values():
            agent.until, agent.ended = at, event.time
        if event.program_ended:
            _lose(run)

    def _start_agent(self, event: events.AgentStarted, at: int) -> None:
        parent = self._working.get(event.agent)
        if parent is None or parent.depth >= MAX_DRAWN_DEPTH:
            parent = self._main(event)
        agent = AgentRun(
            at=at, time=event.time, agent=event.name, task=event.task, parent=parent.agent, depth=parent.depth + 1
        )
        call = self._calls.get(event.parent_id)
        (parent.last_step.items if call is None else call.agents).append(agent)
        if event.name != MAIN:
            self._working[event.name] = agent

    def _call(self, event: events.ToolCall | events.ToolResult, at: int, input: dict[str, object] | None) -> CallItem:
        call = CallItem(at=at, time=event.time, name=event.name, input=input)
        self._put(event, call)
        return call

    def _count(self, event: events.UsageReport) -> None:
        tokens = event.input_tokens + event.output_tokens + event.cache_read_tokens + event.cache_write_tokens
        self._agent(event).last_step.tokens += tokens
        if self.outline.runs and (run := self.outline.runs[-1]).result is None:
            run.tokens += tokens
            if event.cost_usd is not None:
                run.cost_usd = (run.cost_usd or 0.0) + event.cost_usd

    def _put(self, event: Event, item: Item) -> None:
        items = self._agent(event).last_step.items if self.outline.runs else self.outline.before
        items.append(item)

    def _agent(self, event: Event) -> AgentRun:
        """The agent that an event belongs to; for one that nobody told of, the run's."""
        return self._working.get(event.agent) or self._main(event)

    def _main(self, event: Event) -> AgentRun:
        if not self.outline.runs:
            self._start_run(event, len(self.outline.times))
        return self.outline.runs[-1]


def _lose(agent: AgentRun) -> None:
    """Mark what an agent was in, and those below it, as ended with the program."""
    agent.is_lost = agent.last_step.is_lost = True
    for item in agent.last_step.items:
        for child in item.agents if isinstance(item, CallItem) else ():
            if child.status in (None, "interrupted"):
                _lose(child)
