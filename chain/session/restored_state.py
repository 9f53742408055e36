"""Restoring of a session's state and events from its journal. Pure.

``RestoredState.read`` applies records as a running session does (``state``). It reconstructs the events that a running
program emits without a record: streaming replies, starts of iterations, and the usage of calls. In a damaged journal, a
record that depends on a lost one is repaired or skipped.
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


def events_of_journal(entries: Iterable[Entry]) -> Iterator[Event]:
    """Yield the events that a running session emitted for these records, with the times of the records."""
    state = RestoredState()
    for entry in entries:
        yield from state.read(entry)
    yield from state.reopened_events()


class RestoredState(State):
    """A session state that is restored from the records of a journal."""

    def __init__(self) -> None:
        super().__init__()
        self.misfits: list[int] = []
        """The ``seq`` of each record that does not follow from earlier records, because some of them are lost."""

    @property
    def complaints(self) -> tuple[str, ...]:
        """A sentence about the records that were repaired or skipped, or nothing if there are none."""
        named = ", ".join(map(str, self.misfits[:MAX_FAULTS])) + (", ..." if len(self.misfits) > MAX_FAULTS else "")
        said = "records of the journal refer to missing records, so these records were repaired or skipped"
        return (f"{said}: {named}.",) if named else ()

    def read(self, entry: Entry) -> list[Event]:
        """Apply the next record of a journal, and return the events that a running session emitted for it.

        If the record does not follow from earlier records, repair or skip it, and add its ``seq`` to ``misfits``.
        """
        try:
            return self._apply_and_reconstruct(entry)
        except (ConversationError, IndexError):
            self.misfits.append(entry.seq)
            return []

    def _append(self, agent: AgentState, message: messages.Message, seq: int) -> None:
        try:
            super()._append(agent, message, seq)
        except ConversationError:
            for repaired in agent.history.conversation.adapt(message):
                agent.history.append(repaired)
            self.misfits.append(seq)

    def _apply_and_reconstruct(self, entry: Entry) -> list[Event]:
        """Apply a record and return its events, in the order in which a running program emitted them."""
        record, at = entry.record, entry.time
        match record:
            case records.Session():
                return self._open_events(record, entry)
            case records.Message(message=message) if message.role == "assistant":
                return [*self._streamed_events(record, at), *self.apply(entry)]
            case records.Message(message=message) if message.results:
                agent = self.agent(record.agent)
                new = [result for result in message.results if result.id in agent.unreported]
                return [*(self._tool_result_event(agent, result, at) for result in new), *self.apply(entry)]
            case records.RequestSent():
                return [*self.apply(entry), *self._request_events(record, at)]
            case records.RequestEnded(usage=usage) | records.Interrupted(usage=usage):
                return [*self.apply(entry), *self._usage_events(record.agent, usage, at)]
            case records.Model(name=name, once=once):
                when = "this run" if once else "from the next run on"
                return [*self.apply(entry), events.Notice(time=at, message=f"{name} answers {when}.")]
            case records.Effort(level=level):
                what = f"The effort is {level}" if level else "The effort is that of the model's definition"
                return [*self.apply(entry), events.Notice(time=at, message=f"{what} from the next run on.")]
            case records.Result():
                # The start of the run may be missing, if it could not be written.
                recorded = [] if self.is_running else [self._apply_run_start(records.RunBegun(), at)]
                if record.status == "error":
                    recorded.append(events.Error(**self._common_fields(MAIN, at), message=record.result, kind="model"))
                return [*recorded, *self.apply(entry)]
            case _:
                return self.apply(entry)

    def _open_events(self, record: records.Session, entry: Entry) -> list[Event]:
        """Apply a ``Session`` record, and return its events.

        If the last run has no recorded end, first end it as ``interrupted``.
        """
        recorded = self.reopened_events()
        if self.is_running:  # the record of the run's end is missing
            lost = records.Result("interrupted", PROGRAM_ENDED, self.main.iteration, program_ended=True)
            recorded += self._apply_and_reconstruct(Entry(0, entry.time, lost))
        is_first = self.session is None
        self.apply(entry)
        if not is_first:
            return [
                *recorded,
                events.Notice(time=entry.time, message=f"The session was resumed with the model {record.model}."),
            ]
        init = self._make_event(events.Init, record, entry.time, session=record.id)
        return [*recorded, init]

    def _streamed_events(self, record: records.Message, at: float) -> Iterator[Event]:
        """Yield the events of a streaming reply: all of its thinking in one event, then all of its text in one."""
        common, message = self._common_fields(record.agent, at), record.message
        thought = "".join(block.text for block in message.blocks if isinstance(block, messages.Thinking))
        if thought.strip():
            yield events.ThinkingDelta(**common, text=thought)
        if message.text.strip():
            yield events.TextDelta(**common, text=message.text)

    def _request_events(self, record: records.RequestSent, at: float) -> list[Event]:
        """Return the event of a request: the start of an iteration, or a retry of the model call.

        Return no events for a compaction, or if the start of the iteration was emitted before.
        """
        agent, common = self.agent(record.agent), self._common_fields(record.agent, at)
        if record.compacts:
            return []
        is_reported, agent.reported_iteration = agent.reported_iteration == record.iteration, record.iteration
        if record.attempt > 1:
            retry = events.Retry(**common, attempt=record.attempt - 1, delay_s=agent.delay_s, reason=agent.error)
            return [retry] if agent.error else []
        if is_reported:  # a now line arrived in a pause before it, or while the disk was slow
            return []
        return [events.IterationStarted(**common, max_iterations=record.max_iterations or record.iteration)]

    def _usage_events(self, agent: str, usage: Usage, at: float) -> list[Event]:
        window = self.agent(agent).window
        return [] if usage == Usage() else [events.UsageReport.of(usage, window, **self._common_fields(agent, at))]
