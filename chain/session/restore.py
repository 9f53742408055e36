"""What a session was, from the records of its journal. Pure.

A journal may end at any record, so the state is what the records say and not what should follow from them: a message
that delivers a line is enough for that line to be delivered, and an agent that did not end is at work. What a crash
left undone is done by ``resume``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from chain import messages
from chain.agent.history import History
from chain.errors import ConversationError
from chain.events import Point, State
from chain.journal import records
from chain.journal.reading import MAX_FAULTS
from chain.journal.records import Entry, PlanChange
from chain.messages import TOO_LONG, Usage
from chain.plan import Task, tasks_after
from chain.text.wording import MAIN


@dataclass(slots=True)
class KnownLine:
    """A line, and what is known of what became of it.

    ``accepted_at`` is when its record was written, ``entered_at`` when a message delivered it, if one did, and
    ``entered`` where in the conversation of an agent. ``receipt`` is the last one on record. ``withdrawn``: why that
    message has left the conversation, if it has. ``is_carried_out``: code has changed the plan for it.
    """

    record: records.Line
    accepted_at: float
    entered_at: float | None = None
    receipt: records.Receipt | None = None
    entered: tuple[Point | None, int] | None = None
    withdrawn: str = ""
    is_carried_out: bool = False

    @property
    def state(self) -> State:
        """As the receipts say."""
        return "queued" if self.receipt is None else self.receipt.state

    def waited_s(self, now: float) -> float:
        """How long it waited until it was delivered, or until now. A clock may have been set back meanwhile."""
        return max((now if self.entered_at is None else self.entered_at) - self.accepted_at, 0.0)


@dataclass(slots=True)
class KnownAgent:
    """An agent, and how far it had come.

    ``started`` are the open calls whose tools have started, and ``results`` those that already have a result.
    ``since_answer`` are the ids of the lines delivered since its last reply without tool calls.
    """

    name: str
    kind: str = ""
    parent: str = ""
    parent_id: str = ""
    task: str = ""
    began: float = 0.0
    is_at_work: bool = False
    iteration: int = 0
    usage: Usage = field(default_factory=Usage)
    history: History = field(default_factory=History)
    started: set[str] = field(default_factory=set)
    results: dict[str, messages.ToolResult] = field(default_factory=dict)
    since_answer: list[str] = field(default_factory=list)
    is_summarizing: bool = False
    """Whether the last request asked for a summary."""
    asked_at: int = 0
    knows_until: int = 0
    news_at: int = 0

    @property
    def has_plan_news(self) -> bool:
        """Whether others changed the plan since its model was last told of it."""
        return self.news_at > self.knows_until


class Restored:
    """The state of a session after the entries that were added."""

    def __init__(self) -> None:
        self.session: records.Session | None = None
        """How it was opened last."""
        self.model = ""
        self.instructions = records.InstructionsRead()
        self.server_tools = records.ServerTools()
        self.main = KnownAgent(MAIN, kind=MAIN)
        self.agents: dict[str, KnownAgent] = {}
        """Those below the main one, the one that was started or asked last at the end."""
        self.lines: dict[str, KnownLine] = {}
        self.tasks: tuple[Task, ...] = ()
        self.questions = 0
        self.open_question: records.Question | None = None
        self.draft = ""
        """What was in the editor when its program ended, unless it was sent since."""
        self.numbers: Counter[str] = Counter()
        """How many agents of each kind there were."""
        self.call_ids: set[str] = set()
        self.refused_tools: set[str] = set()
        self.is_running = False
        """Whether a run began and has no result."""
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
        self.misfits: list[int] = []
        """The records that do not follow from those before them, since some of these are lost."""

    def add(self, entry: Entry) -> None:
        """Add the next entry. One that does not follow from those before it is fitted to them, or left out."""
        try:
            self._add(entry)
        except (ConversationError, IndexError):
            self.misfits.append(entry.seq)

    @property
    def complaints(self) -> tuple[str, ...]:
        """Which records were fitted or left out, in a sentence if there are any."""
        named = ", ".join(map(str, self.misfits[:MAX_FAULTS])) + (", ..." if len(self.misfits) > MAX_FAULTS else "")
        why = f"what records of the journal refer to is missing ({named})"
        return (f"{why}: a note stands for it, and results without their calls are left out.",) if named else ()

    def _add(self, entry: Entry) -> None:
        match entry.record:
            case records.Message() as record:
                self._add_message(entry, record)
            case records.RequestSent(agent=agent, iteration=iteration, compacts=compacts):
                asking = self._agent(agent)
                asking.iteration, asking.is_summarizing = iteration, compacts
                asking.asked_at = asking.asked_at if compacts else entry.seq
            case records.RequestEnded() as record:
                self._end_request(self._agent(record.agent), record)
            case records.Interrupted(agent=agent, by=by, usage=usage):
                self._add_usage(agent, usage)
                self.was_ended |= agent == MAIN and by == "user"
            case records.Compacted() as record:
                self._agent(record.agent).history.compact(record)
                if record.summary:
                    self._agent(record.agent).knows_until = entry.seq
                else:
                    self._forget_plan(self._agent(record.agent), entry)
            case records.ToolStarted(id=id, agent=agent):
                self._agent(agent).started.add(id)
            case records.ToolFinished(id=id, agent=agent, is_error=is_error, text=text, images=images):
                if text:
                    self._agent(agent).results[id] = messages.ToolResult(id, text, is_error, images)
            case records.Line() as line:
                self.lines.setdefault(line.id, KnownLine(line, entry.time)).record = line
                self.draft = "" if line.text == self.draft else self.draft
                self.was_ended |= line.kind == "stop" and line.agent == MAIN
            case records.Receipt() as receipt:
                if receipt.id in self.lines:
                    self.lines[receipt.id].receipt = receipt
            case records.TaskAdded() | records.TaskClosed() | records.PlanReplaced() | records.PlanRestored() as change:
                self._add_change(entry, change)
            case records.AgentStarted() as record:
                self._start(entry, record)
            case records.AgentEnded(name=name, iterations=iterations, usage=usage):
                ended = self._agent(name)
                ended.is_at_work, ended.iteration, ended.usage = False, iterations, usage
            case records.RunBegun(only_compacts=only_compacts):
                self.is_running, self.only_compacts = True, only_compacts
                self.has_lost_run = self.was_ended = False
                self.main.history.words.run += 1
                self.withdrawn.clear()
                self.main.iteration, self.main.usage = 0, Usage()
            case records.Result(program_ended=program_ended, usage=usage):
                self.is_running = False
                self.has_lost_run = program_ended and not self.only_compacts
                self.main.usage = Usage()
                self.usage += usage
            case records.Session() as record:
                # Who opens a session finds no run in it, whatever the record of its end came to.
                self.session, self.model, self.is_running = record, record.model, False
            case records.Draft(text=text):
                self.draft = text
            case records.Model(name=name):
                self.model = name
            case records.InstructionsRead() as record:
                self.instructions = record
            case records.ServerTools() as record:
                self.server_tools = record
            case records.Question(id=id) as record:
                self.questions = max(self.questions, _number(id.removeprefix("Q")))
                self.open_question = record
            case records.Answer(id=id, text=text, agent=agent):
                question, self.open_question = self.open_question, None
                if text and question is not None and question.id == id:
                    known = self._agent(agent)
                    known.history.words.add_answer(question.text, text, known.iteration)
            case records.Removed() as record:
                self._agent(record.agent).history.remove(record)
                self.refused_tools.update(record.names if record.what == "tools" else ())
            case records.Withdrawn() as record:
                self._withdraw(self._agent(record.agent), record)
                self._forget_plan(self._agent(record.agent), entry)
            case _:
                pass

    def _agent(self, name: str) -> KnownAgent:
        if name == MAIN:
            return self.main
        if name not in self.agents:
            # The record of its start is missing.
            self.agents[name] = KnownAgent(name, kind=name.rpartition("-")[0], parent=MAIN)
        return self.agents[name]

    def _add_usage(self, name: str, usage: Usage) -> None:
        """Count what a model call has used, for the agents above too, as ``Run.add_usage`` does."""
        agent = self._agent(name)
        agent.usage += usage
        if agent.is_at_work:
            self._add_usage(agent.parent, usage)

    def _start(self, entry: Entry, record: records.AgentStarted) -> None:
        agent = self._agent(record.name)
        self.agents[record.name] = self.agents.pop(record.name)
        agent.kind, agent.parent, agent.parent_id = record.kind, record.agent, record.parent_id
        agent.task, agent.began, agent.is_at_work = record.task, entry.time, True
        if agent.history.conversation.state == "EMPTY":
            self._forget_plan(agent, entry)
        agent.history.words.run += 1
        agent.history.words.add(record.task)
        agent.iteration, agent.usage = 0, Usage()
        self.numbers[record.kind] = max(self.numbers[record.kind], _number(record.name.rpartition("-")[2]))

    def _add_message(self, entry: Entry, record: records.Message) -> None:
        agent, message = self._agent(record.agent), record.message
        fitted = agent.history.conversation.fitted(message)
        for each in fitted:
            agent.history.append(each)
        if fitted != (message,):
            self.misfits.append(entry.seq)
        for id in record.line_ids:
            if id in self.lines:
                self.lines[id].entered, self.lines[id].entered_at = (record.point, agent.iteration), entry.time
                agent.history.words.add(self.lines[id].record.text.strip(), iteration=record.iteration, line_id=id)
        agent.since_answer += record.line_ids
        if message.role == "assistant":
            self.call_ids.update(call.id for call in message.calls)
            agent.knows_until = agent.asked_at or entry.seq
            if not message.calls:
                agent.since_answer.clear()
        elif message.results:
            agent.started.clear()
            agent.results.clear()

    def _add_change(self, entry: Entry, change: PlanChange) -> None:
        self.tasks = tasks_after(self.tasks, change)
        if change.line_id in self.lines:
            self.lines[change.line_id].is_carried_out = True
        for agent in (self.main, *self.agents.values()):
            if agent.name != change.by:
                agent.news_at = entry.seq

    def _end_request(self, agent: KnownAgent, record: records.RequestEnded) -> None:
        self._add_usage(record.agent, record.usage)
        if not (agent.is_summarizing or record.error):
            too_long = record.stop_reason == TOO_LONG
            agent.history.fill.update(record.usage, record.asked_tokens, record.window, is_too_long=too_long)

    def _withdraw(self, agent: KnownAgent, record: records.Withdrawn) -> None:
        agent.history.withdraw(record.line_ids)
        for id in record.line_ids:
            if id in self.lines:
                self.lines[id].withdrawn = record.reason
                self.withdrawn.append(id)
        agent.since_answer.clear()
        agent.started.clear()
        agent.results.clear()

    def _forget_plan(self, agent: KnownAgent, entry: Entry) -> None:
        """What told an agent of the plan may have left its conversation (``PlanNews.forget``)."""
        agent.knows_until, agent.news_at = 0, entry.seq if self.tasks else 0


def _number(text: str) -> int:
    """The whole number that a text is; 0 for another text, or one that nobody has counted to."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else 0
