"""The state of a session that is read from its journal, and the events that nobody recorded. Pure.

A running program emits some events without a record: a reply as it streams, the start of an iteration, what a call has
used. ``RestoredState.read`` applies records as a running session does (``state``), and adds these events as far as the
records tell of them. A damaged journal may have lost records: what no longer fits is repaired or left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from chain import events, messages
from chain.agent.history import AgentState
from chain.errors import ConversationError
from chain.events import Event
from chain.journal import records
from chain.journal.reading import MAX_FAULTS
from chain.journal.records import Entry
from chain.messages import Usage
from chain.session.state import State
from chain.text.wording import MAIN, PROGRAM_ENDED


def retell(entries: Iterable[Entry]) -> Iterator[Event]:
    """Yield the events of these records, with the times of the records."""
    state = RestoredState()
    for entry in entries:
        yield from state.read(entry)
    yield from state.undone()


class RestoredState(State):
    """The state after the records of a journal that were read."""

    def __init__(self) -> None:
        super().__init__()
        self.misfits: list[int] = []
        """The records that do not follow from those before them, since some of these are lost."""

    @property
    def complaints(self) -> tuple[str, ...]:
        """Which records were fitted or left out, in a sentence if there are any."""
        named = ", ".join(map(str, self.misfits[:MAX_FAULTS])) + (", ..." if len(self.misfits) > MAX_FAULTS else "")
        why = f"what records of the journal refer to is missing ({named})"
        return (f"{why}: a note stands for it, and results without their calls are left out.",) if named else ()

    def read(self, entry: Entry) -> list[Event]:
        """Apply the next record of a journal, and return its events with those that were emitted without a record.

        A record that does not follow from those before it is fitted to them, or left out (``misfits``).
        """
        try:
            return self._read(entry)
        except (ConversationError, IndexError):
            self.misfits.append(entry.seq)
            return []

    def _append(self, agent: AgentState, message: messages.Message, seq: int) -> None:
        try:
            super()._append(agent, message, seq)
        except ConversationError:
            for fitted in agent.history.conversation.fitted(message):
                agent.history.append(fitted)
            self.misfits.append(seq)

    def _read(self, entry: Entry) -> list[Event]:
        record, at = entry.record, entry.time
        match record:
            case records.Session():
                return self._open(record, entry)
            case records.Message(message=message) if message.role == "assistant":
                return [*self._text(record, at), *self.apply(entry)]
            case records.Message(message=message) if message.results:
                agent = self.agent(record.agent)
                left = [result for result in message.results if result.id in agent.unreported]
                return [*(self._tool_result(agent, result, at) for result in left), *self.apply(entry)]
            case records.RequestSent():
                return [*self.apply(entry), *self._request(record, at)]
            case records.RequestEnded(usage=usage) | records.Interrupted(usage=usage):
                return [*self.apply(entry), *self._usage(record.agent, usage, at)]
            case records.Model(name=name, once=once):
                when = "this run" if once else "from the next run on"
                return [*self.apply(entry), events.Notice(time=at, message=f"{name} answers {when}.")]
            case records.Effort(level=level):
                what = f"The effort is {level}" if level else "The effort is that of the model's definition"
                return [*self.apply(entry), events.Notice(time=at, message=f"{what} from the next run on.")]
            case records.Result():
                # One whose beginning could not be written has ended all the same.
                told = [] if self.is_running else [self._start_run(records.RunBegun(), at)]
                if record.status == "error":
                    told.append(events.Error(**self._common(MAIN, at), message=record.result, kind="model"))
                told += self.apply(entry)
                query = self.lines.on_record.get(self.query)
                if query is not None and query in self.lines.waiting:
                    told.append(self._queued(query, self.lines.waiting.index(query) + 1, query.accepted_at))
                return told
            case _:
                return self.apply(entry)

    def _open(self, record: records.Session, entry: Entry) -> list[Event]:
        told = self.undone()
        if self.is_running:  # the record of its end is missing
            lost = records.Result("interrupted", PROGRAM_ENDED, self.main.iteration, program_ended=True)
            told += self._read(Entry(0, entry.time, lost))
        is_first = self.session is None
        self.apply(entry)
        if not is_first:
            return [*told, events.Notice(time=entry.time, message=f"The session was resumed; {record.model} answers.")]
        init = self._event(events.Init, record, entry.time, session=record.id)
        return [*told, init]

    def _text(self, record: records.Message, at: float) -> Iterator[Event]:
        """Yield what was shown of a reply before it was there."""
        common, message = self._common(record.agent, at), record.message
        thought = "".join(block.text for block in message.blocks if isinstance(block, messages.Thinking))
        if thought.strip():
            yield events.ThinkingDelta(**common, text=thought)
        if message.text.strip():
            yield events.TextDelta(**common, text=message.text)

    def _request(self, record: records.RequestSent, at: float) -> list[Event]:
        agent, common = self.agent(record.agent), self._common(record.agent, at)
        if record.compacts:
            return []
        is_reported, agent.reported_iteration = agent.reported_iteration == record.iteration, record.iteration
        if record.attempt > 1:
            retry = events.Retry(**common, attempt=record.attempt - 1, delay_s=agent.delay_s, reason=agent.error)
            return [retry] if agent.error else []
        if is_reported:  # a now line came before it, in a pause or while the disk was slow
            return []
        return [events.IterationStarted(**common, max_iterations=record.max_iterations or record.iteration)]

    def _usage(self, agent: str, usage: Usage, at: float) -> list[Event]:
        window = self.agent(agent).window
        return [] if usage == Usage() else [events.UsageReport.of(usage, window, **self._common(agent, at))]
