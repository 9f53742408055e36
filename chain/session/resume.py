"""Resume a session whose process has ended.

The state is read from the journal (``state``). Then the records that a crash prevented are written in this order. If
the program crashes again meanwhile, the next resumption writes the remaining ones::

    open questions        withdrawn
    each agent at work    its open calls answered, the note that the program ended, its end; the deepest first
    the main agent        its open calls answered, and the note that the program ended
    each line             its receipt, if the line was delivered or carried out, or the user had ended the run;
                          otherwise it waits in the main agent's inbox
    each job              its end and its line
    the run               its result
    the session           that it was resumed
"""

from __future__ import annotations

import time
from base64 import b64encode
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import trio

from chain import events
from chain.agent.children import Children
from chain.agent.history import AgentState
from chain.agent.spec import Shared
from chain.journal import records
from chain.journal.attachments import ReadAttachment
from chain.journal.reading import Reading
from chain.journal.records import Entry
from chain.lines.accepted import AcceptedLine
from chain.messages import Image, replace_images
from chain.session.jobs import record_lost_jobs
from chain.session.restored_state import RestoredState
from chain.session.runs import SessionRuns
from chain.text.wording import MAIN, PROGRAM_ENDED, pluralize
from chain.version import VERSION

MAX_PAST = 1_000
"""The number of latest events that a resumed session shows again; ``chain sessions show`` shows all."""


@dataclass(frozen=True, slots=True)
class LoadedSession:
    """The result of reading a journal.

    ``past`` are the latest events: up to ``MAX_PAST``, and one more if there are earlier ones. ``complaints`` are
    sentences about faults of the journal. ``seq`` is the number of the last record.
    """

    state: RestoredState
    past: deque[events.Event]
    complaints: tuple[str, ...]
    seq: int


@dataclass(frozen=True, slots=True)
class Resumed:
    """The data that front ends show of a resumed session.

    ``past`` are the latest events; ``has_earlier``: there were more. ``recovered`` are the events of the records that a
    crash prevented. ``changes`` are sentences about faults of the journal and changes of the configuration.
    ``returned`` are lines that go back to the user's editor, because the user ended the last run or the service refused
    them. ``was_cut``: the last run ended because its process ended. ``draft`` is the text that was in the editor.
    """

    past: Sequence[events.Event]
    changes: Sequence[str]
    returned: Sequence[AcceptedLine] = ()
    has_earlier: bool = False
    was_cut: bool = False
    recovered: Sequence[events.Event] = ()
    draft: str = ""


def load_journal(rows: Iterable[bytes], read_image: ReadAttachment | None = None) -> LoadedSession:
    """Read a journal and return its session. Without ``read_image``, images have no content."""
    reading, state = Reading(rows), RestoredState()
    past: deque[events.Event] = deque(maxlen=MAX_PAST + 1)
    for entry in reading:
        past.extend(state.read(entry if read_image is None else with_stored_images(entry, read_image)))
    return LoadedSession(state, past, reading.complaints + state.complaints, reading.seq)


def with_stored_images(entry: Entry, read_image: ReadAttachment) -> Entry:
    """Return an entry with the content of its images. The content of a deleted image stays missing."""

    def load(image: Image) -> Image:
        content = read_image(image.digest)
        return image if content is None else replace(image, data=b64encode(content).decode(), size=len(content))

    match entry.record:
        case (records.Line(images=images) | records.ToolFinished(images=images)) as record if images:
            return replace(entry, record=replace(record, images=tuple(map(load, images))))
        case records.Message(message=message) as record if message.images:
            blocks = tuple(replace_images(block, load) for block in message.blocks)
            return replace(entry, record=replace(record, message=replace(message, blocks=blocks)))
        case _:
            return entry


