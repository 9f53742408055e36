"""A session that accepts lines and runs chains, as a front end sees it.

A line goes in through ``submit``, which is one synchronous step in the trio thread: whether a run is active and what
becomes of the line are decided together, so a line that races with the end of a run is either an interruption or a new
run, never nothing. Everything that happens comes out as events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal

import trio

from chain import events
from chain.agent.questions import Answerer
from chain.agent.spec import Shared
from chain.agent.tree import AgentView
from chain.agent.window import WindowView
from chain.config.retries import Retries
from chain.errors import UserError
from chain.events import Origin
from chain.journal.records import Draft, InstructionsRead
from chain.lines.accepted import Accepted
from chain.lines.inbox import find_waiting_line
from chain.lines.parse import Line, Urgency, parse_line
from chain.lines.receipts import MAX_REFUSED, Settled
from chain.messages import Image, Usage
from chain.model import Model
from chain.session.feed import Broadcaster, Feed, Listener
from chain.session.intake import Intake, Sent, Submitted
from chain.session.resume import Resumed
from chain.session.runs import SessionRuns
from chain.session.snapshot import Snapshot
from chain.text.wording import counted
from chain.tools.named_files import MAX_NAMED, MAX_READ, image_of
from chain.tools.paths import MAX_WHOLE
from chain.tools.tool import Tool, delegates, import_checks
from chain.version import VERSION

if TYPE_CHECKING:
    from chain.tools.mcp.running import Servers, ServerView

__all__ = ["CLOSING_S", "AgentView", "Answerer", "Chain", "Submitted"]

CLOSING_S = 5.0
"""Grace period for tools that shield themselves from cancellation."""


def _read_images(images: Sequence[tuple[str, bytes] | Image]) -> tuple[Image, ...] | str:
    """The images of a line, or why it cannot have them."""
    if len(images) > MAX_NAMED:
        return f"the line has {len(images)} images, and the limit is {MAX_NAMED}"
    if sum(len(each[1]) for each in images if not isinstance(each, Image)) > MAX_READ:
        return f"the images of the line have more than {MAX_READ:,} bytes"
    found = []
    for each in images:
        if isinstance(each, Image):  # one of another session
            found.append(each)
            continue
        name, content = each
        if len(content) > MAX_WHOLE:
            return f"{name} has {len(content):,} bytes, and the limit of an image is {MAX_WHOLE:,}"
        if (image := image_of(name, content)) is None:
            return f"{name} is no image of a kind that can be sent: PNG, JPEG, GIF or WebP"
        found.append(image)
    return tuple(found)


class Chain:
    """A session that accepts lines and runs chains. Made by ``open_chain``.

    A front end does three things with it, all in trio's thread, and none of them waits for another:

    - It sends lines (``submit``, which decides at once; ``origin`` says where they are from, and where they go back to)
      and commands (``interrupt``, ``drop``, ``use_model``).
    - It tells events: by a ``feed`` of its own, at its own pace, or by ``listen``, in the very step of each. One that
      comes late begins with ``standing``, and one that goes on with a session with ``resumed.past``.
    - It may answer questions: ``answering`` promises that, and ``answer`` does it.
    """

    def __init__(
        self,
        session: SessionRuns,
        shared: Shared,
        audience: Broadcaster,
        resumed: Resumed | None,
        servers: Servers | None,
    ) -> None:
        spec, journal = session.spec, shared.journal
        self.session_id = journal.id
        self.journal_path = journal.path
        self.workspace = shared.workspace
        self.max_iterations = spec.limits.max_iterations
        self.inbox_size = session.tree.main.inbox.size
        self.plan = shared.plan
        self.resumed = resumed
        """What was before, if the session was resumed."""
        self._servers = servers
        self._shared = shared
        self._audience = audience
        self._session = session
        self._tree = session.tree
        self._ledger = shared.ledger
        self._intake = Intake(session, shared)
        workspace = str(shared.workspace)
        self.init = events.Init(session=journal.id, version=VERSION, model=spec.model.name, workspace=workspace)
        """The first event of a feed that begins now."""
        self._has_wound_down = False
        self._standing = Snapshot()
        for event in session.state.waiting():
            self._standing.update(event)
        audience.listen(self._standing.update)

    # ------------------------------------------------------------------------------------------------- lines in

    def submit(
        self,
        text: str,
        *,
        urgency: Urgency = "next",
        id: str = "",
        local: bool = True,
        origin: Origin = "prompt",
        to: str = "",
        images: Sequence[tuple[str, bytes] | Image] = (),
    ) -> Submitted:
        """Accept a line, or refuse it. Call it in the trio thread.

        ``urgency`` marks it by other means than a ``!``; ``id`` is the sender's own id for it, unique in the session;
        ``local=False`` makes a leading ``/`` plain text; ``origin`` is where it came from; ``to`` names its agent;
        ``images`` go along with it, each a name and its content: PNG, JPEG, GIF or WebP.
        """
        line = parse_line(text.encode(errors="replace").decode(), urgency=urgency, local=local)
        sent = Sent(line, id, origin, to)
        if images:
            found = _read_images(images)
            if isinstance(found, str):
                return self._intake.refuse(sent, found)
            sent = replace(sent, line=replace(line, images=found))
        if self._session.is_closing:
            return self._intake.refuse(sent, "the chain is closing")
        if line.kind == "blank":
            return Submitted("nothing")
        if line.kind == "local":
            return Submitted("local", message=line.message)
        if self._session.active is not None:
            return self._intake.interrupt(sent)
        if line.kind == "stop":
            return Submitted("nothing", message="Nothing is running.")
        if problem := self._ledger.problem(line, id):
            return self._intake.refuse(sent, problem)
        if line.kind == "todo" or (line.kind == "question" and line.message.casefold() == "status"):
            return self._intake.carry_out(sent, self.status())
        return self._intake.start(sent)

    def needs_no_room(self, text: str, *, urgency: Urgency, to: str) -> Literal["stop", "now"] | None:
        """Whether a line would be accepted by the run that is active also if the channel is full, and as what.

        ``stop``: it ends the run, by its words or by a rule. ``now``: it cuts the work in hand and empties the channel.
        """
        return self._intake.needs_no_room(Sent(parse_line(text, urgency=urgency, local=False), to=to))

    def never_sent(self, written: str, reason: str, *, id: str = "") -> None:
        """Record that a script or a pipe will not send a line any more; the next result lists it.

        ``written`` is the line as it was written, its moment included, and ``id`` is its sender's own, if it has one.
        """
        self._ledger.never_sent(written, reason, self._session.spec.name, id=id, iteration=self._tree.main.iteration)

    def refuse(self, text: str, reason: str, *, id: str = "", origin: Origin = "prompt") -> Submitted:
        """Tell the sender of something that was meant as a line, and cannot be read as one, why it was not accepted."""
        return self._intake.refuse(Sent(Line(text, "redirect", text), id, origin), reason)

    def settled(self) -> Settled:
        """What became of lines since the last result, or since this was last called."""
        return self._ledger.settled()

    def start(self, query: str, *, id: str = "", origin: Origin = "prompt", names_files: bool = True) -> Submitted:
        """Start a run with a query that is not parsed. Refused while a run is active.

        Without ``names_files`` an ``@`` and a path in it are text: somebody else wrote it.
        """
        query = query.encode(errors="replace").decode()
        message = query.strip()
        line = Line(query, "verbatim", message, names_files=names_files)
        sent = Sent(line, id, origin)
        problem = "a run is active; wait for it to end" if self._session.active else self._ledger.problem(line, id)
        if self._session.is_closing:
            problem = "the chain is closing"
        if not line.message:
            problem = "the query is empty; write what the chain is to do"
        if problem:
            return self._intake.refuse(sent, problem)
        return self._intake.start(sent)

    def run_waiting(self) -> bool:
        """Start a run with the lines that wait, if none is active and there are any. Whether it was started."""
        return not self._session.is_closing and self._session.begin_waiting()

    def compact(self, focus: str = "") -> None:
        """Compact the main agent's conversation: at the next safe point of the run that is active, else at once.

        ``focus`` is what matters most. What came of it is told by ``compaction`` events, and where no run is active by
        the result of one that is begun for it. Raises ``UserError`` if there is nothing to compact.
        """
        if self._session.is_closing:
            raise UserError("the chain is closing")
        if not self._tree.main.agent.conversation.messages:
            raise UserError("there is no conversation yet")
        self._session.compact(" ".join(focus.split()))

    def interrupt(self) -> bool:
        """Cancel the work in hand, everywhere. Whether there was any."""
        return self._session.interrupt()

    def leave(self) -> None:
        """Accept no more lines and interrupt what runs. Waiting lines stay queued for whoever resumes the session."""
        self._session.leave()

    def keep_draft(self, text: str) -> None:
        """Record what the user was typing, for whoever resumes the session."""
        if text != ("" if self.resumed is None else self.resumed.draft):
            self._shared.journal.record_if_possible(Draft(text))

    # ------------------------------------------------------------------------------------------------ questions

    def answering(self, agent: str = "") -> Answerer:
        """Promise that questions will be answered, until the ``Answerer`` is closed (it is a context manager, too).

        Without anybody who answers, approvals are refused and choices are left to the model, at once. With ``agent``
        the promise is for the questions of this one alone.
        """
        return self._shared.questions.answering(agent)

    @property
    def questions(self) -> tuple[events.Question, ...]:
        """The latest questions, the last one last."""
        return tuple(self._shared.questions.asked.latest)

    @property
    def open_question(self) -> str | None:
        """The id of the question that is open."""
        asked = self._shared.questions.open
        return None if asked is None else asked.question.id

    @property
    def asker(self) -> str | None:
        """The agent whose question is open."""
        asked = self._shared.questions.open
        return None if asked is None else asked.question.agent

    def answer(self, id: str, text: str, *, origin: Origin = "prompt") -> Submitted:
        """Answer a question. An answer is no line: its ``answer`` event is its receipt. Call it in the trio thread.

        One for a question that is not open is refused, as is an empty one.
        """
        why = self._shared.questions.answer(id, text)
        if not why:
            return Submitted("answered", id)
        agent = self._session.spec.name
        self._shared.emit(
            events.LineRefused(
                agent=agent,
                iteration=self._tree.main.iteration,
                id=id,
                text=text[:MAX_REFUSED],
                kind="answer",
                urgency="next",
                target_agent=agent,
                waiting=len(self._tree.main.inbox),
                origin=origin,
                reason=why,
            )
        )
        return Submitted("refused", id, why)

    def needs_no_asking(self, tool: str) -> bool:
        """Whether every call of a tool is allowed."""
        return self._shared.questions.allows(tool)

    # ------------------------------------------------------------------------------------------- waiting lines

    def drop(self, id: str, reason: str = "") -> str:
        """Remove a waiting line, and return it as it was typed. The case of its id does not matter.

        Raises ``UserError`` when no such line waits, or when a running tool has acted on it already.
        """
        return self._tree.drop(id, reason).line.text

    def find_waiting(self, id: str) -> Accepted:
        """The waiting line with this id, whose case does not matter. Raises ``UserError`` when there is none."""
        return find_waiting_line(self.waiting, id)

    def last_waiting(self, origin: Origin = "prompt") -> str | None:
        """The id of the latest line from there that ``drop`` would still remove."""
        return self._tree.last_waiting(origin)

    def has_room(self, text: str, *, urgency: Urgency = "next", local: bool = True, to: str = "") -> bool:
        """Whether a line would neither be refused for want of room nor come between a stop and its end."""
        return self._intake.has_room(Sent(parse_line(text, urgency=urgency, local=local), to=to))

    async def wait_for_change(self) -> None:
        """Wait until the queue may have room, or the chain has closed; then look again, since it may have none."""
        await self._tree.main.inbox.room.wait()

    async def wait_idle(self) -> None:
        """Wait until no run is active and every event of the last one has been emitted."""
        await self._session.wait_idle()

    # ------------------------------------------------------------------------------------------- between the runs

    def use_model(self, model: Model, *, retries: Retries | None = None) -> None:
        """Ask another model from the next run on; a run that is active keeps its own to its end.

        ``retries`` go with the model; ``None`` leaves them as they are. The chain closes the model when it closes
        itself. Raises ``JournalError``, which leaves everything as it was.
        """
        if self._session.is_closing:
            raise UserError("the chain is closing")
        self._session.use_model(model, retries)
        self.init = replace(self.init, model=model.name)

    async def prepare(self) -> None:
        """Do ahead of the first call what takes long; cancel it freely.

        A failure is nothing yet: the first call meets it again, and its run says so.
        """
        with suppress(Exception):
            await self._session.spec.model.prepare()

    async def prepare_tools(self) -> None:
        """Import what the first tool call needs, in a thread; cancel it freely."""
        await trio.to_thread.run_sync(import_checks, abandon_on_cancel=True)

    # ------------------------------------------------------------------------------------------------- facts out

    def target(self, text: str = "", *, to: str = "") -> str:
        """The agent that a line would go to as things stand. Raises ``UserError`` for one that is not at work."""
        return self._intake.target(Sent(parse_line(text), to=to)).name

    def starts_agent(self, call: events.ToolCall) -> bool:
        """Whether a call that has just begun is to put another agent to work."""
        callers = (node for node in self._tree.main.all() if node.name == call.agent)
        tools = (node.agent.spec.registry.tools.get(call.name) for node in callers)
        return any(tool is not None and delegates(tool) for tool in tools)

    @property
    def agents(self) -> tuple[AgentView, ...]:
        """The agents at work, each before those that work for it, then those that have finished and can be asked."""
        return (*(node.view() for node in self._tree.main.all()), *self._session.children.finished)

    @property
    def model_name(self) -> str:
        """The model that the next run asks."""
        return self._session.spec.model.name

    @property
    def window(self) -> WindowView:
        """What fills the window of the main agent's model."""
        return self._session.executor.compaction.view()

    @property
    def tools(self) -> tuple[Tool, ...]:
        """What the model may use, from the next run on."""
        return tuple(self._session.spec.registry)

    @property
    def servers(self) -> tuple[ServerView, ...]:
        """The servers of tools, as they are now."""
        return () if self._servers is None else self._servers.views

    async def servers_settled(self) -> None:
        """Wait until each server has started, or could not be."""
        if self._servers is not None:
            await self._servers.settled()

    def start_prompt(
        self,
        server: str,
        prompt: str,
        words: Sequence[str],
        *,
        then: Callable[[str], object] | None = None,
        failed: Callable[[str], object] | None = None,
    ) -> None:
        """Start a run with a prompt of a server, once that has given it; what keeps it from that is told by a notice.

        A front end may do something else ``then`` with its text, or where that ``failed`` with the reason. Raises
        ``UserError`` if there is no such server, or a run is active.
        """
        if self._servers is None or all(view.name != server for view in self.servers):
            raise UserError(f"there is no server {server:.40}")
        if self._session.active is not None:
            raise UserError("a run is active; wait for it to end")
        begin = then or partial(self.start, names_files=False)
        self._servers.ask_prompt(server, prompt, words, begin, failed)

    @property
    def instructions(self) -> InstructionsRead:
        """The project's instructions, as they were read last; its files, and what was left out, are there to be told.

        A front end tells them once, as the session opens. Later changes are notices.
        """
        return self._session.state.instructions

    @property
    def trace_path(self) -> str | None:
        """The debug trace of the run that is active, or of the last one."""
        return self._session.state.trace_path()

    @property
    def is_running(self) -> bool:
        """Whether a run is active, or about to take its first step."""
        return self._session.active is not None

    @property
    def is_closing(self) -> bool:
        """Whether no line is accepted any more."""
        return self._session.is_closing

    @property
    def last_status(self) -> events.Status | None:
        """How the last run that has ended ended."""
        return self._session.last_status

    @property
    def waiting(self) -> tuple[Accepted, ...]:
        """The lines that wait, for whichever agent, in the order of acceptance."""
        return self._tree.waiting

    @property
    def receipts(self) -> tuple[events.Receipt, ...]:
        """What became of every line so far."""
        return self._ledger.receipts

    @property
    def usage(self) -> Usage:
        """What the model calls of this session have used."""
        return self._session.state.usage

    def exit_code(self, *, interrupted: bool = False, terminated: bool = False) -> int:
        """The exit code of the process as things stand; ``terminated``: by SIGTERM."""
        return self._session.exit_code(interrupted=interrupted, terminated=terminated)

    def feed(self) -> Feed:
        """A new feed of all events from now on, after an ``init``."""
        return self._audience.feed(self.init)

    @property
    def standing(self) -> tuple[events.Event, ...]:
        """How things stand, for who comes late: the events of the run, agents, plan, lines, replies and the question.

        They are those of what was told so far, so a feed that begins in the same step goes on where they end.
        """
        return self._standing.events

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` in the very step in which an event happens. It may submit lines; it must not block.

        Whatever it raises, everybody else is told, and the chain goes on. The first error of each listener is told as a
        notice, and leaves the block of ``open_chain`` when that ends, in a group; what is no ``Exception``, such as
        ``SystemExit``, ends the block at once.
        """
        self._audience.listen(listener)

    # ------------------------------------------------------------------------------------------------ inside

    def status(self) -> str:
        """What the chain is doing, in one line."""
        run = self._session.active
        doing = "nothing is running" if run is None else f"iteration {run.iteration}, {run.step.phase}"
        if below := sum(1 for _ in self._tree.main.all()) - 1:
            doing += f", {counted(below, 'agent')} below"
        closed, count = self.plan.counts
        used = self.usage.total_tokens + (0 if run is None else run.usage.total_tokens)
        lines = len(self._tree.waiting)
        waiting = f"{counted(lines, 'line')} {'waits' if lines == 1 else 'wait'}"
        return f"{doing}; {waiting}; plan {closed}/{count}; {counted(used, 'token')} used"

    def stop_accepting(self) -> None:
        """Refuse all lines from now on: the chain is about to be closed."""
        self._session.is_closing = True

    async def wind_down(self) -> None:
        """Accept no more lines, interrupt what runs, and wait until its end is told, for ``CLOSING_S`` at most."""
        if not self._has_wound_down:
            self._has_wound_down = True
            # A cancellation from outside must not cost the run its end, for which there is a bound.
            with trio.move_on_after(CLOSING_S, shield=True):
                await self._session.end_runs()

    async def close(self) -> None:
        """Wind down, wait for the tools that shield themselves for longer, and bring everything to the disk."""
        await self.wind_down()
        # The record must not end before the run that it is of: a tool that shields itself is waited for.
        with trio.CancelScope(shield=True):
            await self._session.wait_idle()
        # Models and the journal are closed also where the block was cancelled; a disk that hangs has a bound.
        with trio.move_on_after(CLOSING_S, shield=True):
            await self._session.close()
        self._audience.close()
