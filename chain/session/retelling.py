"""The events that a journal tells: what a front end was shown, from the records. Pure.

Nothing partial was recorded, so a reply is one piece of text, and no progress of tools comes. An iteration, a run and a
child's work begin and end where they did, and an interruption stands where it landed.

::

    line                     line_queued, if it waits, also because a crash prevented what it was to do
    run                      run_started
    message of lines         user_interruption, unless it is the query of a run
    request                  iteration_started, usage
    message of the model     text_delta, reply
    tool_started             tool_call
    message of results       tool_result, of those that were not told before

All others tell the event of their name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, get_args

from chain import events, messages
from chain.events import Event
from chain.exit_codes import EXIT_CODES
from chain.journal import records
from chain.journal.records import Entry, PlanChange
from chain.lines.receipts import adjustment_view, line_of
from chain.messages import Usage
from chain.plan import Task, changed
from chain.wording import MAIN, PROGRAM_ENDED, ROOT

_ORIGINS = frozenset(get_args(events.Origin))


def retell(entries: Iterable[Entry]) -> Iterator[Event]:
    """The events of these records, with the times of the records."""
    retelling = Retelling()
    for entry in entries:
        yield from retelling.events(entry)
    yield from retelling.rest()


@dataclass(slots=True)
class _Agent:
    """What events say of an agent again and again."""

    kind: str = ""
    task: str = ""
    parent_id: str = ROOT
    iteration: int = 0
    is_answered: bool = False
    """Whether the model call of the iteration has come to its end: a reply without that was cut, and is no answer."""
    error: str = ""
    calls: dict[str, messages.ToolCall] = field(default_factory=dict)
    """Those that have no result yet."""
    finished: dict[str, records.ToolFinished] = field(default_factory=dict)


class Retelling:
    """Tells the events of one journal, record by record."""

    def __init__(self) -> None:
        self._agents = {MAIN: _Agent()}
        self._lines: dict[str, records.Line] = {}
        self._queued: dict[str, str] = {}
        """The lines that wait, and for whom."""
        self._tasks: tuple[Task, ...] = ()
        self._is_first = True
        self._is_running = False
        self._undone: dict[str, float] = {}
        """When the lines came that are to start a run or to act at once: if the program ends before, they wait."""
        self._replies: list[str] = []
        self._cut_reply = ""
        """What was shown of a reply that was cut; it is one of the run's replies if nothing follows it."""
        self._receipts: list[events.Receipt] = []

    def events(self, entry: Entry) -> list[Event]:
        """The events that the next record makes known."""
        record, at = entry.record, entry.time
        match record:
            case records.Session():
                return self._session(record, at)
            case records.Line():
                return self._line(record, at)
            case records.RunBegun(id=id):
                return self._start(at, id)
            case records.Receipt():
                return self._receipt(record, at)
            case records.Message():
                return self._message(record, at)
            case records.RequestSent():
                return self._request(record, at)
            case records.RequestEnded():
                return self._request_ended(record, at)
            case records.ToolStarted():
                return self._tool_started(record, at)
            case records.ToolFinished():
                return self._tool_finished(record, at)
            case records.TaskAdded() | records.TaskClosed() | records.PlanReplaced() | records.PlanRestored():
                return self._plan(record, at)
            case records.Question() | records.Answer():
                return [self._asked(record, at)]
            case records.AgentStarted() | records.AgentEnded():
                return [self._other_agent(record, at)]
            case records.Model():
                return [events.Notice(time=at, message=f"{record.name} answers from the next run on.")]
            case records.Result():
                return self._result(record, at)
            case _:
                return []

    def rest(self) -> list[Event]:
        """What is to be told of lines that did nothing, now that no more records come."""
        undone, self._undone = self._undone, {}
        return [self._queue(at, self._lines[id]) for id, at in undone.items()]

    def _of(self, name: str) -> _Agent:
        return self._agents.setdefault(name, _Agent())

    def _common(self, agent: str, at: float) -> dict[str, Any]:
        return {"agent": agent, "iteration": self._of(agent).iteration, "time": at}

    # --------------------------------------------------------------------------------------- the session and its runs

    def _session(self, record: records.Session, at: float) -> list[Event]:
        told = self.rest()
        if self._is_running:  # the record of its end is missing
            told += self._result(records.Result("interrupted", PROGRAM_ENDED, self._of(MAIN).iteration), at)
        if not self._is_first:
            return [*told, events.Notice(time=at, message=f"The session was resumed; {record.model} answers.")]
        self._is_first = False
        init = events.Init(
            time=at, session=record.id, version=record.version, model=record.model, workspace=record.workspace
        )
        return [*told, init]

    def _start(self, at: float, id: str = "") -> list[Event]:
        self._is_running = True
        self._queued.pop(id, None)
        self._of(MAIN).iteration = 0
        self._replies.clear()
        query = self._lines.get(id)
        return [events.RunStarted(time=at, id=id, query="" if query is None else line_of(query).message)]

    def _result(self, record: records.Result, at: float) -> list[Event]:
        status = record.status
        was_cut = status == "interrupted" or status.startswith("cancelled")
        reason = "user_interrupted" if status == "interrupted" else "user_cancelled"
        # One whose beginning could not be written has ended all the same.
        told = [] if self._is_running else self._start(at)
        self._is_running = False
        if self._cut_reply:
            self._replies.append(self._cut_reply)
            self._cut_reply = ""
        if status == "error":
            told.append(events.Error(**self._common(MAIN, at), message=record.result, kind="model"))
        result = events.Result(
            **self._common(MAIN, at),
            status=status,
            result=record.result,
            replies=tuple(self._replies),
            iterations=record.iterations,
            usage=record.usage,
            partial=was_cut,
            termination_reason=reason if was_cut else None,
            exit_code=EXIT_CODES[status],
            receipts=tuple(self._receipts),
        )
        self._receipts.clear()
        return [*told, result]

    # ------------------------------------------------------------------------------------------------------- lines

    def _line(self, record: records.Line, at: float) -> list[Event]:
        self._lines[record.id] = record
        if record.effect == "waits":
            return [self._queue(at, record)]
        if record.kind != "stop":
            self._undone[record.id] = at
        return []

    def _queue(self, at: float, record: records.Line) -> Event:
        self._queued[record.id] = record.agent
        waiting = list(self._queued.values()).count(record.agent)
        return events.LineQueued(
            **self._common(record.agent, at),
            id=record.id,
            text=record.text,
            kind=record.kind,
            urgency=record.urgency,
            target_agent=record.agent,
            waiting=waiting,
            origin=record.origin if record.origin in _ORIGINS else "prompt",  # type: ignore[arg-type]
            adjustment=adjustment_view(line_of(record)),
        )

    def _receipt(self, record: records.Receipt, at: float) -> list[Event]:
        if record.state != "queued":
            self._queued.pop(record.id, None)
            self._undone.pop(record.id, None)
        line = self._lines.get(record.id)
        receipt = events.Receipt(
            agent=record.agent,
            iteration=record.iteration,
            time=at,
            id=record.id,
            text="" if line is None else line.text,
            state=record.state,
            point=record.point,
            waited_s=record.waited_s,
            reason=record.reason,
        )
        self._receipts.append(receipt)
        return [receipt]

    # ------------------------------------------------------------------------------------------- the conversation

    def _message(self, record: records.Message, at: float) -> list[Event]:
        if record.message.role == "assistant":
            return self._reply(record, at)
        if record.message.results:
            return self._results(record, at)
        if record.point is None or record.point == "start":
            for id in record.line_ids:
                self._undone.pop(id, None)
            return []
        agent = self._of(record.agent)
        agent.iteration = record.iteration or agent.iteration
        lines = [self._lines[id].text for id in record.line_ids if id in self._lines]
        interruption = events.UserInterruption(
            **self._common(record.agent, at),
            ids=record.line_ids,
            message="\n\n".join(lines),
            point=record.point,
            prompt_source=record.source or "default",
            target_agent=record.agent,
            parent_id=record.parent_id,
            waited_s=0.0,
            remaining=record.remaining,
            tools_skipped=record.skipped,
        )
        return [interruption]

    def _request(self, record: records.RequestSent, at: float) -> list[Event]:
        agent = self._of(record.agent)
        agent.iteration, agent.is_answered = record.iteration, False
        if record.agent == MAIN:
            self._cut_reply = ""
        if record.attempt > 1:
            retry = events.Retry(
                **self._common(record.agent, at), attempt=record.attempt - 1, delay_s=0.0, reason=agent.error
            )
            return [retry] if agent.error else []
        most = record.max_iterations or record.iteration
        return [events.IterationStarted(**self._common(record.agent, at), max_iterations=most)]

    def _request_ended(self, record: records.RequestEnded, at: float) -> list[Event]:
        agent = self._of(record.agent)
        agent.error, agent.is_answered = record.error, not record.error
        used = record.usage
        if used == Usage():
            return []
        report = events.UsageReport(
            **self._common(record.agent, at),
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            cache_read_tokens=used.cache_read_tokens,
            cache_write_tokens=used.cache_write_tokens,
            cost_usd=used.cost_usd,
        )
        return [report]

    def _reply(self, record: records.Message, at: float) -> list[Event]:
        agent, message = self._of(record.agent), record.message
        told: list[Event] = []
        agent.calls = {call.id: call for call in message.calls}
        common = self._common(record.agent, at)
        thought = "".join(block.text for block in message.blocks if isinstance(block, messages.Thinking))
        if thought.strip():
            told.append(events.ThinkingDelta(**common, text=thought))
        if message.text.strip():
            told.append(events.TextDelta(**common, text=message.text))
            if record.agent == MAIN and agent.is_answered:
                self._replies.append(message.text.strip())
            elif record.agent == MAIN:
                self._cut_reply = message.text.strip()
        return [*told, events.Reply(**common, text=message.text, tool_calls=len(message.calls))]

    # ------------------------------------------------------------------------------------------------------- tools

    def _tool_started(self, record: records.ToolStarted, at: float) -> list[Event]:
        agent = self._of(record.agent)
        call = agent.calls.get(record.id)
        input = {} if call is None else call.input
        return [
            events.ToolCall(
                **self._common(record.agent, at),
                id=record.id,
                name=record.name,
                input=input,
                parent_id=agent.parent_id,
            )
        ]

    def _tool_finished(self, record: records.ToolFinished, at: float) -> list[Event]:
        self._of(record.agent).finished[record.id] = record
        if not record.text:
            return []
        return self._tool_result(record.agent, messages.ToolResult(record.id, record.text, record.is_error), at)

    def _results(self, record: records.Message, at: float) -> list[Event]:
        agent = self._of(record.agent)
        results = [result for result in record.message.results if result.id in agent.calls]
        return [event for result in results for event in self._tool_result(record.agent, result, at)]

    def _tool_result(self, name: str, result: messages.ToolResult, at: float) -> list[Event]:
        agent = self._of(name)
        call, finished = agent.calls.pop(result.id, None), agent.finished.pop(result.id, None)
        return [
            events.ToolResult(
                **self._common(name, at),
                id=result.id,
                name="" if call is None else call.name,
                text=result.text,
                is_error=result.is_error,
                seconds=0.0 if finished is None else finished.seconds,
            )
        ]

    # ------------------------------------------------------------------------------------------------------ the rest

    def _plan(self, record: PlanChange, at: float) -> list[Event]:
        try:
            self._tasks = changed(self._tasks, record)
        except IndexError:
            return []  # the task that it changes is on a record that is missing
        views = tuple(events.TaskView(n, t.text, t.state, t.reason) for n, t in enumerate(self._tasks, 1))
        author = record.by if record.by in self._agents else MAIN
        return [events.PlanChanged(**self._common(author, at), tasks=views, by=record.by)]

    def _asked(self, record: records.Question | records.Answer, at: float) -> Event:
        common = self._common(record.agent, at)
        if isinstance(record, records.Answer):
            return events.Answer(**common, id=record.id, text=record.text, decision=record.decision, by=record.by)
        return events.Question(
            **common,
            id=record.id,
            kind=record.kind,
            text=record.text,
            options=record.options,
            tool_call_id=record.tool_call_id,
            name=record.name,
            preview=record.preview,
            protections=record.protections,
        )

    def _other_agent(self, record: records.AgentStarted | records.AgentEnded, at: float) -> Event:
        common, agent = self._common(record.agent, at), self._of(record.name)
        if isinstance(record, records.AgentEnded):
            of_it = {"name": record.name, "kind": agent.kind, "parent_id": record.parent_id, "task": agent.task}
            return events.AgentEnded(**common, **of_it, status=record.status)  # type: ignore[arg-type]
        self._agents[record.name] = _Agent(record.kind, record.task, record.parent_id)
        return events.AgentStarted(
            **common, name=record.name, kind=record.kind, parent_id=record.parent_id, task=record.task
        )