class SessionRestorer:
    """The writer of the records that a crash prevented. It runs before any task of the chain."""

    def __init__(self, loaded: LoadedSession, session: SessionRuns, children: Children, shared: Shared) -> None:
        self._loaded = loaded
        self._state = loaded.state
        self._session = session
        self._children = children
        self._shared = shared
        self._recovered: list[events.Event] = []
        kinds = dict.fromkeys(agent.kind for agent in loaded.state.children)
        self._lost_kinds = {kind: why for kind in kinds if (why := children.problem_of(kind))}

    def resume(self) -> Resumed:
        """Write the missing records, and return the data for front ends.

        Raise ``JournalError`` if a record cannot be written. The session can then be resumed again.
        """
        state = self._state
        changed = [*describe_changes(self._loaded, self._session), *self._describe_lost_agents()]
        was_cut = ((state.is_running and not state.only_compacts) or state.has_lost_run) and not state.was_ended
        self._shared.journal.connect(self._apply, emit=lambda event: None)
        returned = self._write_missing()
        self._loaded.past.extend(state.reopened_events())
        # The receipts of these records are among the past events, so the next result must not list them.
        self._shared.ledger.reset_outcomes()
        past = tuple(self._loaded.past)
        has_earlier, recovered = len(past) > MAX_PAST, tuple(self._recovered)
        return Resumed(past[-MAX_PAST:], changed, returned, has_earlier, was_cut, recovered, state.draft)

    def _apply(self, entry: Entry) -> Sequence[events.Event]:
        """Apply a record that was missing. Add its events to the past ones, and return them."""
        recorded = self._state.read(entry)
        self._loaded.past.extend(recorded)
        self._recovered.extend(recorded)
        return recorded

    def _write_missing(self) -> Sequence[AcceptedLine]:
        """Write the missing records. Return the lines that go back to the user (``Resumed.returned``)."""
        state, journal = self._state, self._shared.journal
        was_running, was_ended, withdrawn = state.is_running, state.was_ended, tuple(state.withdrawn)
        for question in tuple(state.question_log.open.values()):
            journal.record(records.Answer(question.id, "", "withdrawn", "user", question.agent))
        executors = {agent.name: self._children.restore(agent) for agent in self._agents_to_keep()}
        for agent in reversed([each for each in state.children if each.is_at_work]):
            if (executor := executors.get(agent.name)) is not None:
                executor.complete_lost_run()
            name, call, used = agent.name, agent.parent_id, agent.usage
            journal.record(records.AgentEnded(name, call, "interrupted", agent.iteration, agent.parent, used))
        self._session.use_context()
        if was_running and not state.only_compacts:
            self._session.executor.complete_lost_run()
        else:
            self._session.executor.catch_up()  # a full disk may have left calls open
        returned = [a for a in state.lines.on_record.values() if self._settle(a, withdrawn, was_ended=was_ended)]
        self._readdress()
        record_lost_jobs(state, journal, self._session.tree.main.inbox)
        if was_running:
            main = state.main
            journal.record(records.Result("interrupted", PROGRAM_ENDED, main.iteration, main.usage, program_ended=True))
        return returned

    def _settle(self, accepted: AcceptedLine, withdrawn: Sequence[str], *, was_ended: bool) -> bool:
        """Write the missing receipts of a line. Return whether the line goes back to the user."""
        ledger, state = self._shared.ledger, self._state
        accepted.accepted_monotonic = trio.current_time() - accepted.waited_s(time.time())
        if accepted.state == "queued" and accepted.delivered_at is not None:
            point, iteration = accepted.delivered_at
            ledger.settle(accepted, "delivered", iteration=iteration, point=point)
        elif accepted.state == "queued" and (accepted.is_carried_out or accepted.record.kind == "stop"):
            ledger.settle(accepted, "handled", iteration=0, reason=PROGRAM_ENDED)
        elif accepted.state == "queued" and state.is_running and was_ended and accepted.line.kind != "job":
            ledger.settle(accepted, "returned", iteration=0, reason="interrupted")
            return True
        if accepted.withdrawn and accepted.state == "delivered":
            ledger.settle(accepted, "returned", iteration=0, reason=accepted.withdrawn)
            return True
        return accepted.state == "returned" and state.is_running and accepted.on_record in withdrawn

    def _readdress(self) -> None:
        """Move the lines of other agents to the main agent's inbox, in the order of acceptance.

        Lines that were to act at once but did not are moved as well.
        """
        lines = self._state.lines
        waiting = sorted((*lines.waiting, *lines.unfinished()), key=attrgetter("number"))
        for place, accepted in enumerate(waiting, 1):
            if accepted.agent != MAIN:
                self._shared.ledger.readdress(accepted, MAIN, waiting=place, urgency="next")

    def _describe_lost_agents(self) -> Iterable[str]:
        """Yield a sentence for each kind of agent that can no longer be asked."""
        for kind, why in self._lost_kinds.items():
            lost = pluralize(sum(agent.kind == kind for agent in self._state.children), "agent")
            yield f"{lost} of the kind {kind} can no longer be asked: {why}."

    def _agents_to_keep(self) -> Sequence[AgentState]:
        """Return the agents to restore: those that were at work, and the latest others up to the limit."""
        agents = [agent for agent in self._state.children if agent.kind not in self._lost_kinds]
        excess = len(agents) - self._children.bounds.max_kept
        return [agent for n, agent in enumerate(agents) if agent.is_at_work or n >= excess]


def record_opening(session: SessionRuns, shared: Shared, *, session_context: str) -> None:
    """Record that a session was opened or resumed. Raise ``JournalError`` if this cannot be recorded."""
    spec, journal = session.spec, shared.journal
    tools = tuple(tool.name for tool in spec.registry)
    workspace = str(shared.workspace)
    journal.record(records.Session(journal.id, VERSION, spec.model.name, workspace, tools, session_context))


def describe_changes(loaded: LoadedSession, session: SessionRuns) -> Sequence[str]:
    """Return sentences about faults of a resumed session and about differences from its earlier configuration."""
    known, spec, before = loaded.state, session.spec, loaded.state.session
    found = list(loaded.complaints)
    if before is not None and _version_key(before.version) > _version_key(VERSION):
        found.append(
            f"The session was last written by chain {before.version}; records unknown to {VERSION} are preserved."
        )
    if known.model and known.model != spec.model.name:
        found.append(f"The model is now {spec.model.name}; it was {known.model}.")
    if before is not None and before.tools:
        now = {tool.name for tool in spec.registry}
        if removed := [name for name in before.tools if name not in now]:
            found.append(f"Tools removed since then: {', '.join(removed)}.")
        if added := sorted(now.difference(before.tools)):
            found.append(f"Tools added since then: {', '.join(added)}.")
    if known.is_running:
        calls = [known.main, *(agent for agent in known.children if agent.is_at_work)]
        ran = sum(
            call.id in agent.started and call.id not in agent.results
            for agent in calls
            for call in agent.history.conversation.open_calls
        )
        tools = f", with {pluralize(ran, 'tool')} running" if ran else ""
        found.append(f"The program ended in the middle of the last run{tools}.")
    return found


def _version_key(version: str) -> tuple[int, ...]:
    """Return the numbers in a version as a tuple, by which versions can be compared."""
    return tuple(int(part) for part in version[:100].split(".") if part.isascii() and part.isdecimal())
