"""The interface of a session for front ends: lines in, events out.

``submit`` routes a line in one synchronous step in the trio thread: it answers blank lines, commands, and a stop when
nothing runs, and passes all other lines to ``session.line_router``. So a line that arrives just as a run ends either
interrupts this run or starts a new one, and is never lost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
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
from chain.session.checkpoints import Checkpoint
from chain.session.feed import Broadcaster, Feed, Listener
from chain.session.jobs import SessionJobs
from chain.session.line_router import IncomingLine, LineRouter, SubmitResult
from chain.session.resume import Resumed
from chain.session.runs import SessionRuns
from chain.session.session_lines import SessionLines
from chain.session.snapshot import Snapshot
from chain.session.store import OpenSession
from chain.session.undo import Undo
from chain.text.modes import Mode
from chain.text.wording import pluralize
from chain.tools.named_files import MAX_NAMED, MAX_NAMED_BYTES, image_of
from chain.tools.named_files import image_type as image_type  # for front ends
from chain.tools.paths import MAX_WHOLE
from chain.tools.tool import Tool, delegates, import_checks
from chain.version import VERSION

if TYPE_CHECKING:
    from chain.tools.mcp.servers import Servers, ServerView

__all__ = ["CLOSING_S", "AgentView", "Answerer", "Chain", "Checkpoint", "SubmitResult"]

CLOSING_S = 5.0
"""The grace period, in seconds, for tools that shield themselves from cancellation."""

MAX_IMAGE = MAX_WHOLE
"""The maximum size of one image that is sent with a line, in bytes."""


def _read_images(images: Sequence[tuple[str, bytes] | Image]) -> tuple[Image, ...] | str:
    """Return the images to send with a line, or an error message if an image is unusable or a limit is exceeded."""
    if len(images) > MAX_NAMED:
        return f"the line has {len(images)} images, and the limit is {MAX_NAMED}"
    if sum(len(each[1]) for each in images if not isinstance(each, Image)) > MAX_NAMED_BYTES:
        return f"the images of the line have more than {MAX_NAMED_BYTES:,} bytes"
    found = []
    for each in images:
        if isinstance(each, Image):  # an image of another session
            found.append(each)
            continue
        name, content = each
        if len(content) > MAX_WHOLE:
            return f"{name} has {len(content):,} bytes, and the limit of an image is {MAX_WHOLE:,}"
        if (image := image_of(name, content)) is None:
            return f"{name} is not an image that can be sent (PNG, JPEG, GIF or WebP)"
        found.append(image)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class ServedSession(OpenSession):
    """An open session that other processes can send lines to.

    ``serve`` connects these processes to the session's ``Chain`` until the call is cancelled.
    """

    serve: Callable[[Chain], Awaitable[None]] = field(kw_only=True)


class Chain:
    """An open session. It accepts lines, and answers each query in a run: a series of model calls and tool calls.

    ``open_chain`` creates a ``Chain``.

    A front end does three things with a chain, in any order and all in the trio thread:

    - Send lines with ``submit``, which accepts or refuses a line immediately, and commands such as ``interrupt``,
      ``lines.drop`` and ``use_model``.
    - Receive events, either from a ``feed`` at the front end's own pace, or by ``listen`` in the step in which an
      event happens. A late subscriber shows ``snapshot`` first. A front end that resumes a session shows
      ``resumed.past`` first.
    - Answer questions: ``answering`` promises that answers will come, and ``answer`` gives one.

    The attributes have everything else: ``lines`` the waiting lines and their receipts, ``plan`` the plan,
    ``questions`` the open questions and the allowances, ``runs`` the status of the last run and the exit code, ``jobs``
    the background jobs, and ``state`` the usage, the instructions and the trace. Treat ``state`` as read-only.
    """

    def __init__(
        self,
        session: SessionRuns,
        shared: Shared,
        broadcaster: Broadcaster,
        resumed: Resumed | None,
        servers: Servers | None,
        jobs: SessionJobs,
    ) -> None:
        spec, journal = session.spec, shared.journal
        self.session_id = journal.id
        self.journal_path = journal.path
        self.workspace = shared.workspace
        self.max_iterations = spec.limits.max_iterations
        self.inbox_size = session.tree.main.inbox.size
        self._servers = servers
        self._shared = shared
        self._broadcaster = broadcaster
        self._tree = session.tree
        self._line_router = LineRouter(session, shared)
        self.plan = shared.plan
        self.lines = SessionLines(self._line_router, session.tree, shared.ledger)
        self.questions = shared.questions
        self.undo = Undo(session, shared)
        self.jobs = jobs
        self.runs = session
        self.state = session.state
        self.resumed = resumed
        """The earlier events of a resumed session, and the changes since then; ``None`` for a new session."""
        workspace = str(shared.workspace)
        self.init = events.Init(session=journal.id, version=VERSION, model=spec.model.name, workspace=workspace)
        """The first event of a new feed. It names the model of the next run."""
        self._has_wound_down = False
        self._snapshot = Snapshot()
        for event in self.state.waiting_events():
            self._snapshot.update(event)
        broadcaster.listen(self._snapshot.update)

    # ------------------------------------------------------------------------------------------------- lines

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
    ) -> SubmitResult:
        """Accept or refuse a line, and return the result. Call this in the trio thread.

        ``urgency`` is the urgency of a text without a leading ``!``. ``id`` is the sender's own id for the line, unique
        in the session; empty for a new id. With ``local=False`` a leading ``/`` is plain text, not a command. ``to`` is
        the name of the agent that gets the line; if empty, the chain chooses. Each of the ``images`` that are sent with
        the line is an ``Image``, or the name and content of a PNG, JPEG, GIF or WebP file.
        """
        line = parse_line(text.encode(errors="replace").decode(), urgency=urgency, local=local)
        sent = IncomingLine(line, id, origin, to)
        if images:
            found = _read_images(images)
            if isinstance(found, str):
                return self._line_router.refuse(sent, found)
            sent = replace(sent, line=replace(line, images=found))
        if self.runs.is_closing:
            return self._line_router.refuse(sent, "the chain is closing")
        if line.kind == "blank":
            return SubmitResult("nothing")
        if line.kind == "local":
            return SubmitResult("local", message=line.message)
        if self.runs.active is not None:
            return self._line_router.interrupt(sent)
        if line.kind == "stop":
            return SubmitResult("nothing", message=self.jobs.kill_all() or "Nothing is running.")
        if problem := self._shared.ledger.problem(line, id):
            return self._line_router.refuse(sent, problem)
        if line.kind == "todo" or (line.kind == "question" and line.message.casefold() == "status"):
            return self._line_router.carry_out(sent, self.status())
        return self._line_router.start(sent)

    def start(self, query: str, *, id: str = "", origin: Origin = "prompt", names_files: bool = True) -> SubmitResult:
        """Start a run with a query, whose text is not parsed. Refuse the query if a run is active.

        If ``names_files`` is false, an ``@path`` in the query attaches no file. Use this for text that the user did not
        write.
        """
        query = query.encode(errors="replace").decode()
        message = query.strip()
        line = Line(query, "verbatim", message, names_files=names_files)
        sent = IncomingLine(line, id, origin)
        problem = "a run is active; wait for it to end" if self.runs.active else self._shared.ledger.problem(line, id)
        if self.runs.is_closing:
            problem = "the chain is closing"
        if not line.message:
            problem = "the query is empty; write what the chain is to do"
        if problem:
            return self._line_router.refuse(sent, problem)
        return self._line_router.start(sent)

    def interrupt(self) -> bool:
        """Cancel the work of all agents. Return whether a run was active."""
        return self.runs.interrupt()

    def leave(self) -> None:
        """Refuse lines, interrupt the run, end the background jobs. Waiting lines stay queued until the next resume."""
        self.runs.leave()
        self.jobs.close()

    def record_draft(self, text: str) -> None:
        """Record the draft in the input editor, so that the draft is restored when the session is resumed."""
        if text != ("" if self.resumed is None else self.resumed.draft):
            self._shared.journal.record_if_possible(Draft(text))

    # ------------------------------------------------------------------------------------------------ questions

    def answering(self, agent: str = "") -> Answerer:
        """Promise to answer questions until the returned ``Answerer``, a context manager, is closed.

        Without such a promise, approvals are denied and choices are left to the model, immediately. With ``agent`` the
        promise covers only the questions of that agent.
        """
        return self.questions.answering(agent)

    def answer(self, id: str, text: str, *, origin: Origin = "prompt") -> SubmitResult:
        """Answer a question. Call this in the trio thread. The ``answer`` event acknowledges the answer.

        An empty answer is refused, and so is an answer to a question that is not open.
        """
        why = self.questions.answer(id, text)
        if not why:
            return SubmitResult("answered", id)
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
        return SubmitResult("refused", id, why)

    async def wait_idle(self) -> None:
        """Wait until no run is active and all events of the last run have been emitted."""
        await self.runs.wait_idle()

    # ------------------------------------------------------------------------------------------- between the runs

    def use_model(self, model: Model, *, retries: Retries | None = None) -> None:
        """Use another model from the next run on. The active run continues with its model.

        ``retries`` are the limits for retries of the model's calls; ``None`` changes no limits. The chain closes
        the model when the chain itself is closed. Raise ``UserError`` if the chain is closing, and ``JournalError`` if
        the change cannot be recorded. Neither error changes anything.
        """
        self.runs.use_model(model, retries)
        self.init = replace(self.init, model=model.name)

    def use_mode(self, mode: Mode) -> None:
        """Change which calls need approval, from the next call on. A notice confirms the change.

        Raise ``UserError`` if the chain is closing, and ``JournalError`` if the change cannot be recorded. Neither
        error changes anything.
        """
        self.runs.use_mode(mode)

    @property
    def mode(self) -> Mode:
        """The mode, which decides the calls that need approval."""
        return self.state.mode

    def use_effort(self, level: str) -> None:
        """Use the effort ``level`` from the next run on. An empty ``level``: use that in the model's definition.

        Agents whose kind names no model also use the effort. If the service refuses the effort, a notice is emitted,
        and later requests of the run omit it. Raise ``UserError`` if the chain is closing, and ``JournalError`` if the
        change cannot be recorded. Neither error changes anything.
        """
        self.runs.use_effort(level)

    @property
    def effort(self) -> str:
        """The effort that the user chose; empty for the effort in the model's definition."""
        return self.runs.spec.effort

    @property
    def last_reply(self) -> str:
        """The text of the main agent's last reply; empty if there is none yet."""
        if self.state.replies:
            return self.state.replies[-1]
        messages = reversed(self.state.main.history.conversation.messages)  # those of earlier runs
        return next((each.answer for each in messages if each.role == "assistant" and each.answer), "")

    def submit_with_model(
        self,
        text: str,
        model: Model,
        *,
        retries: Retries | None = None,
        origin: Origin = "prompt",
        images: Sequence[tuple[str, bytes] | Image] = (),
    ) -> SubmitResult:
        """Submit a line. If it starts a run, that run alone uses ``model`` with these ``retries``.

        The chain closes ``model`` when the chain itself is closed, but only if the line started a run.
        """
        submitted = self.submit(text, local=False, origin=origin, images=images)
        if submitted.what == "started":
            self.runs.use_model_once(model, retries)
        return submitted

    async def prepare(self) -> None:
        """Let the model do slow preparations before its first call. This can be cancelled at any time.

        Errors are ignored: the model's first call raises them again, and the run of that call reports them.
        """
        with suppress(Exception):
            await self.runs.spec.model.prepare()

    async def prepare_tools(self) -> None:
        """Import, in a thread, the libraries that the first tool call needs. This can be cancelled at any time."""
        await trio.to_thread.run_sync(import_checks, abandon_on_cancel=True)

    # ------------------------------------------------------------------------------------------- state and events

    def starts_agent(self, call: events.ToolCall) -> bool:
        """Return whether a tool call that has just started starts another agent."""
        callers = (node for node in self._tree.main.all() if node.name == call.agent)
        tools = (node.agent.spec.registry.tools.get(call.name) for node in callers)
        return any(tool is not None and delegates(tool) for tool in tools)

    @property
    def agents(self) -> tuple[AgentView, ...]:
        """The active agents, parents before their children, then the finished agents that can be asked again."""
        return (*(node.view() for node in self._tree.main.all()), *self.runs.children.finished)

    @property
    def window(self) -> WindowView:
        """The content of the context window of the main agent's model."""
        return self.runs.executor.compaction.view()

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools that the model may use from the next run on."""
        return tuple(self.runs.spec.registry)

    @property
    def servers(self) -> tuple[ServerView, ...]:
        """The MCP servers and their current states."""
        return () if self._servers is None else self._servers.views

    async def wait_servers_settled(self) -> None:
        """Wait until each MCP server has started or failed to start."""
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
        """Request a prompt from an MCP server, then start a run with its text. A failure is reported as a notice.

        If ``then`` is given, call it with the text and start no run. If ``failed`` is given, call it with the reason of
        a failure and emit no notice. Raise ``UserError`` if there is no such server, or if a run is active.
        """
        if self._servers is None or all(view.name != server for view in self.servers):
            raise UserError(f"there is no server {server:.40}")
        if self.runs.active is not None:
            raise UserError("a run is active; wait for it to end")
        begin = then or partial(self.start, names_files=False)
        self._servers.request_prompt(server, prompt, words, begin, failed)

    @property
    def is_running(self) -> bool:
        """Whether a run is active: from the call that starts it, even before its first step."""
        return self.runs.active is not None

    def feed(self) -> Feed:
        """Return a new feed: an ``init`` event, then all events from now on."""
        return self._broadcaster.feed(self.init)

    @property
    def snapshot(self) -> tuple[events.Event, ...]:
        """The events that bring a late subscriber up to date: run, agents, plan, lines, replies and open question.

        A feed that is created in the same step continues after these events.
        """
        return self._snapshot.events

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` with each event, in the step of the event. It may submit lines, but must not block.

        If a listener raises, the others still receive the event, and the run continues. The first error of each
        listener is reported as a notice and, when the block of ``open_chain`` ends, raised in an ``ExceptionGroup``. A
        ``BaseException`` that is not an ``Exception``, such as ``SystemExit``, ends the block immediately.
        """
        self._broadcaster.listen(listener)

    # ------------------------------------------------------------------------------------------ status and closing

    def status(self) -> str:
        """Return a one-row description of the current state."""
        run = self.runs.active
        doing = "nothing is running" if run is None else f"iteration {run.iteration}, {run.step.phase}"
        if below := sum(1 for _ in self._tree.main.all()) - 1:
            doing += f", {pluralize(below, 'agent')} below"
        closed, count = self.plan.counts
        used = self.state.usage.total_tokens + (0 if run is None else run.usage.total_tokens)
        lines = len(self._tree.waiting)
        waiting = f"{pluralize(lines, 'line')} {'waits' if lines == 1 else 'wait'}"
        if self.jobs.running:
            waiting += f"; {pluralize(len(self.jobs.running), 'background job')}"
        return f"{doing}; {waiting}; plan {closed}/{count}; {pluralize(used, 'token')} used"

    def stop_accepting(self) -> None:
        """Refuse all lines from now on, because the chain is about to close."""
        self.runs.is_closing = True

    async def wind_down(self) -> None:
        """Refuse lines, interrupt the active run, and end the background jobs.

        Wait up to ``CLOSING_S`` until the last events of the run and of the jobs have been emitted.
        """
        if not self._has_wound_down:
            self._has_wound_down = True
            # Shielded, so that a cancellation from outside does not lose the end of the run.
            with trio.move_on_after(CLOSING_S, shield=True):
                self.jobs.close()
                await self.runs.end_runs()
                await self.jobs.wait_closed()
                await self.runs.wait_idle()  # the run's last event has been emitted

    async def close(self) -> None:
        """Wind down, wait for tools that shield themselves from cancellation, flush the journal, close the models."""
        await self.wind_down()
        # The journal must not be closed before the run has ended, even if a tool shields itself.
        with trio.CancelScope(shield=True):
            await self.runs.wait_idle()
        # Shielded, since models and the journal must be closed after a cancellation; limited, since a disk may hang.
        with trio.move_on_after(CLOSING_S, shield=True):
            await self.runs.close()
        self._broadcaster.close()
