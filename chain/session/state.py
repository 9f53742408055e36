"""The state of a session: the one place that defines what a record changes and which events it produces. Pure.

While a session runs, the journal applies each record that it writes, and whoever commits the record says when its
events are emitted. When a session is resumed, shown or exported, the same records are applied
(``restored_state.RestoredState``). So the state of a running session and the state after reading its journal are the
same by construction. Live code decides, and reads the state; it changes the state only by a record.

A journal may end at any record, so the state is what the records say, not what should follow: a message that delivers a
line is enough for the line to be delivered, and an agent without an end is at work. ``resume`` writes what a crash left
out.

Events::

    line                     line_queued, if it waits
    run                      run_started
    message of lines         user_interruption, unless it is the query of a run
    message of the model     reply
    tool_started             tool_call
    tool_finished            tool_result, if the result is in it
    plan                     plan_changed
    compacted                compaction, its end
    removed, rewound         notice
    instructions             notice
    question, answer, agent_started, agent_ended, receipt, result: the event of their name

All other records produce none. ``RestoredState.read`` adds those that a running program emits without a record.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import cache
from typing import Any, TypeVar, assert_never

from chain import events, messages
from chain.agent.conversation import CallIds
from chain.agent.history import AgentState
from chain.agent.questions import Asked, whole_number
from chain.events import Event, Point
from chain.journal import records
from chain.journal.records import Entry, PlanChange
from chain.lines.accepted import Accepted, Lines, adjustment_view
from chain.messages import TOO_LONG, Usage
from chain.plan import Plan, views_of
from chain.session.checkpoints import MAX_CHECKPOINTS, Checkpoint, undo_sentence
from chain.session.exit_codes import EXIT_CODES
from chain.text.wording import MAIN, UNREADABLE, fault, instructions_read

_E = TypeVar("_E")


class State:
    """The state after the records that were applied."""

    def __init__(self) -> None:
        self.session: records.Session | None = None
        """How it was opened last."""
        self.model = ""
        self.effort = ""
        """What the user asked for by ``/effort``."""
        self.instructions = records.InstructionsRead()
        self.server_tools = records.ServerTools()
        self.main = AgentState(MAIN, kind=MAIN)
        self.agents = {MAIN: self.main}
        """The main agent, and those below it in the order in which they were last started or asked."""
        self.lines = Lines()
        self.plan = Plan()
        self.asked = Asked()
        self.draft = ""
        """What was in the editor when its program ended, unless it was sent since."""
        self.numbers: Counter[str] = Counter()
        """How many agents of each kind there were."""
        self.call_ids = CallIds()
        self.refused_tools: set[str] = set()
        self.is_running = False
        """Whether a run began and has no result."""
        self.query = ""
        """The line that is the query of the last run, by its id on record; empty without one."""
        self.replies: list[str] = []
        """The replies of the last run that are not blank."""
        self.receipts: list[events.Receipt] = []
        """Those since the last result."""
        self.has_lost_run = False
        """Whether the last run's result is that its process ended."""
        self.was_ended = False
        """Whether the user wanted the last run to end."""
        self.only_compacts = False
        """Whether the last run was for a compaction alone, so that nothing of it is in the conversation."""
        self.withdrawn: list[str] = []
        """The lines whose messages have left the conversation in the last run, in the order of their delivery."""
        self.usage = Usage()
        """What the runs used that have a result."""
        self.runs = 0
        """How many runs began."""
        self.checkpoints: deque[Checkpoint] = deque(maxlen=MAX_CHECKPOINTS)
        """The beginnings of the latest runs, for undo; the last run is at the end."""
        self.first_query = ""
        """The text of the first line that was the query of a run."""
        self.changed = 0.0
        """The time of the last record, in seconds since the epoch."""
        self.trace_path: Callable[[], str | None] = lambda: None
        """Returns the file of the debug trace, which events name. It is no part of the state."""

    @property
    def children(self) -> list[AgentState]:
        """The agents below the main one, the one that was started or asked last at the end."""
        return [agent for agent in self.agents.values() if agent is not self.main]

    def agent(self, name: str) -> AgentState:
        """Return an agent. One without a record of its start, which is lost, counts as one below the main agent."""
        if name not in self.agents:
            self.agents[name] = AgentState(name, kind=name.rpartition("-")[0], parent=MAIN)
        return self.agents[name]

    def apply(self, entry: Entry) -> list[Event]:
        """Apply the next record, and return its events.

        Raise ``ConversationError`` or ``IndexError`` if it does not follow from those before it.
        """
        record, at = entry.record, entry.time
        self.changed = at
        match record:
            case records.Message():
                return self._message(record, entry)
            case records.RequestSent():
                agent = self.agent(record.agent)
                agent.iteration, agent.is_summarizing = record.iteration, record.compacts
                agent.history.fill.beside, agent.window = record.beside, record.window
                if record.attempt == 1 and not record.compacts:
                    agent.news.send(self.plan, agent.name)
            case records.RequestEnded():
                self._end_request(record)
            case records.ToolStarted(id=id):
                agent = self.agent(record.agent)
                call = agent.open_call(id)
                agent.started.add(id)
                input = {} if call is None else call.input
                return [self._event(events.ToolCall, record, at, input=input, parent_id=agent.parent_id)]
            case records.ToolFinished(id=id, text=text):
                agent = self.agent(record.agent)
                agent.finished[id] = record
                if text:
                    result = messages.ToolResult(id, text, record.is_error, record.images)
                    told = self._tool_result(agent, result, at)
                    agent.results[id] = result
                    return [told]
            case records.Line():
                return self._line(record, at)
            case records.Receipt():
                return [self._receipt(record, at)]
            case records.RunBegun():
                return [self._start_run(record, at)]
            case records.Result():
                return [self._end_run(record, at)]
            case records.TaskAdded() | records.TaskClosed() | records.PlanReplaced() | records.PlanRestored():
                return [self._change_plan(record, at)]
            case records.Question():
                preview = record.preview if record.diff is None else record.diff.text
                question = self._event(events.Question, record, at, preview=preview)
                self.asked.add(record, question)
                return [question]
            case records.Answer(id=id, text=text):
                agent = self.agent(record.agent)
                answered = self.asked.open.pop(id, None)
                if text and answered is not None:
                    agent.history.words.add(f"(asked: {answered.text}) {text}", iteration=agent.iteration)
                return [self._event(events.Answer, record, at)]
            case records.AgentStarted():
                return [self._start_agent(record, at)]
            case records.AgentEnded(name=name):
                agent = self.agent(name)
                agent.is_at_work, agent.iteration, agent.usage = False, record.iterations, record.usage
                for forgotten in record.forgotten:
                    self.agents.pop(forgotten, None)
                return [self._event(events.AgentEnded, record, at, kind=agent.kind, task=agent.task)]
            case records.Interrupted():
                self._add_usage(self.agent(record.agent), record.usage)
                self.was_ended |= record.agent == MAIN and record.by == "user"
            case records.Compacted(summary=summary):
                agent = self.agent(record.agent)
                agent.history.compact(record)
                if summary:
                    agent.news.learn(self.plan)
                else:
                    agent.news.forget(self.plan)
                return [self._event(events.Compaction, record, at, state="ended", summary=summary)]
            case records.FileChanged():
                if self.checkpoints:
                    self.checkpoints[-1].changes.append(record)
            case records.Rewound():
                return [self._rewind(record, at)]
            case records.Withdrawn():
                self._withdraw(record)
            case records.Removed():
                self.agent(record.agent).history.remove(record)
                self.refused_tools.update(record.names if record.what == "tools" else ())
                message = f"No longer sent: {', '.join(record.names)} ({record.why})."
                return [events.Notice(**self._common(record.agent, at), message=message)]
            case records.Session():
                if self.session is not None:
                    self.lines.reopen()
                # Who opens a session finds no run in it, whatever the record of its end came to.
                self.session, self.model, self.is_running = record, record.model, False
            case records.InstructionsRead():
                return self._read_instructions(record, at)
            case records.ServerTools():
                self.server_tools = record
            case records.Model(name=name, once=once):
                self.model = self.model if once else name
            case records.Effort(level=level):
                self.effort = level
            case records.Draft(text=text):
                self.draft = text
            case records.CompactionAsked() | records.Unknown():
                pass
            case _:
                assert_never(record)
        return []

    def undone(self) -> list[Event]:
        """Return the events of the lines that did not do what they were to do at once: they wait."""
        return [self._queued(line, place, line.accepted_at) for place, line in enumerate(self.lines.undone(), 1)]

    def waiting(self) -> Iterator[Event]:
        """Yield the events of the plan and of the lines that wait, for a subscriber that comes before any event."""
        if self.plan.tasks:
            yield events.PlanChanged(tasks=views_of(self.plan.tasks), by="user")
        for place, line in enumerate(self.lines.waiting, 1):
            yield self._queued(line, place, time.time(), iteration=0)

    # ------------------------------------------------------------------------------------------------ agents and runs

    def _start_run(self, record: records.RunBegun, at: float) -> Event:
        self.is_running, self.only_compacts, self.query = True, record.only_compacts, record.id
        self.runs += 1
        self.has_lost_run = self.was_ended = False
        self.withdrawn.clear()
        self.replies.clear()
        main, message, id = self.main, "", record.id
        before = main.history.snapshot()
        main.history.words.run += 1
        main.began, main.iteration, main.reported_iteration, main.usage = at, 0, 0, Usage()
        for query in self.lines.leave([record.id]):
            id, line = query.id, query.line
            self.first_query = self.first_query or query.record.text
            # "[USER ADDED] " is for the model.
            message = line.text.strip() if line.kind == "context" else line.message
        if not record.only_compacts:
            self.checkpoints.append(Checkpoint(message, at, before))
        return events.RunStarted(time=at, id=id, query=message)

    def _end_run(self, record: records.Result, at: float) -> Event:
        """Return the result as far as the journal knows it; the running program adds what it alone knows."""
        status = record.status
        was_cut = status == "interrupted" or status.startswith("cancelled")
        reason = "user_interrupted" if status == "interrupted" else "user_cancelled"
        result = self._event(
            events.Result,
            record,
            at,
            iteration=record.iterations,
            replies=tuple(self.replies),
            partial=was_cut,
            termination_reason=reason if was_cut else None,
            trace_path=self.trace_path(),
            exit_code=EXIT_CODES[status],
            receipts=tuple(self.receipts),
        )
        self.is_running = False
        self.has_lost_run = record.program_ended and not self.only_compacts
        self.main.iteration, self.main.usage = 0, Usage()
        self.usage += record.usage
        self.receipts.clear()
        if (query := self.lines.on_record.get(self.query)) is not None:
            self.lines.wait(query)  # the program ended before it was delivered
        return result

    def _start_agent(self, record: records.AgentStarted, at: float) -> Event:
        agent = self.agents.pop(record.name, None) or AgentState(record.name)
        self.agents[record.name] = agent
        agent.kind, agent.parent, agent.parent_id = record.kind, record.agent, record.parent_id
        agent.task, agent.began, agent.is_at_work = record.task, at, True
        if agent.history.conversation.state == "EMPTY":
            agent.news.forget(self.plan)
        agent.history.words.run += 1
        agent.history.words.add(record.task)
        agent.iteration, agent.reported_iteration, agent.usage = 0, 0, Usage()
        self.numbers[record.kind] = max(self.numbers[record.kind], whole_number(record.name.rpartition("-")[2]))
        return self._event(events.AgentStarted, record, at)

    def _add_usage(self, agent: AgentState, usage: Usage) -> None:
        """Count what a model call has used, for the agents above too."""
        agent.usage += usage
        if agent.is_at_work:
            self._add_usage(self.agent(agent.parent), usage)

    def _end_request(self, record: records.RequestEnded) -> None:
        agent = self.agent(record.agent)
        agent.error, agent.delay_s = fault(record.cause, record.error), record.delay_s
        agent.window = record.window or agent.window
        self._add_usage(agent, record.usage)
        if not (agent.is_summarizing or record.error):
            too_long = record.stop_reason == TOO_LONG
            agent.history.fill.update(record.usage, record.asked_tokens, record.window, is_too_long=too_long)

    def _read_instructions(self, record: records.InstructionsRead, at: float) -> list[Event]:
        before, self.instructions = self.instructions, record
        told = list(record.faults)
        if record.text != before.text:
            told.insert(0, instructions_read(record.files, is_change=bool(before.files)))
        return [events.Notice(time=at, message=message) for message in told]

    # ------------------------------------------------------------------------------------------------------- lines

    def _line(self, record: records.Line, at: float) -> list[Event]:
        accepted = self.lines.add(record, at)
        self.draft = "" if record.text == self.draft else self.draft
        self.was_ended |= record.kind == "stop" and record.agent == MAIN
        return [self._queued(accepted, record.waiting, at)] if record.effect == "waits" else []

    def _queued(self, accepted: Accepted, place: int, at: float, **more: Any) -> Event:  # noqa: ANN401
        line = accepted.record
        more |= {"id": accepted.id, "target_agent": line.agent, "origin": accepted.origin, "waiting": place}
        more |= {"urgency": accepted.line.urgency, "adjustment": adjustment_view(accepted.line)}
        return self._event(events.LineQueued, line, at, **more)

    def _receipt(self, record: records.Receipt, at: float) -> Event:
        found = self.lines.leave([record.id])
        known = [{"id": a.id, "text": a.record.text, "kind": a.record.kind, "origin": a.origin} for a in found]
        receipt = self._event(events.Receipt, record, at, **(known[0] if known else {"text": ""}))
        for accepted in found:
            accepted.receipt = receipt
        self.receipts.append(receipt)
        return receipt

    def _change_plan(self, record: PlanChange, at: float) -> Event:
        self.plan.apply(record)
        if record.line_id in self.lines.on_record:
            self.lines.on_record[record.line_id].is_carried_out = True
        author = record.by if record.by in self.agents else MAIN
        return events.PlanChanged(**self._common(author, at), tasks=views_of(self.plan.tasks), by=record.by)

    # ------------------------------------------------------------------------------------------- conversations

    def _message(self, record: records.Message, entry: Entry) -> list[Event]:
        agent, message, at = self.agent(record.agent), record.message, entry.time
        told: list[Event] = []
        if message.role == "assistant":
            # Open calls mean that the record of their results is lost.
            stubs = [messages.ToolResult(id, UNREADABLE, is_error=True) for id in agent.unreported]
            told = [self._tool_result(agent, stub, at) for stub in stubs]
            agent.settle_calls()
        self._append(agent, message, entry.seq)
        if message.role == "assistant":
            self.call_ids.used.update(call.id for call in message.calls)
            agent.news.read()
            if not message.calls:
                agent.since_answer.clear()
            if message.answer and agent is self.main and not record.is_cut:
                self.replies.append(message.answer)
            return [
                *told,
                events.Reply(**self._common(record.agent, at), text=message.text, tool_calls=len(message.calls)),
            ]
        if message.results:
            agent.settle_calls()
            return []
        return self._deliver(agent, record, at)

    def _append(self, agent: AgentState, message: messages.Message, seq: int) -> None:
        agent.history.append(message)

    def _deliver(self, agent: AgentState, record: records.Message, at: float) -> list[Event]:
        """Follow the delivery of lines; a message without a safe point delivers none."""
        is_interruption = record.point not in (None, Point.START)
        if is_interruption:
            agent.iteration = record.iteration or agent.iteration
        lines = self.lines.leave(record.line_ids)
        outcomes = dict(zip(record.line_ids, record.outcomes, strict=False))
        for line in lines:
            line.is_carried_out |= bool(outcomes.get(line.on_record))
            line.entered, line.entered_at = (record.point, agent.iteration), at
            words = line.record.text.strip()
            agent.history.words.add(words, iteration=record.iteration, line_id=line.on_record)
        agent.since_answer += record.line_ids
        if not is_interruption:
            return []
        interruption = self._event(
            events.UserInterruption,
            record,
            at,
            iteration=agent.iteration,
            ids=tuple(line.id for line in lines),
            message="\n\n".join(line.record.text for line in lines),
            prompt_source=record.source or "default",
            target_agent=record.agent,
            tools_skipped=record.skipped,
            trace_path=self.trace_path(),
        )
        return [interruption]

    def _withdraw(self, record: records.Withdrawn) -> None:
        agent = self.agent(record.agent)
        agent.history.withdraw(record.line_ids)
        for id in record.line_ids:
            if id in self.lines.on_record:
                self.lines.on_record[id].withdrawn = record.reason
                self.withdrawn.append(id)
        agent.since_answer.clear()
        agent.settle_calls()
        agent.news.forget(self.plan)

    def _rewind(self, record: records.Rewound, at: float) -> Event:
        undone = [self.checkpoints.pop() for _ in range(min(record.runs, len(self.checkpoints)))]
        if record.keeps_conversation:
            for checkpoint in reversed(undone):
                self.checkpoints.append(replace(checkpoint, changes=[]))
        elif undone:
            self.main.history.restore(undone[-1].history)
            self.main.since_answer.clear()
            self.main.settle_calls()
            self.main.news.forget(self.plan)
            self.has_lost_run = False
        return events.Notice(time=at, message=undo_sentence(record, undone[-1].query if undone else ""))

    # ------------------------------------------------------------------------------------------------- inside

    def _tool_result(self, agent: AgentState, result: messages.ToolResult, at: float) -> Event:
        call = agent.open_call(result.id)
        is_reported = call is None or result.id in agent.started
        finished = agent.finished.get(result.id)
        return events.ToolResult(
            **self._common(agent.name, at),
            id=result.id,
            name="" if call is None else call.name,
            text=result.text,
            is_error=result.is_error,
            seconds=0.0 if finished is None else finished.seconds,
            exit_code=None if finished is None else finished.exit_code,
            summary=() if finished is None else finished.summary,
            input={} if is_reported or call is None else call.input,
        )

    def _common(self, agent: str, at: float) -> dict[str, Any]:
        known = self.agents.get(agent)
        return {"agent": agent, "iteration": 0 if known is None else known.iteration, "time": at}

    def _event(self, event: type[_E], record: Any, at: float, /, **more: Any) -> _E:  # noqa: ANN401 - a dataclass
        """Return an event of a class, with the fields that the record has too, and ``more`` of them."""
        make: Any = event
        kind: Any = type(record)
        same = {name: getattr(record, name) for name in _same_fields(make, kind)}
        made: _E = make(**{**self._common(getattr(record, "agent", MAIN), at), **same, **more})
        return made


@cache
def _same_fields(one: Any, other: Any) -> tuple[str, ...]:  # noqa: ANN401 - dataclasses
    """Return the names of the fields that two dataclasses both have."""
    return tuple({f.name for f in fields(one)} & {f.name for f in fields(other)})
