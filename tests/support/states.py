"""Compare the state of a running session with the state that its journal leads to."""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING

from hypothesis import currently_in_test_context

from chain.agent.history import AgentState
from chain.events import Event
from chain.journal.reading import Reading
from chain.journal.records import Entry
from chain.lines.accepted import AcceptedLine
from chain.session.restored_state import RestoredState
from chain.session.state import State

if TYPE_CHECKING:
    from .sessions import Session


def fingerprint(state: State) -> object:
    """Return the parts of a state that may change, and the lengths of lists that only grow."""
    lines = state.lines
    return (
        (state.model, state.mode, state.effort, state.instructions, state.server_tools),
        (state.draft, state.session, tuple(state.added_directories)),
        (state.is_running, state.is_at_limit, state.has_lost_run, state.was_ended, state.only_compacts, state.usage),
        (state.runs, state.first_query, state.changed),
        [(point.query, len(point.history[0][0]), tuple(point.changes)) for point in state.checkpoints],
        [(job.started, job.start_time, job.ended, job.line_id) for job in state.jobs.values()],
        (tuple(state.replies), len(state.receipts), tuple(state.withdrawn)),
        (dict(state.numbers), len(state.call_ids.used), set(state.refused_tools)),
        (state.plan.tasks, state.plan.revision, state.plan.last_by),
        (state.question_log.count, tuple(state.question_log.open), len(state.question_log.latest)),
        [_line(a) for a in lines.waiting],
        [_line(a) for a in lines.unfinished()],
        [_line(a) for a in list(lines.on_record.values())[-3:]],
        (len(lines.on_record), len(lines.by_id)),
        [_agent(agent) for agent in state.agents.values()],
    )


def _line(line: AcceptedLine) -> object:
    receipt = None if line.receipt is None else (line.receipt.state, line.receipt.point, line.receipt.reason)
    return line.id, line.record, line.line, line.number, receipt, line.delivered_at, line.withdrawn, line.is_carried_out


def _agent(agent: AgentState) -> object:
    history, conversation = agent.history, agent.history.conversation
    window_usage = history.window_usage
    return (
        (agent.name, agent.kind, agent.parent, agent.parent_id, agent.task, agent.is_at_work, agent.iteration),
        (agent.usage, agent.is_summarizing, set(agent.started), dict(agent.results), set(agent.finished)),
        (tuple(agent.since_answer), agent.news.known, agent.news.sent),
        (len(conversation.messages), conversation.messages[-1:], conversation.state, conversation.open_calls),
        (
            window_usage._known_tokens,
            window_usage._chars_since,
            window_usage._chars,
            window_usage._counts_reply,
            window_usage._counted,
        ),
        (history.words.run, history.words.select_rows(2_000), history.compacted),
    )


ONE_IN = 8
"""Random tests watch one of this number of sessions, since that takes long. Other tests watch every session."""

_random = count()


def should_watch() -> bool:
    """Return whether to watch the session that is being opened."""
    return not currently_in_test_context() or next(_random) % ONE_IN == 0


def watch_states(session: Session) -> None:
    """Record the state of a running session after each record."""
    if session.is_watched:
        return
    session.is_watched = True
    journal, state = session.chain._shared.journal, session.chain.state
    apply = journal._apply

    def apply_and_watch(entry: Entry) -> Sequence[Event]:
        new_events = apply(entry)
        # A record that could not be written has the number of the one before it.
        session.has_unwritten |= entry.seq in session.states
        session.states[entry.seq] = fingerprint(state)
        return new_events

    journal.connect(apply_and_watch, journal._emit)


def check_states(session: Session) -> None:
    """Check that after each record the running session had the state of a reader of the journal."""
    if session.has_unwritten or not session.is_watched:
        return
    state = RestoredState()
    for entry in Reading(io.BytesIO(session.file.data)):
        state.read(entry)
        if entry.seq in session.states:
            assert fingerprint(state) == session.states[entry.seq], f"record {entry.seq}: {entry.record}"
