"""Goes on with a session whose process has ended, however that came about.

Its state is that of its journal (``state``). What a crash left out is written, in the order in which the program would
have done it, so that a crash in the middle of that only means that the rest is written the next time::

    open questions        withdrawn
    each agent at work    its open calls answered, the note that the program ended, its end; the deepest first
    the main agent        the same
    each line             its receipt, if it is in the conversation, or done, or the user had ended the run; else it
                          waits in the main agent's inbox
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
from chain.journal.beside import Kept
from chain.journal.reading import Reading
from chain.journal.records import Entry
from chain.lines.accepted import Accepted
from chain.messages import Image, with_images
from chain.session.runs import SessionRuns
from chain.session.state import State
from chain.text.wording import MAIN, PROGRAM_ENDED, counted
from chain.version import VERSION

MAX_PAST = 1_000
"""Events of the past that are told again: more rows than anybody scrolls back, and ``chain sessions show`` has all."""


@dataclass(frozen=True, slots=True)
class ReadBack:
    """A journal that was read: the state after it, its latest events, what is wrong with it, its last ``seq``.

    ``past`` holds one event more than is told again, which shows that there were earlier ones.
    """

    state: State
    past: deque[events.Event]
    complaints: tuple[str, ...]
    seq: int


@dataclass(frozen=True, slots=True)
class Resumed:
    """What is to be told of a session that was resumed.

    ``past`` are its latest events, as its journal tells them; those of what a crash left out are among them.
    ``changes`` are sentences: what is wrong with the journal, and what is no longer as it was. ``returned`` are lines
    that a refusal, or the end of a run that the user ended, gave back: whoever had them again by then has lost them in
    the crash. ``has_earlier``: there were more events than are told. ``was_cut``: the last run has ended with its
    process, and not because the user wanted it to end; none has begun since. ``made_up`` are the events among ``past``
    of what a crash left out, which nobody was told of before. ``draft`` is what was in the editor.
    """

    past: Sequence[events.Event]
    changes: Sequence[str]
    returned: Sequence[Accepted] = ()
    has_earlier: bool = False
    was_cut: bool = False
    made_up: Sequence[events.Event] = ()
    draft: str = ""


def read_back(rows: Iterable[bytes], kept: Kept | None = None) -> ReadBack:
    """Read a journal, and the images that are ``kept`` beside it."""
    reading, state = Reading(rows), State()
    past: deque[events.Event] = deque(maxlen=MAX_PAST + 1)
    for entry in reading:
        past.extend(state.read(entry if kept is None else with_kept_images(entry, kept)))
    return ReadBack(state, past, reading.complaints + state.complaints, reading.seq)


def with_kept_images(entry: Entry, kept: Kept) -> Entry:
    """The entry with its images as they are kept beside the journal; those that are gone have no data."""

    def found(image: Image) -> Image:
        content = kept(image.digest)
        return image if content is None else replace(image, data=b64encode(content).decode(), size=len(content))

    match entry.record:
        case (records.Line(images=images) | records.ToolFinished(images=images)) as record if images:
            return replace(entry, record=replace(record, images=tuple(map(found, images))))
        case records.Message(message=message) as record if message.images:
            blocks = tuple(with_images(block, found) for block in message.blocks)
            return replace(entry, record=replace(record, message=replace(message, blocks=blocks)))
        case _:
            return entry


class Resuming:
    """Writes what a crash left out. Made in the step in which the chain is wired; nothing runs yet."""

    def __init__(self, read: ReadBack, session: SessionRuns, children: Children, shared: Shared) -> None:
        self._read = read
        self._state = read.state
        self._session = session
        self._children = children
        self._shared = shared
        self._made_up: list[events.Event] = []
        kinds = dict.fromkeys(agent.kind for agent in read.state.children)
        self._lost_kinds = {kind: why for kind in kinds if (why := children.problem_of(kind))}

    def resume(self) -> Resumed:
        """Write what was left out. Raise ``JournalError``; it can then be done again."""
        state = self._state
        changed = [*changes(self._read, self._session), *self._lost_agents()]
        was_cut = ((state.is_running and not state.only_compacts) or state.has_lost_run) and not state.was_ended
        self._shared.journal.connect(self._tell, emit=lambda event: None)
        returned = self._write()
        self._read.past.extend(state.undone())
        # They are told with what was before, and not once more as what happens now.
        self._shared.ledger.begin_anew()
        past = tuple(self._read.past)
        has_earlier, made_up = len(past) > MAX_PAST, tuple(self._made_up)
        return Resumed(past[-MAX_PAST:], changed, returned, has_earlier, was_cut, made_up, state.draft)

    def _tell(self, entry: Entry) -> Sequence[events.Event]:
        """What is written now is told with what was before."""
        told = self._state.read(entry)
        self._read.past.extend(told)
        self._made_up.extend(told)
        return told

    def _write(self) -> Sequence[Accepted]:
        """Write what was left out, and return the lines that come back to the user."""
        state, journal = self._state, self._shared.journal
        was_running, was_ended, withdrawn = state.is_running, state.was_ended, tuple(state.withdrawn)
        for question in tuple(state.asked.open.values()):
            journal.record(records.Answer(question.id, "", "withdrawn", "user", question.agent))
        executors = {agent.name: self._children.restore(agent) for agent in self._agents_to_keep()}
        for agent in reversed([each for each in state.children if each.is_at_work]):
            if (executor := executors.get(agent.name)) is not None:
                executor.end_here()
            name, call, used = agent.name, agent.parent_id, agent.usage
            journal.record(records.AgentEnded(name, call, "interrupted", agent.iteration, agent.parent, used))
        self._session.use_instructions()
        self._session.use_server_tools()
        if was_running and not state.only_compacts:
            self._session.executor.end_here()
        returned = [a for a in state.lines.on_record.values() if self._settle(a, withdrawn, was_ended=was_ended)]
        self._readdress()
        if was_running:
            main = state.main
            journal.record(records.Result("interrupted", PROGRAM_ENDED, main.iteration, main.usage, program_ended=True))
        return returned

    def _settle(self, accepted: Accepted, withdrawn: Sequence[str], *, was_ended: bool) -> bool:
        """Write the receipts that a line lacks. Return whether it comes back to the user."""
        ledger, state = self._shared.ledger, self._state
        accepted.since = trio.current_time() - accepted.waited_s(time.time())
        if accepted.state == "queued" and accepted.entered is not None:
            point, iteration = accepted.entered
            ledger.settle(accepted, "delivered", iteration=iteration, point=point)
        elif accepted.state == "queued" and (accepted.is_carried_out or accepted.record.kind == "stop"):
            ledger.settle(accepted, "handled", iteration=0, reason=PROGRAM_ENDED)
        elif accepted.state == "queued" and state.is_running and was_ended:
            ledger.settle(accepted, "returned", iteration=0, reason="interrupted")
            return True
        if accepted.withdrawn and accepted.state == "delivered":
            ledger.settle(accepted, "returned", iteration=0, reason=accepted.withdrawn)
            return True
        return accepted.state == "returned" and state.is_running and accepted.on_record in withdrawn

    def _readdress(self) -> None:
        """Let what waited for an agent below, or was to act at once, wait for the main agent, in its place."""
        lines = self._state.lines
        left = sorted((*lines.waiting, *lines.undone()), key=attrgetter("number"))
        for place, accepted in enumerate(left, 1):
            if accepted.agent != MAIN:
                self._shared.ledger.readdress(accepted, MAIN, waiting=place, urgency="next")

    def _lost_agents(self) -> Iterable[str]:
        for kind, why in self._lost_kinds.items():
            lost = counted(sum(agent.kind == kind for agent in self._state.children), "agent")
            yield f"{lost} of the kind {kind} can no longer be asked: {why}."

    def _agents_to_keep(self) -> Sequence[AgentState]:
        """Those that were at work, and as many of the others as are kept, the one that was used last at the end."""
        there = [agent for agent in self._state.children if agent.kind not in self._lost_kinds]
        kept = len(there) - self._children.bounds.max_kept
        return [agent for n, agent in enumerate(there) if agent.is_at_work or n >= kept]


def record_opening(session: SessionRuns, shared: Shared, *, whereabouts: str) -> None:
    """Write the record of a session that is opened, or resumed. Raises ``JournalError``.

    ``whereabouts`` is what its agents are told of where they are.
    """
    spec, journal = session.spec, shared.journal
    tools = tuple(tool.name for tool in spec.registry)
    workspace = str(shared.workspace)
    journal.record(records.Session(journal.id, VERSION, spec.model.name, workspace, tools, whereabouts))


def changes(read: ReadBack, session: SessionRuns) -> Sequence[str]:
    """What the user is to know of a session that is resumed: what is wrong with it, and what is not as it was."""
    known, spec, before = read.state, session.spec, read.state.session
    found = list(read.complaints)
    if before is not None and _number(before.version) > _number(VERSION):
        found.append(f"The session was last written by chain {before.version}; what {VERSION} does not know is kept.")
    if known.model and known.model != spec.model.name:
        found.append(f"{known.model} answered before; now {spec.model.name} does.")
    if before is not None and before.tools:
        now = {tool.name for tool in spec.registry}
        if gone := [name for name in before.tools if name not in now]:
            found.append(f"Tools that are no longer there: {', '.join(gone)}.")
        if new := sorted(now.difference(before.tools)):
            found.append(f"Tools that were not there before: {', '.join(new)}.")
    if known.is_running:
        calls = [known.main, *(agent for agent in known.children if agent.is_at_work)]
        ran = sum(
            call.id in agent.started and call.id not in agent.results
            for agent in calls
            for call in agent.history.conversation.open_calls
        )
        tools = f", {counted(ran, 'tool')} running" if ran else ""
        found.append(f"The program ended in the middle of the last run{tools}.")
    return found


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version[:100].split(".") if part.isascii() and part.isdecimal())
