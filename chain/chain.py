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
from typing import TYPE_CHECKING

import trio

from chain import events
from chain.agent.questions import Answerer
from chain.agent.spec import Shared
from chain.agent.tree import AgentView
from chain.agent.window import WindowView
from chain.config.retries import Retries
from chain.errors import UserError
from chain.events import Origin
from chain.journal.records import Draft
from chain.lines.parse import Line, Urgency, parse_line
from chain.lines.receipts import MAX_REFUSED
from chain.messages import Image
from chain.model import Model
from chain.session.feed import Broadcaster, Feed, Listener
from chain.session.intake import Intake, Sent, Submitted
from chain.session.resume import Resumed
from chain.session.runs import SessionRuns
from chain.session.session_lines import SessionLines
from chain.session.snapshot import Snapshot
from chain.text.wording import counted
from chain.tools.named_files import MAX_NAMED, MAX_NAMED_BYTES, image_of
from chain.tools.paths import MAX_WHOLE
from chain.tools.tool import Tool, delegates, import_checks
from chain.version import VERSION

if TYPE_CHECKING:
    from chain.tools.mcp.servers import Servers, ServerView

__all__ = ["CLOSING_S", "AgentView", "Answerer", "Chain", "Submitted"]

CLOSING_S = 5.0
"""Grace period for tools that shield themselves from cancellation."""


