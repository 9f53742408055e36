"""The state of a session: the only place that defines what a record changes and which events it produces. Pure.

While a session runs, the journal applies each record that it writes, and the code that commits the record decides when
its events are emitted. Live code changes the state only by a record. So a session that is resumed, shown or exported
has the same state after its records are read (``restored_state.RestoredState``).

A journal may end at any record, so the state contains only what is recorded, not what should follow: a message that
delivers a line is enough for the line to be delivered, and an agent without a recorded end is at work. The module
``resume`` writes the records that a crash prevented.

These records produce events::

    line                     line_queued, if it waits
    run                      run_started
    message of lines         user_interruption, unless it is the query of a run
    message of the model     reply
    tool_started             tool_call
    tool_finished            tool_result, if the result is in it
    plan                     plan_changed
    result                   result, and a notice if jobs are still running after the user ended the run
    compacted                compaction, with the state ``ended``
    removed, rewound, mode   notice
    instructions             notice
    directory_added          notice
    question, answer, agent_started, agent_ended, receipt: the event of their name

All other records produce no events. ``RestoredState.read`` adds the events that a running program emits without a
record.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, assert_never

from chain import events, messages
from chain.agent.conversation import CallIds
from chain.agent.history import AgentState
from chain.agent.questions import QuestionLog, number_in
from chain.events import Event, Point
from chain.journal import records
from chain.journal.records import Entry, PlanChange
from chain.lines.accepted import AcceptedLine, Lines, adjustment_view
from chain.messages import TOO_LONG, Usage
from chain.plan import Plan, views_of
from chain.session.checkpoints import MAX_CHECKPOINTS, Checkpoint, undo_sentence
from chain.session.exit_codes import EXIT_CODES
from chain.text.modes import DEFAULT_MODE, Mode, mode_sentence
from chain.text.wording import MAIN, UNREADABLE, instructions_sentence, pluralize, with_cause
from chain.tools.jobs import JobState
from chain.tools.paths import printable_path

_E = TypeVar("_E")

DIRECTORIES = "Besides the workspace, tools may use these directories of the user. Paths in them are absolute:"


class State:
    """The state of a session after the records that were applied."""

    def __init__(self) -> None:
        self.session: records.Session | None = None
        """The latest ``Session`` record; ``None`` if there is none."""
        self.model = ""
        self.mode: Mode = DEFAULT_MODE
        """The mode, which decides which tool calls need the user's approval."""
        self.effort = ""
        """The effort that the user asked for. If it is empty, the effort in the model's definition is used."""
        self.instructions = records.InstructionsRead()
        self.server_tools = records.ServerTools()
        self.main = AgentState(MAIN, kind=MAIN)
        self.agents = {MAIN: self.main}
        """The main agent, and the agents below it in the order in which they were last started or asked."""
        self.lines = Lines()
        self.plan = Plan()
        self.question_log = QuestionLog()
        self.added_directories: list[Path] = []
        """The directories outside the workspace that tools may use."""
        self.draft = ""
        """The text that was in the editor when the program ended; empty if it was sent later."""
        self.numbers: Counter[str] = Counter()
        """The highest number of an agent so far, by the kind of agent."""
        self.call_ids = CallIds()
        self.refused_tools: set[str] = set()
        self.is_running = False
        """Whether a run has begun and has no result."""
        self.is_at_limit = False
        """Whether the last run used all its iterations, so that it can be continued. An undo resets it."""
        self.replies: list[str] = []
        """The replies of the last run that are not blank."""
        self.receipts: list[events.Receipt] = []
        """The receipts since the last result."""
        self.has_lost_run = False
        """Whether the last run ended because its process ended."""
        self.was_ended = False
        """Whether the user has stopped or interrupted the last run."""
        self.only_compacts = False
        """Whether the last run only compacted the conversation."""
        self.withdrawn: list[str] = []
        """The lines whose messages were withdrawn in the last run, in the order of their delivery."""
        self.usage = Usage()
        """The usage of the runs that have a result."""
        self.runs = 0
        """The number of runs that have begun."""
        self.checkpoints: deque[Checkpoint] = deque(maxlen=MAX_CHECKPOINTS)
        """The checkpoints of the latest runs, for undo; the last run is at the end."""
        self.jobs: dict[str, JobState] = {}
        """The background jobs by their ids, oldest first."""
        self.first_query = ""
        """The text of the first query."""
        self.changed = 0.0
        """The time of the last record, in seconds since the epoch."""
        self.trace_path: Callable[[], str | None] = lambda: None
        """A function that returns the path of the debug trace, for events. The function is not part of the state."""

    @property
    def children(self) -> list[AgentState]:
        """The agents below the main agent, in the order in which they were last started or asked."""
        return [agent for agent in self.agents.values() if agent is not self.main]

    @property
    def system_instructions(self) -> str:
        """The text after the main agent's system prompt: the project's instructions, and the added directories."""
        rows = (
            [DIRECTORIES, *(f"- {printable_path(path)}" for path in self.added_directories)]
            if self.added_directories
            else []
        )
        return "\n\n".join(filter(None, [self.instructions.text, "\n".join(rows)]))

    def agent(self, name: str) -> AgentState:
        """Return an agent. If the record of its start is lost, create its state below the main agent."""
        if name not in self.agents:
            self.agents[name] = AgentState(name, kind=name.rpartition("-")[0], parent=MAIN)
        return self.agents[name]

    def apply(self, entry: Entry) -> list[Event]:
        """Apply the next record, and return its events.

        Raise ``ConversationError`` or ``IndexError`` if the record does not follow from those before it.
        """
        record, at = entry.record, entry.time
        self.changed = at
        match record:
            case records.Message():
                return self._apply_message(record, entry)
            case records.RequestSent():
                agent = self.agent(record.agent)
                agent.iteration, agent.is_summarizing = record.iteration, record.compacts
                agent.history.window_usage.overhead, agent.window = record.beside, record.window
                if record.attempt == 1 and not record.compacts:
                    agent.news.record_request(self.plan, agent.name)
            case records.RequestEnded():
                self._apply_request_end(record)
            case records.ToolStarted(id=id):
                agent = self.agent(record.agent)
                call = agent.open_call(id)
                agent.started.add(id)
                input = {} if call is None else call.input
                return [self._make_event(events.ToolCall, record, at, input=input, parent_id=agent.parent_id)]
            case records.ToolFinished(id=id, text=text):
                agent = self.agent(record.agent)
                agent.finished[id] = record
                if text:
                    result = messages.ToolResult(id, text, record.is_error, record.images)
                    event = self._tool_result_event(agent, result, at)
                    agent.results[id] = result
                    return [event]
            case records.Line():
                return self._apply_line(record, at)
            case records.Receipt():
                return [self._apply_receipt(record, at)]
            case records.RunBegun():
                return [self._apply_run_start(record, at)]
            case records.Result():
                was_ended = self.was_ended
                return [self._apply_result(record, at), *self._running_jobs_notice(at, was_ended=was_ended)]
            case records.TaskAdded() | records.TaskClosed() | records.PlanReplaced() | records.PlanRestored():
                return [self._apply_plan_change(record, at)]
            case records.Question():
                preview = record.preview if record.diff is None else record.diff.text
                question = self._make_event(events.Question, record, at, preview=preview)
                self.question_log.add(record, question)
                return [question]
            case records.Answer(id=id, text=text):
                agent = self.agent(record.agent)
                answered = self.question_log.open.pop(id, None)
                if text and answered is not None:
                    agent.history.words.add(f"(asked: {answered.text}) {text}", iteration=agent.iteration)
                return [self._make_event(events.Answer, record, at)]
            case records.AgentStarted():
                return [self._apply_agent_start(record, at)]
            case records.AgentEnded(name=name):
                agent = self.agent(name)
                agent.is_at_work, agent.iteration, agent.usage = False, record.iterations, record.usage
                for forgotten in record.forgotten:
                    self.agents.pop(forgotten, None)
                return [self._make_event(events.AgentEnded, record, at, kind=agent.kind, task=agent.task)]
            case records.Interrupted():
                self._add_usage(self.agent(record.agent), record.usage)
                self.was_ended |= record.agent == MAIN and record.by == "user"
            case records.Compacted(summary=summary):
                agent = self.agent(record.agent)
                agent.history.compact(record)
                if summary:
                    agent.news.mark_known(self.plan)
                else:
                    agent.news.mark_unknown(self.plan)
                return [self._make_event(events.Compaction, record, at, state="ended", summary=summary)]
            case records.FileChanged():
                if self.checkpoints:
                    self.checkpoints[-1].changes.append(record)
            case records.JobStarted(id=id):
                self.jobs[id] = JobState(record, at)
            case records.JobEnded(id=id):
                if id in self.jobs:
                    self.jobs[id].ended = record
            case records.Rewound():
                return [self._rewind(record, at)]
            case records.Withdrawn():
                self._apply_withdrawal(record)
            case records.Removed():
                self.agent(record.agent).history.remove(record)
                self.refused_tools.update(record.names if record.what == "tools" else ())
                message = f"No longer sent: {', '.join(record.names)} ({record.why})."
                return [events.Notice(**self._common_fields(record.agent, at), message=message)]
            case records.Session():
                if self.session is not None:
                    self.lines.reopen()
                # No run is active when a session is opened, even if the record of the run's end is missing.
                self.session, self.model, self.is_running = record, record.model, False
            case records.InstructionsRead():
                return self._apply_instructions(record, at)
            case records.DirectoryAdded(path=path):
                self.added_directories.append(Path(path))
                message = f"Added {path}: tools may read it, and edit files in it with your approval."
                return [events.Notice(time=at, message=message)]
            case records.ServerTools():
                self.server_tools = record
            case records.Model(name=name, once=once):
                self.model = self.model if once else name
            case records.Effort(level=level):
                self.effort = level
            case records.Mode(name=mode):
                self.mode = mode
                return [events.Notice(time=at, message=mode_sentence(mode))]
            case records.Draft(text=text):
                self.draft = text
            case records.CompactionAsked() | records.Unknown():
                pass
            case _:
                assert_never(record)
        return []

    def reopened_events(self) -> list[Event]:
        """Return a ``line_queued`` event for each line that was to start a run or to act at once, but did not.

        Such lines wait once the session is resumed.
        """
        return [
            self._queued_event(line, place, line.accepted_at) for place, line in enumerate(self.lines.unfinished(), 1)
        ]

    def waiting_events(self) -> Iterator[Event]:
        """Yield events that describe the plan and the waiting lines of a session that was just opened.

        The first subscribers need these events, since the events of the earlier process are not emitted again.
        """
        if self.plan.tasks:
            yield events.PlanChanged(tasks=views_of(self.plan.tasks), by="user")
        for place, line in enumerate(self.lines.waiting, 1):
            yield self._queued_event(line, place, time.time(), iteration=0)

    # ------------------------------------------------------------------------------------------------ agents and runs

    def _apply_run_start(self, record: records.RunBegun, at: float) -> Event:
        self.is_running, self.only_compacts = True, record.only_compacts
        self.runs += 1
        self.has_lost_run = self.was_ended = self.is_at_limit = False
        self.withdrawn.clear()
        self.replies.clear()
        main, message, id = self.main, "", record.id
        before = main.history.snapshot()
        main.history.words.run += 1
        main.began, main.iteration, main.reported_iteration, main.usage = at, 0, 0, Usage()
        for query in self.lines.remove_waiting([record.id]):
            id, line = query.id, query.line
            self.first_query = self.first_query or query.record.text
            # "[USER ADDED] " is for the model.
            message = line.text.strip() if line.kind == "context" else line.message
        if not record.only_compacts:
            self.checkpoints.append(Checkpoint(message, at, before))
        return events.RunStarted(time=at, id=id, query=message)

    def _apply_result(self, record: records.Result, at: float) -> Event:
        """Apply the end of a run, and return its event. A running program adds the fields that are not recorded."""
        status = record.status
        was_cut = status == "interrupted" or status.startswith("cancelled")
        reason = "user_interrupted" if status == "interrupted" else "user_cancelled"
        result = self._make_event(
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
        self.is_running, self.is_at_limit = False, status == "max_iterations"
        self.has_lost_run = record.program_ended and not self.only_compacts
        self.main.iteration, self.main.usage = 0, Usage()
        self.usage += record.usage
        self.receipts.clear()
        return result

    def _running_jobs_notice(self, at: float, *, was_ended: bool) -> Iterator[Event]:
        """Yield a notice of the jobs that are still running, if the user ended the run."""
        running = [id for id, job in self.jobs.items() if job.ended is None]
        if was_ended and running:
            number = pluralize(len(running), "background job is", "background jobs are")
            yield events.Notice(time=at, message=f"{number} still running: /jobs shows them, /kill all ends them.")

    def _apply_agent_start(self, record: records.AgentStarted, at: float) -> Event:
        agent = self.agents.pop(record.name, None) or AgentState(record.name)
        self.agents[record.name] = agent
        agent.kind, agent.parent, agent.parent_id = record.kind, record.agent, record.parent_id
        agent.task, agent.began, agent.is_at_work = record.task, at, True
        if agent.history.conversation.state == "EMPTY":
            agent.news.mark_unknown(self.plan)
        agent.history.words.run += 1
        agent.history.words.add(record.task)
        agent.iteration, agent.reported_iteration, agent.usage = 0, 0, Usage()
        self.numbers[record.kind] = max(self.numbers[record.kind], number_in(record.name.rpartition("-")[2]))
        return self._make_event(events.AgentStarted, record, at)

    def _add_usage(self, agent: AgentState, usage: Usage) -> None:
        """Add the usage of a model call to an agent and the agents above it."""
        agent.usage += usage
        if agent.is_at_work:
            self._add_usage(self.agent(agent.parent), usage)

    def _apply_request_end(self, record: records.RequestEnded) -> None:
        agent = self.agent(record.agent)
        agent.error, agent.delay_s = with_cause(record.cause, record.error), record.delay_s
        agent.window = record.window or agent.window
        self._add_usage(agent, record.usage)
        if not (agent.is_summarizing or record.error):
            too_long = record.stop_reason == TOO_LONG
            agent.history.window_usage.update(record.usage, record.asked_tokens, record.window, is_too_long=too_long)

    def _apply_instructions(self, record: records.InstructionsRead, at: float) -> list[Event]:
        before, self.instructions = self.instructions, record
        sentences = list(record.faults)
        if record.text != before.text:
            sentences.insert(0, instructions_sentence(record.files, is_change=bool(before.files)))
        return [events.Notice(time=at, message=message) for message in sentences]

    # ------------------------------------------------------------------------------------------------------- lines

    def _apply_line(self, record: records.Line, at: float) -> list[Event]:
        accepted = self.lines.add(record, at)
        if record.job in self.jobs:
            self.jobs[record.job].line_id = record.id
        self.draft = "" if record.text == self.draft else self.draft
        self.was_ended |= record.kind == "stop" and record.agent == MAIN
        return [self._queued_event(accepted, record.waiting, at)] if record.effect == "waits" else []

    def _queued_event(self, accepted: AcceptedLine, place: int, at: float, **more: Any) -> Event:  # noqa: ANN401
        line = accepted.record
        more |= {"id": accepted.id, "target_agent": line.agent, "origin": accepted.origin, "waiting": place}
        more |= {"urgency": accepted.line.urgency, "adjustment": adjustment_view(accepted.line)}
        return self._make_event(events.LineQueued, line, at, **more)

    def _apply_receipt(self, record: records.Receipt, at: float) -> Event:
        found = self.lines.remove_waiting([record.id])
        known = [{"id": a.id, "text": a.record.text, "kind": a.record.kind, "origin": a.origin} for a in found]
        receipt = self._make_event(events.Receipt, record, at, **(known[0] if known else {"text": ""}))
        for accepted in found:
            accepted.receipt = receipt
        self.receipts.append(receipt)
        return receipt

    def _apply_plan_change(self, record: PlanChange, at: float) -> Event:
        self.plan.apply(record)
        if record.line_id in self.lines.on_record:
            self.lines.on_record[record.line_id].is_carried_out = True
        author = record.by if record.by in self.agents else MAIN
        return events.PlanChanged(**self._common_fields(author, at), tasks=views_of(self.plan.tasks), by=record.by)

    # ------------------------------------------------------------------------------------------- conversations

    def _apply_message(self, record: records.Message, entry: Entry) -> list[Event]:
        agent, message, at = self.agent(record.agent), record.message, entry.time
        results: list[Event] = []
        if message.role == "assistant":
            # If calls are open, the record of their results is lost.
            stubs = [messages.ToolResult(id, UNREADABLE, is_error=True) for id in agent.unreported]
            results = [self._tool_result_event(agent, stub, at) for stub in stubs]
            agent.settle_calls()
        self._append(agent, message, entry.seq)
        if message.role == "assistant":
            self.call_ids.used.update(call.id for call in message.calls)
            agent.news.record_reply()
            if not message.calls:
                agent.since_answer.clear()
            if message.answer and agent is self.main and not record.is_cut:
                self.replies.append(message.answer)
            return [
                *results,
                events.Reply(**self._common_fields(record.agent, at), text=message.text, tool_calls=len(message.calls)),
            ]
        if message.results:
            agent.settle_calls()
            return []
        return self._apply_delivery(agent, record, at)

    def _append(self, agent: AgentState, message: messages.Message, seq: int) -> None:
        agent.history.append(message)

    def _apply_delivery(self, agent: AgentState, record: records.Message, at: float) -> list[Event]:
        """Apply a user message: mark the lines that it delivers.

        Return a ``user_interruption`` event, unless the message is the query of a run or was not delivered at a safe
        point.
        """
        is_interruption = record.point not in (None, Point.START)
        if is_interruption:
            agent.iteration = record.iteration or agent.iteration
        lines = self.lines.remove_waiting(record.line_ids)
        outcomes = dict(zip(record.line_ids, record.outcomes, strict=False))
        for line in lines:
            line.is_carried_out |= bool(outcomes.get(line.on_record))
            line.delivered_at, line.entered_at = (record.point, agent.iteration), at
            words = line.record.text.strip()
            if line.line.kind != "job":
                agent.history.words.add(words, iteration=record.iteration, line_id=line.on_record)
        agent.since_answer += record.line_ids
        if not is_interruption:
            return []
        interruption = self._make_event(
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

    def _apply_withdrawal(self, record: records.Withdrawn) -> None:
        agent = self.agent(record.agent)
        agent.history.withdraw(record.line_ids)
        for id in record.line_ids:
            if id in self.lines.on_record:
                self.lines.on_record[id].withdrawn = record.reason
                self.withdrawn.append(id)
        agent.since_answer.clear()
        agent.settle_calls()
        agent.news.mark_unknown(self.plan)

    def _rewind(self, record: records.Rewound, at: float) -> Event:
        """Apply an undo, and return its notice.

        If the conversation is kept, the undone runs keep their checkpoints, without changes of files. Otherwise these
        checkpoints are removed and the conversation is restored.
        """
        undone = [self.checkpoints.pop() for _ in range(min(record.runs, len(self.checkpoints)))]
        if record.keeps_conversation:
            for checkpoint in reversed(undone):
                self.checkpoints.append(replace(checkpoint, changes=[]))
        elif undone:
            self.main.history.restore(undone[-1].history)
            self.main.since_answer.clear()
            self.main.settle_calls()
            self.main.news.mark_unknown(self.plan)
            self.replies.clear()
            self.has_lost_run = self.is_at_limit = False
        return events.Notice(time=at, message=undo_sentence(record, undone))

    # ------------------------------------------------------------------------------------------------- inside

    def _tool_result_event(self, agent: AgentState, result: messages.ToolResult, at: float) -> Event:
        call = agent.open_call(result.id)
        is_reported = call is None or result.id in agent.started
        finished = agent.finished.get(result.id)
        return events.ToolResult(
            **self._common_fields(agent.name, at),
            id=result.id,
            name="" if call is None else call.name,
            text=result.text,
            is_error=result.is_error,
            seconds=0.0 if finished is None else finished.seconds,
            exit_code=None if finished is None else finished.exit_code,
            summary=() if finished is None else finished.summary,
            input={} if is_reported or call is None else call.input,
        )

    def _common_fields(self, agent: str, at: float) -> dict[str, Any]:
        known = self.agents.get(agent)
        return {"agent": agent, "iteration": 0 if known is None else known.iteration, "time": at}

    def _make_event(self, event_class: type[_E], record: Any, at: float, /, **more: Any) -> _E:  # noqa: ANN401 - a dataclass
        """Return an event of this class.

        Its values are those of the common fields of all events, then those of the fields that the record also has, then
        ``more``. A later value of a field replaces an earlier one.
        """
        untyped: Any = event_class  # its parameters are unknown here
        record_class: Any = type(record)
        same = {name: getattr(record, name) for name in _common_field_names(untyped, record_class)}
        made: _E = untyped(**{**self._common_fields(getattr(record, "agent", MAIN), at), **same, **more})
        return made


@cache
def _common_field_names(one: Any, other: Any) -> tuple[str, ...]:  # noqa: ANN401 - dataclasses
    """Return the names of the fields that two dataclasses have in common."""
    return tuple({f.name for f in fields(one)} & {f.name for f in fields(other)})
