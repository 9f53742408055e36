"""The events that a journal tells: what a front end was shown, from the records. Pure.

Nothing partial was recorded, so a reply is one piece of text, and no progress of tools comes. An iteration, a run and a
child's work begin and end where they did, and an interruption stands where it landed.

::

    line, no run active      nothing yet: it starts a run, is done at once, or waits for a run that a crash prevented
    line                     line_queued
    first message of a run   run_started
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

from chain import events, messages, records
from chain.events import Event
from chain.exit_codes import EXIT_CODES
from chain.lines.receipts import adjustment_view, line_of
from chain.messages import Usage
from chain.plan import Task, changed
from chain.records import Entry, PlanChange
from chain.session.activity import Activity
from chain.session.undecided import Began, Told, Undecided
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
    is_asked: bool = False
    """Whether the model call of the iteration is on record."""
    is_answered: bool = False
    """Whether that call has come to its end: a reply without that was cut, and is no answer."""
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
        self._activity = Activity()
        self._follows = False
        """Whether lines were left to wait at the end of a run, so that the next one begins by itself."""
        self._undecided = Undecided()
        self._replies: list[str] = []
        self._cut_reply = ""
        """What was shown of a reply that was cut; it is one of the run's replies if nothing follows it."""
        self._receipts: list[events.Receipt] = []

    def events(self, entry: Entry) -> list[Event]:
        """The events that the next record makes known, which may be those of records before it."""
        if isinstance(entry.record, records.Line):
            is_moved = entry.record.id in self._lines
            self._lines[entry.record.id] = entry.record
            if not (is_moved or self._activity.is_running or self._follows or self._undecided.held):
                self._undecided.hold(entry)
                return []
        return self._tell_all(self._undecided.add(entry))

    def rest(self) -> list[Event]:
        """The events that were held back, now that no more records come."""
        return self._tell_all(self._undecided.rest())

    def _tell_all(self, decided: Iterable[Told]) -> list[Event]:
        told: list[Event] = []
        for each in decided:
            if isinstance(each, Began):
                told += self._start(each.time, each.line.id, line_of(each.line).message)
                self._activity.is_running = True
            else:
                told += self._tell(each)
        return told

    def _tell(self, entry: Entry) -> list[Event]:
        record, at = entry.record, entry.time
        was_running = self._activity.is_running
        begins = self._activity.add(record)
        match record:
            case records.Session():
                return self._session(record, at, was_running=was_running)
            case records.Line():
                return self._line(record, at)
            case records.Receipt():
                return self._receipt(record, at)
            case records.Message():
                return self._message(record, at, begins=begins)
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
                return self._result(record, at, was_running=was_running)
            case _:
                return []

    def _of(self, name: str) -> _Agent:
        return self._agents.setdefault(name, _Agent())

    def _common(self, agent: str, at: float) -> dict[str, Any]:
        return {"agent": agent, "iteration": self._of(agent).iteration, "time": at}

    # --------------------------------------------------------------------------------------- the session and its runs

    def _session(self, record: records.Session, at: float, *, was_running: bool) -> list[Event]:
        told: list[Event] = []
        if was_running:  # the record of its end is missing
            lost = records.Result("interrupted", PROGRAM_ENDED, self._of(MAIN).iteration)
            told = self._result(lost, at, was_running=True)
        self._follows = False
        if not self._is_first:
            return [*told, events.Notice(time=at, message=f"The session was resumed; {record.model} answers.")]
        self._is_first = False
        init = events.Init(
            time=at, session=record.id, version=record.version, model=record.model, workspace=record.workspace
        )
        return [*told, init]

    def _start(self, at: float, id: str = "", query: str = "") -> list[Event]:
        self._follows = False
        self._of(MAIN).iteration = 0
        self._replies.clear()
        return [events.RunStarted(time=at, id=id, query=query)]

    def _result(self, record: records.Result, at: float, *, was_running: bool) -> list[Event]:
        status = record.status
        was_cut = status == "interrupted" or status.startswith("cancelled")
        reason = "user_interrupted" if status == "interrupted" else "user_cancelled"
        # One whose first message could not be written has ended all the same.
        told = [] if was_running else self._start(at)
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
        # Lines that are left to wait begin the next run in the same step.
        self._follows = bool(self._queued) and status in ("done", "max_iterations")
        return [*told, result]

    # ------------------------------------------------------------------------------------------------------- lines

    def _line(self, record: records.Line, at: float) -> list[Event]:
        self._queued[record.id] = record.agent
        if record.kind == "stop":
            return []  # it waits for nothing
        waiting = list(self._queued.values()).count(record.agent)
        queued = events.LineQueued(
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
        return [queued]

    def _receipt(self, record: records.Receipt, at: float) -> list[Event]:
        if record.state != "queued":
            self._queued.pop(record.id, None)
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

    def _message(self, record: records.Message, at: float, *, begins: bool) -> list[Event]:
        if record.message.role == "assistant":
            return self._reply(record, at)
        if record.message.results:
            return self._results(record, at)
        if record.point is None:
            return []
        if record.point == "start":
            id = next(iter(record.line_ids), "")
            self._queued.pop(id, None)
            return self._start(at, id, record.message.text)
        told = self._start(at) if begins else []
        lines = [self._lines[id].text for id in record.line_ids if id in self._lines]
        told.append(
            events.UserInterruption(
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
        )
        return told

    def _request(self, record: records.RequestSent, at: float) -> list[Event]:
        agent = self._of(record.agent)
        agent.iteration, agent.is_asked, agent.is_answered = record.iteration, True, False
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
        if not agent.is_asked:  # version 0.1.0 did not record its calls
            agent.iteration += 1
            told.append(events.IterationStarted(**self._common(record.agent, at), max_iterations=agent.iteration))
            agent.is_answered = True
        agent.is_asked = False
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
