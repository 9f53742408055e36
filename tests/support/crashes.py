"""Sessions after a crash: resume a session from the start of its journal, and check both."""

from __future__ import annotations

import io
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from double import check_messages

from chain import events
from chain.agent.history import AgentState
from chain.journal.reading import Reading
from chain.messages import to_json, tool_results, user_text
from chain.model import Model
from chain.session.restored_state import events_of_journal
from chain.session.resume import LoadedSession, load_journal

from .disks import MemoryFile
from .sessions import Session, open_session

ANSWER = "rules: [{text: Gone on.}]"
"""A model with one answer."""


def reopen(data: bytes, model: Model | str = ANSWER, **options: Any) -> AbstractAsyncContextManager[Session]:
    """Resume the session of a journal that may end anywhere. The options are those of ``open_session``."""
    file, read = load_crashed(data)
    return open_session(model, file=file, resume=read, **options)


def load_crashed(data: bytes) -> tuple[MemoryFile, LoadedSession]:
    """Return a journal that may end anywhere, as a file, and the session that is read from it."""
    file = MemoryFile()
    # ``DiskFile`` ends a torn row before it writes the next record.
    file.data = file.synced = data if data.endswith(b"\n") or not data else data + b"\0\n"
    return file, load_journal(io.BytesIO(data))


def check_readable(session: Session) -> None:
    """Check that a journal leads to the emitted events, and random prefixes of it to valid conversations.

    Only one session in twelve is checked, since the check takes longer than most sessions.
    """
    data = session.file.data
    if zlib.crc32(data) % 12:
        return
    check_replayed_events(session)
    check_conversations(load_journal(io.BytesIO(data)))
    for n in range(2):
        end = zlib.crc32(data, n) % (len(data) + 1)
        check_conversations(load_journal(io.BytesIO(data[:end])))


def check_conversations(read: LoadedSession) -> None:
    """I2: check that the next request of each agent is valid, once its open calls are answered."""
    for agent in read.state.agents.values():
        if agent.history.conversation.messages:
            assert check_messages(_answered(agent)) is None


def _answered(agent: AgentState) -> list[dict[str, Any]]:
    messages = list(agent.history.conversation.messages)
    if agent.history.conversation.open_calls:
        messages.append(tool_results(agent.history.conversation.stub_results(agent.started)))
    messages.append(user_text("and the next"))
    return [to_json(message) for message in messages]


_KEYS: dict[type[events.Event], Callable[[Any], object]] = {
    events.Reply: lambda e: (e.iteration, e.text, e.tool_calls),
    events.ToolResult: lambda e: (e.iteration, e.id, e.name, e.text, e.is_error),
    events.UserInterruption: lambda e: (
        *(e.ids, e.message, e.iteration, e.point, e.prompt_source, e.target_agent),
        *(e.parent_id, e.waited_s, e.remaining, e.tools_skipped),
    ),
    events.Compaction: lambda e: (e.iteration, e.by, e.tokens_before, e.tokens_after, e.summary),
    events.Receipt: lambda e: (e.id, e.text, e.state, e.iteration, e.point, e.waited_s, e.reason),
    events.PlanChanged: lambda e: (e.tasks, e.by),
    events.Question: lambda e: (e.id, e.kind, e.text, e.options, e.tool_call_id, e.name, e.preview),
    events.Answer: lambda e: (e.id, e.text, e.decision, e.by),
    events.AgentStarted: lambda e: (e.name, e.kind, e.parent_id, e.task),
    events.AgentEnded: lambda e: (e.name, e.kind, e.parent_id, e.task, e.status),
    events.LineQueued: lambda e: (
        *(e.id, e.text, e.kind, e.urgency, e.target_agent, e.iteration),
        *(e.waiting, e.adjustment),
    ),
    events.RunStarted: lambda e: (e.id, e.query),
    events.Result: lambda e: (
        *(e.status, e.result, e.replies, e.iterations, e.usage, e.partial, e.phase_reached),
        e.termination_reason,
    ),
}
"""The recorded fields of each event. Calls and iterations are missing: those cut early have events and no record."""

_NEVER_RECORDED = ("refused", "unsent", "started", "failed")


def check_replayed_events(session: Session) -> None:
    """Check that the journal leads to the emitted events, for each agent and type in the same order."""
    replayed = _by_agent(events_of_journal(Reading(io.BytesIO(session.file.data))))
    emitted = _by_agent(session.events)
    for key in replayed.keys() | emitted.keys():
        from_journal, live = replayed.get(key, []), emitted.get(key, [])
        _, type_ = key
        if type_ == events.ToolResult.type:  # calls that could not run are recorded with the results of the others
            from_journal, live = sorted(from_journal, key=str), sorted(live, key=str)
        # The last events may be recorded and not yet emitted, because the record is not on disk.
        assert from_journal[: len(live)] == live, f"{key}: {from_journal} is replayed, and {live} was emitted"


def _by_agent(all_events: Iterable[events.Event]) -> dict[tuple[str, str], list[object]]:
    found: dict[tuple[str, str], list[object]] = defaultdict(list)
    for event in all_events:
        key = _KEYS.get(type(event))
        unrecorded = isinstance(event, events.Receipt | events.Compaction) and event.state in _NEVER_RECORDED
        if key is not None and not unrecorded:
            found[event.agent, event.type].append(key(event))
    return found


def check_settled(records: Sequence[Mapping[str, Any]]) -> None:
    """Check a journal after a resume and a run: all work has ended, and each line has exactly one final state."""
    at_work: list[str] = []
    is_running, final, delivered, changed = False, defaultdict[str, list[str]](list), list[str](), list[str]()
    questions: list[str] = []
    for record in records:
        match record:
            case {"type": "agent_started", "name": str(name)}:
                at_work.append(name)
            case {"type": "agent_ended", "name": str(name)}:
                at_work.remove(name)
            case {"type": "message", "agent": "main", "point": "start" | "A"}:
                is_running = True
            case {"type": "result"}:
                is_running = False
            case {"type": "question", "id": str(id)}:
                questions.append(id)
            case {"type": "answer", "id": str(id)}:
                questions.remove(id)
            case {"type": "receipt", "id": str(id), "state": str(state)} if state != "queued":
                final[id].append(state)
            case {"type": "session"}:
                assert not at_work, f"{at_work} did not end"
                assert not is_running, "a run has no result"
            case _:
                pass
        delivered += record["line_ids"] if record["type"] == "message" else []
        changed += [record["line_id"]] if record.get("line_id") else []
    lines = {record["id"] for record in records if record["type"] == "line"}
    assert not questions, f"{questions} are open"
    assert set(final) == lines, f"I1: {lines ^ set(final)} have no end"
    assert all(len(states) == 1 or states == ["delivered", "returned"] for states in final.values()), f"I1: {final}"
    assert len(delivered) == len(set(delivered)), "a line was delivered twice"
    assert len(changed) == len(set(changed)), "a line changed the plan twice"


def check_resumed(session: Session) -> None:
    """Check a session that was resumed and then had a run."""
    check_settled(session.records)
    for request in session.model.requests:
        assert check_messages([to_json(message) for message in request.messages]) is None, "I2"
    assert not session.chain.lines.waiting


def check_needs_no_repair(session: Session) -> None:
    """Check that a session that was resumed and closed needs no repair."""
    read = load_journal(io.BytesIO(session.file.data))
    assert not read.state.is_running
    assert not read.state.question_log.open
    assert not any(agent.is_at_work for agent in read.state.agents.values())
    assert read.complaints == ()