def _read_images(images: Sequence[tuple[str, bytes] | Image]) -> tuple[Image, ...] | str:
    """Return the images of a line, or why it cannot have them."""
    if len(images) > MAX_NAMED:
        return f"the line has {len(images)} images, and the limit is {MAX_NAMED}"
    if sum(len(each[1]) for each in images if not isinstance(each, Image)) > MAX_NAMED_BYTES:
        return f"the images of the line have more than {MAX_NAMED_BYTES:,} bytes"
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
      and commands (``interrupt``, ``lines.drop``, ``use_model``).
    - It tells events: by a ``feed`` of its own, at its own pace, or by ``listen``, in the very step of each. One that
      comes late begins with ``standing``, and one that goes on with a session with ``resumed.past``.
    - It may answer questions: ``answering`` promises that, and ``answer`` does it.

    Everything else is an attribute: ``lines`` has the waiting lines and their receipts, ``plan`` the plan,
    ``questions`` the open questions and the allowances, ``runs`` the status of the last run and the exit code, and
    ``state`` the usage, the instructions and the trace. Only read ``state``.
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
        self._servers = servers
        self._shared = shared
        self._audience = audience
        self._tree = session.tree
        self._intake = Intake(session, shared)
        self.plan = shared.plan
        self.lines = SessionLines(self._intake, session.tree, shared.ledger)
        self.questions = shared.questions
        self.runs = session
        self.state = session.state
        self.resumed = resumed
        """The earlier events of a resumed session, and what has changed since; ``None`` for a new session."""
        workspace = str(shared.workspace)
        self.init = events.Init(session=journal.id, version=VERSION, model=spec.model.name, workspace=workspace)
        """The first event of a feed that begins now. It names the model of the next run."""
        self._has_wound_down = False
        self._standing = Snapshot()
        for event in self.state.waiting():
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
        if self.runs.is_closing:
            return self._intake.refuse(sent, "the chain is closing")
        if line.kind == "blank":
            return Submitted("nothing")
        if line.kind == "local":
            return Submitted("local", message=line.message)
        if self.runs.active is not None:
            return self._intake.interrupt(sent)
        if line.kind == "stop":
            return Submitted("nothing", message="Nothing is running.")
        if problem := self._shared.ledger.problem(line, id):
            return self._intake.refuse(sent, problem)
        if line.kind == "todo" or (line.kind == "question" and line.message.casefold() == "status"):
            return self._intake.carry_out(sent, self.status())
        return self._intake.start(sent)

    def start(self, query: str, *, id: str = "", origin: Origin = "prompt", names_files: bool = True) -> Submitted:
        """Start a run with a query that is not parsed. Refused while a run is active.

        Without ``names_files`` an ``@`` and a path in it are text: somebody else wrote it.
        """
        query = query.encode(errors="replace").decode()
        message = query.strip()
        line = Line(query, "verbatim", message, names_files=names_files)
        sent = Sent(line, id, origin)
        problem = "a run is active; wait for it to end" if self.runs.active else self._shared.ledger.problem(line, id)
        if self.runs.is_closing:
            problem = "the chain is closing"
        if not line.message:
            problem = "the query is empty; write what the chain is to do"
        if problem:
            return self._intake.refuse(sent, problem)
        return self._intake.start(sent)

    def interrupt(self) -> bool:
        """Cancel the work of all agents. Return whether a run is active."""
        return self.runs.interrupt()

    def leave(self) -> None:
        """Accept no more lines and interrupt the run. Waiting lines stay queued for when the session is resumed."""
        self.runs.leave()

    def keep_draft(self, text: str) -> None:
        """Record what the user was typing, for when the session is resumed."""
        if text != ("" if self.resumed is None else self.resumed.draft):
            self._shared.journal.record_if_possible(Draft(text))

    # ------------------------------------------------------------------------------------------------ questions

    def answering(self, agent: str = "") -> Answerer:
        """Promise that questions will be answered, until the ``Answerer`` is closed (it is a context manager, too).

        Without anybody who answers, approvals are refused and choices are left to the model, at once. With ``agent``
        the promise is for the questions of this one alone.
        """
        return self.questions.answering(agent)

    def answer(self, id: str, text: str, *, origin: Origin = "prompt") -> Submitted:
        """Answer a question. An answer is no line: its ``answer`` event is its receipt. Call it in the trio thread.

        One for a question that is not open is refused, as is an empty one.
        """
        why = self.questions.answer(id, text)
        if not why:
            return Submitted("answered", id)
        agent = self.runs.spec.name
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

    async def wait_idle(self) -> None:
        """Wait until no run is active and every event of the last one has been emitted."""
        await self.runs.wait_idle()

    # ------------------------------------------------------------------------------------------- between the runs

    def use_model(self, model: Model, *, retries: Retries | None = None) -> None:
        """Ask another model from the next run on. An active run continues with its own.

        ``retries`` go with the model; ``None`` leaves them unchanged. The chain closes the model when it closes.
        Raise ``UserError`` if the chain is closing, or ``JournalError``; nothing has changed then.
        """
        self.runs.use_model(model, retries)
        self.init = replace(self.init, model=model.name)

    async def prepare(self) -> None:
        """Do ahead of the first call what takes long; cancel it freely.

        A failure is nothing yet: the first call meets it again, and its run says so.
        """
        with suppress(Exception):
            await self.runs.spec.model.prepare()

    async def prepare_tools(self) -> None:
        """Import what the first tool call needs, in a thread; cancel it freely."""
        await trio.to_thread.run_sync(import_checks, abandon_on_cancel=True)

    # ------------------------------------------------------------------------------------------------- facts out

    def starts_agent(self, call: events.ToolCall) -> bool:
        """Return whether a call that has just started puts another agent to work."""
        callers = (node for node in self._tree.main.all() if node.name == call.agent)
        tools = (node.agent.spec.registry.tools.get(call.name) for node in callers)
        return any(tool is not None and delegates(tool) for tool in tools)

    @property
    def agents(self) -> tuple[AgentView, ...]:
        """The agents at work, each before those that work for it, then those that have finished and can be asked."""
        return (*(node.view() for node in self._tree.main.all()), *self.runs.children.finished)

    @property
    def window(self) -> WindowView:
        """What fills the window of the main agent's model."""
        return self.runs.executor.compaction.view()

    @property
    def tools(self) -> tuple[Tool, ...]:
        """What the model may use, from the next run on."""
        return tuple(self.runs.spec.registry)

    @property
    def servers(self) -> tuple[ServerView, ...]:
        """The servers of tools, as they are now."""
        return () if self._servers is None else self._servers.views

    async def servers_settled(self) -> None:
        """Wait until each server has started, or could not be."""
        if self._servers is not None:
            await self._servers.wait_settled()

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
        if self.runs.active is not None:
            raise UserError("a run is active; wait for it to end")
        begin = then or partial(self.start, names_files=False)
        self._servers.request_prompt(server, prompt, words, begin, failed)

    @property
    def is_running(self) -> bool:
        """Whether a run is active, or about to take its first step."""
        return self.runs.active is not None

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
        """Return what the chain is doing, in one line."""
        run = self.runs.active
        doing = "nothing is running" if run is None else f"iteration {run.iteration}, {run.step.phase}"
        if below := sum(1 for _ in self._tree.main.all()) - 1:
            doing += f", {counted(below, 'agent')} below"
        closed, count = self.plan.counts
        used = self.state.usage.total_tokens + (0 if run is None else run.usage.total_tokens)
        lines = len(self._tree.waiting)
        waiting = f"{counted(lines, 'line')} {'waits' if lines == 1 else 'wait'}"
        return f"{doing}; {waiting}; plan {closed}/{count}; {counted(used, 'token')} used"

    def stop_accepting(self) -> None:
        """Refuse all lines from now on: the chain is about to be closed."""
        self.runs.is_closing = True

    async def wind_down(self) -> None:
        """Accept no more lines, interrupt what runs, and wait until its end is told, for ``CLOSING_S`` at most."""
        if not self._has_wound_down:
            self._has_wound_down = True
            # A cancellation from outside must not cost the run its end, for which there is a bound.
            with trio.move_on_after(CLOSING_S, shield=True):
                await self.runs.end_runs()

    async def close(self) -> None:
        """Wind down, wait for the tools that shield themselves for longer, and bring everything to the disk."""
        await self.wind_down()
        # The record must not end before the run that it is of: a tool that shields itself is waited for.
        with trio.CancelScope(shield=True):
            await self.runs.wait_idle()
        # Models and the journal are closed also where the block was cancelled; a disk that hangs has a bound.
        with trio.move_on_after(CLOSING_S, shield=True):
            await self.runs.close()
        self._audience.close()
