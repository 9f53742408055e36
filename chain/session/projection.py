"""The events of a session's records: the one place where an event is made from a record. Pure.

It is a fold over the records, since an event also says what earlier records hold: the text of a line, the name of a
call. While a session runs, the journal asks for the events of each record that it writes (``of``), and whoever commits
the record says when they are emitted. Where a session is read again, shown or exported, ``reading`` adds what was
emitted without a record, as far as the records tell of it: nothing partial was recorded, so a reply is one piece of
text, and no progress of tools comes.

::

    line                     line_queued, if it waits; reading: also because a crash prevented what it was to do
    run                      run_started
    message of lines         user_interruption, unless it is the query of a run
    message of the model     reply; reading: its text before it
    tool_started             tool_call
    tool_finished            tool_result
    message of results       tool_result, of those that were not told before
    plan                     plan_changed
    compacted                compaction, its end
    request                  reading: iteration_started or retry when it is sent, usage when it has ended
    session, model           reading: init or notice

``withdrawn``, ``interrupted`` and ``compact`` tell nothing; all others tell the event of their name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, get_args

from chain import events, messages
from chain.events import Event
from chain.exit_codes import EXIT_CODES
from chain.journal import records
from chain.journal.records import Entry, PlanChange
from chain.lines.receipts import adjustment_view, line_of, origin_of
from chain.messages import Usage
from chain.plan import Task, tasks_after, views_of
from chain.text.wording import MAIN, PROGRAM_ENDED, ROOT, UNREADABLE, fault, instructions_read

_NAMED: Mapping[str, Any] = {kind.type: kind for kind in get_args(Event)}
"""The events by the names of their types."""


def retell(entries: Iterable[Entry]) -> Iterator[Event]:
    """The events of these records, with the times of the records."""
    projection = Projection()
    for entry in entries:
        yield from projection.reading(entry)
    yield from projection.rest()


@dataclass(slots=True)
class _Agent:
    """What events say of an agent again and again."""

    kind: str = ""
    task: str = ""
    parent_id: str = ROOT
    iteration: int = 0
    begun: int = 0
    """The last iteration whose beginning was told, where a session is read: a request may be sent again in it."""
    error: str = ""
    """Of the last request, and the pause after it."""
    delay_s: float = 0.0
    calls: dict[str, messages.ToolCall] = field(default_factory=dict)
    """Those that have no result yet."""
    finished: dict[str, records.ToolFinished] = field(default_factory=dict)
    """The ends of those of them whose results come with those of the others."""


class Projection:
    """The events of one journal, record by record."""

    def __init__(self) -> None:
        self._ids: Mapping[str, str] = {}
        self._trace_path: Callable[[], str | None] = lambda: None
        self._agents = {MAIN: _Agent()}
        self._lines: dict[str, records.Line] = {}
        self._tasks: tuple[Task, ...] = ()
        self._is_first = True
        self._instructions = records.InstructionsRead()
        self._is_running = False
        self._undone: dict[str, float] = {}
        """When the lines came that are to start a run or to act at once: if the program ends before, they wait."""
        self._replies: list[str] = []
        self._receipts: list[events.Receipt] = []

    def go_live(self, ids: Mapping[str, str], trace_path: Callable[[], str | None]) -> None:
        """From now on the session runs.

        ``ids`` are those by which lines are told that have another id on record; ``trace_path`` says where the debug
        trace is.
        """
        self._ids, self._trace_path = ids, trace_path

    def of(self, entry: Entry) -> list[Event]:
        """The events that the next record makes known."""
        record, at = entry.record, entry.time
        match record:
            case records.Line():
                return self._line(record, at)
            case records.RunBegun(id=id):
                return [self._start(at, id)]
            case records.Receipt():
                return [self._receipt(record, at)]
            case records.Message():
                return self._message(record, at)
            case records.RequestSent():
                self._of(record.agent).iteration = record.iteration
            case records.Compacted(summary=summary):
                return [self._event(events.Compaction, record, at, state="ended", summary=summary)]
            case records.ToolStarted():
                agent = self._of(record.agent)
                call = agent.calls.get(record.id, messages.ToolCall(record.id, record.name, {}))
                agent.calls[record.id] = replace(call, input={})  # told now, and not once more with its result
                input = call.input
                return [self._event(events.ToolCall, record, at, input=input, parent_id=agent.parent_id)]
            case records.ToolFinished(id=id, text=text):
                self._of(record.agent).finished[id] = record
                result = messages.ToolResult(id, text, record.is_error)
                return [self._tool_result(record.agent, result, at)] if text else []
            case records.TaskAdded() | records.TaskClosed() | records.PlanReplaced() | records.PlanRestored():
                return self._plan(record, at)
            case records.AgentStarted(name=name):
                # Calls that a full disk has left open are answered when the agent is asked again.
                calls = self._of(name).calls
                self._agents[name] = _Agent(record.kind, record.task, record.parent_id, calls=calls)
                return [self._event(events.AgentStarted, record, at)]
            case records.AgentEnded(name=name):
                agent = self._of(name)
                return [self._event(events.AgentEnded, record, at, kind=agent.kind, task=agent.task)]
            case records.Result():
                return [self._result(record, at)]
            case records.InstructionsRead():
                return self._read_instructions(record, at)
            case records.Removed(agent=agent, names=names, why=why):
                message = f"No longer sent: {', '.join(names)} ({why})."
                return [events.Notice(**self._common(agent, at), message=message)]
            case records.Question(diff=diff) if diff is not None:
                return [self._event(events.Question, record, at, preview=diff.text)]
            case records.Unknown():
                pass
            case _ if record.type in _NAMED:
                return [self._event(_NAMED[record.type], record, at)]
            case _:
                pass
        return []

    def reading(self, entry: Entry) -> list[Event]:
        """The events of the next record where a session is read: those of ``of``, and what was emitted without one."""
        record, at = entry.record, entry.time
        match record:
            case records.Session():
                return self._session(record, at)
            case records.Message(message=message) if message.role == "assistant":
                return [*self._text(record, at), *self.of(entry)]
            case records.RequestSent():
                return [*self.of(entry), *self._request(record, at)]
            case records.RequestEnded(usage=used, window=window):
                agent = self._of(record.agent)
                agent.error, agent.delay_s = fault(record.cause, record.error), record.delay_s
                return self._usage(record, used, at, window)
            case records.Interrupted(usage=used):
                return self._usage(record, used, at)
            case records.Model():
                return [events.Notice(time=at, message=f"{record.name} answers from the next run on.")]
            case records.Result():
                # One whose beginning could not be written has ended all the same.
                told = [] if self._is_running else [self._start(at)]
                if record.status == "error":
                    told.append(events.Error(**self._common(MAIN, at), message=record.result, kind="model"))
                return [*told, *self.of(entry)]
            case _:
                return self.of(entry)

    def _usage(self, record: records.Record, used: Usage, at: float, window: int = 0) -> list[Event]:
        if used == Usage():
            return []
        agent = getattr(record, "agent", MAIN)
        return [events.UsageReport.of(used, window, **self._common(agent, at))]

    def rest(self) -> list[Event]:
        """What is to be told of lines that did nothing, now that no more records come."""
        undone, self._undone = self._undone, {}
        return [self._queued(id, place, at) for place, (id, at) in enumerate(undone.items(), 1)]

    def as_it_stands(self, waiting: Iterable[str]) -> Iterator[Event]:
        """The plan, and the lines that wait, by their ids on record; for who comes before anything is emitted."""
        if self._tasks:
            yield events.PlanChanged(tasks=views_of(self._tasks), by="user")
        for place, id in enumerate(waiting, 1):
            yield self._queued(id, place, time.time(), iteration=0)

    def on_event(self, event: Event) -> None:
        """Note an event that was emitted without a record: an iteration begins before its request is recorded."""
        if isinstance(event, events.IterationStarted):
            self._of(event.agent).iteration = event.iteration

    def _of(self, name: str) -> _Agent:
        return self._agents.setdefault(name, _Agent())

    def _common(self, agent: str, at: float) -> dict[str, Any]:
        return {"agent": agent, "iteration": self._of(agent).iteration, "time": at}

    def _event(self, event: Any, record: Any, at: float, /, **more: Any) -> Event:  # noqa: ANN401 - dataclasses
        """An event of a class, with the fields that the record has too, and ``more`` of them."""
        kind: Any = type(record)
        same = {name: getattr(record, name) for name in _same_fields(event, kind)}
        made: Event = event(**{**self._common(getattr(record, "agent", MAIN), at), **same, **more})
        return made

    def _told_id(self, id: str) -> str:
        return self._ids.get(id, id)

    # --------------------------------------------------------------------------------------- the session and its runs

    def _session(self, record: records.Session, at: float) -> list[Event]:
        told = self.rest()
        if self._is_running:  # the record of its end is missing
            lost = records.Result("interrupted", PROGRAM_ENDED, self._of(MAIN).iteration, program_ended=True)
            told += self.reading(Entry(0, at, lost))
        if not self._is_first:
            return [*told, events.Notice(time=at, message=f"The session was resumed; {record.model} answers.")]
        self._is_first = False
        init = events.Init(
            time=at, session=record.id, version=record.version, model=record.model, workspace=record.workspace
        )
        return [*told, init]

    def _read_instructions(self, record: records.InstructionsRead, at: float) -> list[Event]:
        before, self._instructions = self._instructions, record
        told = list(record.faults)
        if record.text != before.text:
            told.insert(0, instructions_read(record.files, is_change=bool(before.files)))
        return [events.Notice(time=at, message=message) for message in told]

    def _start(self, at: float, id: str = "") -> Event:
        self._is_running = True
        self._of(MAIN).iteration = self._of(MAIN).begun = 0
        self._replies.clear()
        message = ""
        if (query := self._lines.get(id)) is not None:
            line = line_of(query)
            # "[USER ADDED] " is for the model.
            message = line.text.strip() if line.kind == "context" else line.message
        return events.RunStarted(time=at, id=self._told_id(id), query=message)

    def _result(self, record: records.Result, at: float) -> Event:
        """As far as the journal knows it; a process that runs adds what it alone knows."""
        status = record.status
        was_cut = status == "interrupted" or status.startswith("cancelled")
        reason = "user_interrupted" if status == "interrupted" else "user_cancelled"
        result = self._event(
            events.Result,
            record,
            at,
            iteration=record.iterations,
            replies=tuple(self._replies),
            partial=was_cut,
            termination_reason=reason if was_cut else None,
            trace_path=self._trace_path(),
            exit_code=EXIT_CODES[status],
            receipts=tuple(self._receipts),
        )
        self._is_running = False
        self._of(MAIN).iteration = 0
        self._receipts.clear()
        return result

    # ------------------------------------------------------------------------------------------------------- lines

    def _line(self, record: records.Line, at: float) -> list[Event]:
        self._lines[record.id] = record
        if record.effect == "waits":
            return [self._queued(record.id, record.waiting, at)]
        if record.kind != "stop":
            self._undone[record.id] = at
        return []

    def _queued(self, id: str, place: int, at: float, **more: Any) -> Event:  # noqa: ANN401
        line = self._lines[id]
        more |= {"id": self._told_id(id), "target_agent": line.agent, "origin": origin_of(line), "waiting": place}
        return self._event(events.LineQueued, line, at, adjustment=adjustment_view(line_of(line)), **more)

    def _receipt(self, record: records.Receipt, at: float) -> Event:
        self._undone.pop(record.id, None)
        line = self._lines.get(record.id)
        text, kind, origin = ("", "", "prompt") if line is None else (line.text, line.kind, origin_of(line))
        told = {"id": self._told_id(record.id), "text": text, "kind": kind, "origin": origin}
        receipt = self._event(events.Receipt, record, at, **told)
        assert isinstance(receipt, events.Receipt)
        self._receipts.append(receipt)
        return receipt

    # ------------------------------------------------------------------------------------------- the conversation

    def _message(self, record: records.Message, at: float) -> list[Event]:
        agent, message = self._of(record.agent), record.message
        if message.role == "assistant":
            stubs = [messages.ToolResult(id, UNREADABLE, is_error=True) for id in agent.calls]
            told: list[Event] = [self._tool_result(record.agent, stub, at) for stub in stubs]  # their record is lost
            agent.calls = {call.id: call for call in message.calls}
            common, text = self._common(record.agent, at), message.answer
            if text and record.agent == MAIN and not record.is_cut:
                self._replies.append(text)
            return [*told, events.Reply(**common, text=message.text, tool_calls=len(message.calls))]
        if message.results:
            results = [result for result in message.results if result.id in agent.calls]
            return [self._tool_result(record.agent, result, at) for result in results]
        if record.point is None or record.point == "start":
            for id in record.line_ids:
                self._undone.pop(id, None)
            return []
        agent.iteration = record.iteration or agent.iteration
        lines = [self._lines[id].text for id in record.line_ids if id in self._lines]
        interruption = self._event(
            events.UserInterruption,
            record,
            at,
            iteration=agent.iteration,
            ids=tuple(self._told_id(id) for id in record.line_ids),
            message="\n\n".join(lines),
            prompt_source=record.source or "default",
            target_agent=record.agent,
            tools_skipped=record.skipped,
            trace_path=self._trace_path(),
        )
        return [interruption]

    def _text(self, record: records.Message, at: float) -> Iterator[Event]:
        """What was shown of a reply before it was there."""
        common, message = self._common(record.agent, at), record.message
        thought = "".join(block.text for block in message.blocks if isinstance(block, messages.Thinking))
        if thought.strip():
            yield events.ThinkingDelta(**common, text=thought)
        if message.text.strip():
            yield events.TextDelta(**common, text=message.text)

    def _request(self, record: records.RequestSent, at: float) -> list[Event]:
        agent, common = self._of(record.agent), self._common(record.agent, at)
        if record.compacts:
            return []
        is_told, agent.begun = agent.begun == record.iteration, record.iteration
        if record.attempt > 1:
            retry = events.Retry(**common, attempt=record.attempt - 1, delay_s=agent.delay_s, reason=agent.error)
            return [retry] if agent.error else []
        if is_told:  # a now line came before it, in a pause or while the disk was slow
            return []
        return [events.IterationStarted(**common, max_iterations=record.max_iterations or record.iteration)]

    def _tool_result(self, name: str, result: messages.ToolResult, at: float) -> Event:
        agent = self._of(name)
        call, finished = agent.calls.pop(result.id, None), agent.finished.pop(result.id, None)
        return events.ToolResult(
            **self._common(name, at),
            id=result.id,
            name="" if call is None else call.name,
            text=result.text,
            is_error=result.is_error,
            seconds=0.0 if finished is None else finished.seconds,
            exit_code=None if finished is None else finished.exit_code,
            summary=() if finished is None else finished.summary,
            input={} if call is None else call.input,
        )

    def _plan(self, record: PlanChange, at: float) -> list[Event]:
        try:
            self._tasks = tasks_after(self._tasks, record)
        except IndexError:
            return []  # the task that it changes is on a record that is missing
        author = record.by if record.by in self._agents else MAIN
        return [events.PlanChanged(**self._common(author, at), tasks=views_of(self._tasks), by=record.by)]


@cache
def _same_fields(one: Any, other: Any) -> tuple[str, ...]:  # noqa: ANN401 - dataclasses
    """The names of the fields that two dataclasses both have."""
    return tuple({f.name for f in fields(one)} & {f.name for f in fields(other)})
