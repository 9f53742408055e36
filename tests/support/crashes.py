"""What a crash leaves of a session, and what can be made of it."""

from __future__ import annotations

import io
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from double import check_messages

from chain import events
from chain.errors import SessionError
from chain.messages import to_json, tool_results
from chain.session.reading import Reading
from chain.session.restore import KnownAgent
from chain.session.resume import ReadBack, read_back
from chain.session.retelling import retell

from .disks import MemoryFile
from .sessions import Session


def left(data: bytes) -> tuple[MemoryFile, ReadBack]:
    """A journal that ends anywhere, as a file to go on with, and what it says."""
    file = MemoryFile()
    # What ``DiskFile`` writes before the next record.
    file.data = file.synced = data if data.endswith(b"\n") or not data else data + b"\0\n"
    return file, read_back(io.BytesIO(data))


def check_readable(session: Session) -> None:
    """The journal tells what was heard, and any beginning of it is one of valid conversations."""
    data = session.file.data
    check_retold(session)
    check_conversations(read_back(io.BytesIO(data)))
    for n in range(2):
        end = zlib.crc32(data, n) % (len(data) + 1)
        check_conversations(read_back(io.BytesIO(data[:end])))


def check_conversations(read: ReadBack) -> None:
    """I2: what each agent would be asked with, once its open calls are answered."""
    for agent in (read.restored.main, *read.restored.agents.values()):
        if agent.conversation.messages:
            assert check_messages(_answered(agent)) is None


def _answered(agent: KnownAgent) -> list[dict[str, Any]]:
    messages = list(agent.conversation.messages)
    if agent.conversation.open_calls:
        messages.append(tool_results(agent.conversation.repair(agent.started)))
    return [to_json(message) for message in messages]


def check_damaged(rows: list[bytes]) -> None:
    """A journal that lost a record, or has one twice, makes valid conversations, or an error says which record."""
    try:
        read = read_back(rows)
    except SessionError as error:
        assert "record " in str(error)
    else:
        check_conversations(read)
        assert len(read.faults) == 1, read.faults
        assert "record" in read.faults[0]


_KEYS: dict[type[events.Event], Callable[[Any], object]] = {
    events.RunStarted: lambda e: (e.id, e.query),
    events.IterationStarted: lambda e: (e.iteration, e.max_iterations),
    events.Reply: lambda e: (e.iteration, e.text, e.tool_calls),
    events.ToolResult: lambda e: (e.iteration, e.id, e.name, e.text, e.is_error),
    events.LineQueued: lambda e: (e.id, e.text, e.kind, e.urgency, e.target_agent, e.origin, e.adjustment),
    events.UserInterruption: lambda e: (
        *(e.ids, e.message, e.iteration, e.point, e.prompt_source, e.target_agent),
        *(e.parent_id, e.remaining, e.tools_skipped),
    ),
    events.Receipt: lambda e: (e.id, e.text, e.state, e.iteration, e.point, e.waited_s, e.reason),
    events.PlanChanged: lambda e: (e.tasks, e.by),
    events.Question: lambda e: (e.id, e.kind, e.text, e.options, e.tool_call_id, e.name, e.preview),
    events.Answer: lambda e: (e.id, e.text, e.decision, e.by),
    events.AgentStarted: lambda e: (e.name, e.kind, e.parent_id, e.task),
    events.AgentEnded: lambda e: (e.name, e.kind, e.parent_id, e.task, e.status),
    events.Result: lambda e: (e.status, e.result, e.replies, e.iterations, e.usage, e.partial, e.termination_reason),
}
"""What a journal tells of each event; the calls that began are more in what was heard, since some could not be run."""

_NEVER_RECORDED = ("refused", "unsent")


def check_retold(session: Session) -> None:
    """What the journal tells is what was heard, for each agent and type in the same order."""
    told = _by_agent(retell(Reading(io.BytesIO(session.file.data))))
    heard = _by_agent(session.events)
    for key in told.keys() | heard.keys():
        mine, theirs = told.get(key, []), heard.get(key, [])
        # The last ones may be on record and still wait for the disk.
        assert mine[: len(theirs)] == theirs, f"{key}: {mine} is told, and {theirs} was heard"
    assert {id for _, id in _calls(retell(Reading(io.BytesIO(session.file.data))))} <= {
        id for _, id in _calls(session.events)
    }


def _by_agent(all_events: Iterable[events.Event]) -> dict[tuple[str, str], list[object]]:
    found: dict[tuple[str, str], list[object]] = defaultdict(list)
    for event in all_events:
        key = _KEYS.get(type(event))
        if key is not None and not (isinstance(event, events.Receipt) and event.state in _NEVER_RECORDED):
            found[event.agent, event.type].append(key(event))
    return found


def _calls(all_events: Iterable[events.Event]) -> set[tuple[str, str]]:
    return {(event.agent, event.id) for event in all_events if isinstance(event, events.ToolCall)}
