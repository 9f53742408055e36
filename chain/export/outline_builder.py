"""Makes the story of a session from its events, in order: each is put in its place, whatever came before it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from chain import events
from chain.events import Event
from chain.export.outline import (
    Asked,
    Call,
    Item,
    Landed,
    Planned,
    Run,
    Said,
    Step,
    Story,
    Thought,
    Told,
    Work,
)
from chain.text.wording import MAIN

MAX_DEPTH = 16
"""Agents inside each other that are drawn so; deeper ones, which no configuration of sense makes, go to the run."""


_URGENCIES = ("next", "urgent", "now")


def tell(happened: Iterable[Event]) -> Story:
    """The story that events tell."""
    teller = _Teller()
    for event in happened:
        teller.add(event)
    return teller.story


class _Teller:
    """Puts each event in its place."""

    def __init__(self) -> None:
        self.story = Story()
        self._working: dict[str, Work] = {}
        self._calls: dict[str, Call] = {}
        self._asked: dict[str, Asked] = {}
        self._urgency: dict[str, str] = {}
        self._landed: dict[str, Landed] = {}
        self._tasks: tuple[events.TaskView, ...] = ()
        self._thoughts: dict[str, Thought] = {}

    def add(self, event: Event) -> None:
        match event:
            case events.TextDelta() | events.ToolProgress():
                return  # the reply and the result have it all
            case events.ThinkingDelta():
                self._think(event)
                return
            case events.LineQueued():
                self._urgency[event.id] = event.urgency if event.urgency in _URGENCIES else _URGENCIES[0]
                return
            case events.UsageReport():
                self._count(event)
                return
            case events.Init():
                self.story.init = self.story.init or event
                return
            case events.Receipt(state="queued" | "delivered" | "refused"):
                # Their own events tell of them.
                if (landed := self._landed.pop(event.id, None)) is not None:
                    landed.waited_s = max(landed.waited_s, event.waited_s or 0.0)
                return
            case _:
                pass
        self._thoughts.pop(event.agent, None)
        at, time = len(self.story.times), event.time
        self.story.times.append(time)
        self._place(event, at, time)
        self._reach(event.agent, at, time)

    def _place(self, event: Event, at: int, time: float) -> None:
        match event:
            case events.RunStarted():
                self._start_run(event, at)
            case events.IterationStarted():
                self._work(event).steps.append(
                    Step(at=at, time=time, number=event.iteration, most=event.max_iterations, until=at, ended=time)
                )
            case events.Reply(text=text):
                if text.strip():
                    self._put(event, Said(at=at, time=time, text=text))
            case events.ToolCall():
                self._call(event, at, dict(event.input))
            case events.ToolResult():
                call = self._calls.pop(event.id, None) or self._call(event, at, None)
                call.result, call.until = event, at
            case events.UserInterruption(ids=ids):
                urgency = max((self._urgency.pop(id, "next") for id in ids), key=_URGENCIES.index, default="next")
                landed = Landed(at=at, time=time, event=event, urgency=urgency, waited_s=event.waited_s)
                self._landed |= dict.fromkeys(ids, landed)
                self._put(event, landed)
            case events.Question():
                self._asked[event.id] = asked = Asked(at=at, time=time, event=event)
                self._put(event, asked)
            case events.Answer():
                if (asked_before := self._asked.pop(event.id, None)) is not None:
                    asked_before.answer = event
            case events.PlanChanged():
                self._put(event, Planned(at=at, time=time, event=event, before=self._tasks))
                self._tasks = event.tasks
            case events.AgentStarted():
                self._start_agent(event, at)
            case events.AgentEnded():
                if (work := self._working.pop(event.name, None)) is not None:
                    work.status, work.until, work.ended = event.status, at, time
            case events.Result():
                self._end_run(event, at)
            case events.Notice() | events.Error() | events.Retry() | events.LineRefused() | events.Receipt():
                self._put(event, Told(at=at, time=time, event=event))
            case _:
                pass

    def _start_run(self, event: events.RunStarted, at: int) -> None:
        work = Work(
            at=at,
            time=event.time,
            agent=MAIN,
            kind=MAIN,
            task=event.query,
            parent="",
            depth=0,
            until=at,
            ended=event.time,
        )
        self._working = {MAIN: work}
        self._calls.clear()
        number = len(self.story.runs) + 1
        self.story.runs.append(Run(at=at, time=event.time, number=number, query=event.query, work=work))

    def _end_run(self, event: events.Result, at: int) -> None:
        if not self.story.runs or self.story.runs[-1].result is not None:
            return  # the last result may come twice, for its run and for the process
        run = self.story.runs[-1]
        run.result, run.tokens, run.cost_usd = event, event.usage.total_tokens, event.usage.cost_usd
        run.work.status = event.status
        for work in self._working.values():
            work.until, work.ended = at, event.time

    def _start_agent(self, event: events.AgentStarted, at: int) -> None:
        parent = self._working.get(event.agent)
        if parent is None or parent.depth >= MAX_DEPTH:
            parent = self._main(event)
        work = Work(
            at=at,
            time=event.time,
            agent=event.name,
            kind=event.kind,
            task=event.task,
            parent=parent.agent,
            depth=parent.depth + 1,
            until=at,
            ended=event.time,
        )
        call = self._calls.get(event.parent_id)
        (_last_step(parent).items if call is None else call.works).append(work)
        if event.name != MAIN:
            self._working[event.name] = work

    def _call(self, event: events.ToolCall | events.ToolResult, at: int, input: dict[str, object] | None) -> Call:
        call = Call(at=at, time=event.time, id=event.id, name=event.name, input=input, until=at)
        self._put(event, call)
        if input is not None:
            self._calls[event.id] = call
        return call

    def _think(self, event: events.ThinkingDelta) -> None:
        thought = self._thoughts.get(event.agent)
        if thought is None:
            at = len(self.story.times)
            self.story.times.append(event.time)
            thought = self._thoughts[event.agent] = Thought(at=at, time=event.time)
            self._put(event, thought)
        thought.pieces.append(event.text)

    def _count(self, event: events.UsageReport) -> None:
        tokens = event.input_tokens + event.output_tokens + event.cache_read_tokens + event.cache_write_tokens
        _last_step(self._work(event)).tokens += tokens
        if self.story.runs and (run := self.story.runs[-1]).result is None:
            run.tokens += tokens
            if event.cost_usd is not None:
                run.cost_usd = (run.cost_usd or 0.0) + event.cost_usd

    def _put(self, event: Event, item: Item) -> None:
        if self.story.runs:
            _last_step(self._work(event)).items.append(item)
            return
        if self.story.before is None:
            self.story.before = Step(at=item.at, time=item.time, number=0, most=0, until=item.at, ended=item.time)
        self.story.before.items.append(item)

    def _work(self, event: Event) -> Work:
        """The work that an event belongs to; that of an agent that nobody told of is the run's."""
        return self._working.get(event.agent) or self._main(event)

    def _main(self, event: Event) -> Work:
        if not self.story.runs:
            self._start_run(events.RunStarted(id="", query="", time=event.time), len(self.story.times))
        return self.story.runs[-1].work

    def _reach(self, agent: str, at: int, time: float) -> None:
        """An agent, and its last iteration, have come this far."""
        work = self._working.get(agent)
        if work is None or (agent == MAIN and self.story.runs[-1].result is not None and work.until != at):
            return  # what is told after a run's end does not make it longer
        work.until, work.ended = max(work.until, at), max(work.ended, time)
        if work.steps:
            step = work.steps[-1]
            step.until, step.ended = max(step.until, at), max(step.ended, time)


def _last_step(work: Work) -> Step:
    if not work.steps:
        work.steps.append(Step(at=work.at, time=work.time, number=0, most=0, until=work.at, ended=work.time))
    return work.steps[-1]
