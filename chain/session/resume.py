"""Goes on with a session whose process has ended, however that came about.

What its journal says is put back: conversations, plan, lines, agents that can be asked again. Then what a crash left
out is written, in the order in which the program would have done it, so that a crash in the middle of that only means
that the rest is written the next time::

    the open question     withdrawn
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

from chain import events
from chain.agent.children import Children
from chain.agent.executor import Executor
from chain.agent.spec import Shared
from chain.agent.tree import AgentView
from chain.journal import records
from chain.journal.beside import Kept
from chain.journal.reading import Reading
from chain.journal.records import Entry
from chain.lines.receipts import Accepted
from chain.messages import Image, with_images
from chain.session.projection import Projection
from chain.session.restore import KnownAgent, KnownLine, Restored
from chain.session.runs import SessionRuns
from chain.text.wording import PROGRAM_ENDED, counted
from chain.version import VERSION

MAX_PAST = 1_000
"""Events of the past that are told again: more rows than anybody scrolls back, and ``chain sessions show`` has all."""


@dataclass(frozen=True, slots=True)
class ReadBack:
    """A journal that was read: the state after it, its latest events, what is wrong with it, its last ``seq``.

    ``past`` holds one event more than is told again, which shows that there were earlier ones.
    """

    restored: Restored
    projection: Projection
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
    reading, restored, projection = Reading(rows), Restored(), Projection()
    past: deque[events.Event] = deque(maxlen=MAX_PAST + 1)
    for entry in reading:
        restored.add(entry if kept is None else with_kept_images(entry, kept))
        past.extend(projection.reading(entry))
    return ReadBack(restored, projection, past, reading.complaints + restored.complaints, reading.seq)


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
    """Puts a session back. Made in the step in which the chain is wired; nothing runs yet."""

    def __init__(self, read: ReadBack, session: SessionRuns, children: Children, shared: Shared) -> None:
        self._read = read
        self._known = read.restored
        self._session = session
        self._children = children
        self._shared = shared
        self._inbox = session.tree.main.inbox
        self._accepted: dict[str, Accepted] = {}
        self._returned: list[Accepted] = []
        self._made_up: list[events.Event] = []
        kinds = dict.fromkeys(agent.kind for agent in read.restored.agents.values())
        self._lost_kinds = {kind: why for kind in kinds if (why := children.problem_of(kind))}

    def bring_back(self) -> Resumed:
        """Put back what was, and write what was left out. Raises ``JournalError``; it can then be done again."""
        known = self._known
        changed = [*changes(self._read, self._session), *self._lost_agents()]
        self._shared.journal.tells(self._tell, emit=lambda event: None)
        self._bring_back()
        self._read.past.extend(self._read.projection.rest())
        # They are told with what was before, and not once more as what happens now.
        self._shared.ledger.begin_anew()
        past = tuple(self._read.past)
        was_cut = ((known.is_running and not known.only_compacts) or known.has_lost_run) and not known.was_ended
        has_earlier, made_up = len(past) > MAX_PAST, tuple(self._made_up)
        return Resumed(past[-MAX_PAST:], changed, tuple(self._returned), has_earlier, was_cut, made_up, known.draft)

    def _tell(self, entry: Entry) -> Sequence[events.Event]:
        """What is written now is told with what was before."""
        told = self._read.projection.reading(entry)
        self._read.past.extend(told)
        self._made_up.extend(told)
        return told

    def _bring_back(self) -> None:
        known, shared = self._known, self._shared
        shared.plan.restore(known.tasks)
        shared.call_ids.claim_all(known.call_ids)
        shared.refused_tools.update(known.refused_tools)
        shared.questions.asked = known.questions
        self._children.numbers.update(known.numbers)
        for number, line in enumerate(known.lines.values(), 1):
            waited = line.waited_s(time.time())
            self._accepted[line.record.id] = shared.ledger.restore(line.record, line.receipt, number, waited_s=waited)
        if (question := known.open_question) is not None:
            shared.journal.record(records.Answer(question.id, "", "withdrawn", "user", question.agent))
        executors = {agent.name: self._keep(agent) for agent in self._agents_to_keep()}
        for agent in reversed([each for each in known.agents.values() if each.is_at_work]):
            if (executor := executors.get(agent.name)) is not None:
                executor.end_here()
            name, call, used = agent.name, agent.parent_id, agent.usage
            ended = records.AgentEnded(name, call, "interrupted", agent.iteration, agent.parent, used)
            shared.journal.record(ended)
        self._session.use_instructions(known.instructions)
        self._session.use_server_tools(known.server_tools)
        main = self._session.restore(known.main.history, known.usage)
        self._restore(known.main, main)
        if known.is_running and not known.only_compacts:
            main.end_here()
        for line in known.lines.values():
            self._settle(line)
        if known.is_running:
            self._session.record_lost_run(known.main.iteration, known.main.usage)

    def _restore(self, agent: KnownAgent, executor: Executor) -> None:
        known = self._known.lines
        # Of these a refusal would give back what code has not carried out.
        open_ids = [id for id in agent.since_answer if id in self._accepted and not known[id].is_carried_out]
        lines = [self._accepted[id] for id in open_ids]
        executor.restore(agent.started, agent.results, lines, has_plan_news=agent.has_plan_news)

    def _lost_agents(self) -> Iterable[str]:
        for kind, why in self._lost_kinds.items():
            lost = counted(sum(agent.kind == kind for agent in self._known.agents.values()), "agent")
            yield f"{lost} of the kind {kind} can no longer be asked: {why}."

    def _agents_to_keep(self) -> Sequence[KnownAgent]:
        """Those that were at work, and as many of the others as are kept, the one that was used last at the end."""
        there = [agent for agent in self._known.agents.values() if agent.kind not in self._lost_kinds]
        kept = len(there) - self._children.bounds.max_kept
        return [agent for n, agent in enumerate(there) if agent.is_at_work or n >= kept]

    def _keep(self, agent: KnownAgent) -> Executor:
        view = AgentView(
            name=agent.name,
            kind=agent.kind,
            parent=agent.parent,
            task=agent.task,
            state="finished",
            since=agent.began,
            iteration=agent.iteration,
            max_iterations=agent.iteration,
            tokens=agent.usage.total_tokens,
            waiting=0,
        )
        executor = self._children.restore(view, agent.parent_id, agent.history)
        self._restore(agent, executor)
        return executor

    def _settle(self, line: KnownLine) -> None:
        """Write the receipts that a line lacks; one that is still to be delivered waits."""
        ledger, accepted = self._shared.ledger, self._accepted[line.record.id]
        if line.state == "queued" and line.entered is not None:
            point, iteration = line.entered
            ledger.settle(accepted, "delivered", iteration=iteration, point=point)
        elif line.state == "queued":
            if line.is_carried_out or line.record.kind == "stop":
                ledger.settle(accepted, "handled", iteration=0, reason=PROGRAM_ENDED)
            elif self._known.is_running and self._known.was_ended:
                ledger.settle(accepted, "returned", iteration=0, reason="interrupted")
                self._returned.append(accepted)
            else:
                if accepted.agent != self._inbox.agent:
                    accepted = ledger.readdress(accepted, self._inbox.agent, waiting=len(self._inbox) + 1)
                self._inbox.restore(accepted)
            return
        if line.withdrawn and line.state in ("queued", "delivered"):
            ledger.settle(accepted, "returned", iteration=0, reason=line.withdrawn)
            self._returned.append(accepted)
        elif line.state == "returned" and self._known.is_running and accepted.on_record in self._known.withdrawn:
            self._returned.append(accepted)


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
    known, spec, before = read.restored, session.spec, read.restored.session
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
        calls = [known.main, *(agent for agent in known.agents.values() if agent.is_at_work)]
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
